//! Scheduling, from the daemon: preempt commands, bands, and what the engine says of whose turn it was.

use std::sync::Arc;
use std::time::Duration;

use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::BandProperties;
use campanile_protocol::engine::scheduling::Bands;
use campanile_protocol::engine::scheduling::LOG_ENTRIES;
use campanile_protocol::engine::scheduling::LogEntry;
use zerocopy::IntoBytes;

use super::shared::SharedBlock;
use crate::engine::properties::units;
use crate::sched::parameters::Settings;

/// What a preempt command comes to; it cannot fail (PRE-23).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// Everything had completed: the report is made at once, and the engine hears of nothing (PRE-22).
    Reported(PreemptionReport),
    /// The engine was asked, under this PreemptionFenceId.
    Requested(u64),
}

/// The report of a preempt command (PRE-20).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreemptionReport {
    /// PreemptionFenceId.
    pub fence_id: u64,
    /// LastCompletedFenceId: what was submitted after that buffer, and before the request, was preempted (PRE-21).
    pub last_completed: u64,
}

/// Slices of dispatches, by the engine's own word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slices {
    /// How many were seen done.
    pub done: u64,
    /// The time that they took.
    pub took: Duration,
    /// What the newest was to take: less than the profile says while realtime work comes.
    pub target: Duration,
}

/// What an engine says of its own scheduling, and the bands that it is told of.
#[derive(Debug)]
pub struct Schedule {
    shared: Arc<SharedBlock>,
}

impl Schedule {
    pub(super) fn new(shared: Arc<SharedBlock>) -> Self {
        Self { shared }
    }

    pub(super) fn write_bands(&self, settings: &Settings) {
        let bands = settings.bands.map(|band| BandProperties {
            grace: units(band.grace),
            process_quantum: units(band.process_quantum),
            process_grace: units(band.process_grace),
        });
        let bands = Bands { bands, normal_share: settings.normal_share, reserved: 0 };
        self.shared.write(scheduling::BANDS, bands.as_bytes());
        self.shared.changed();
    }

    /// The scheduling log: the newest stretches, oldest first, and how many others there were. The engine's own word,
    /// and good for pictures alone.
    pub fn log(&self) -> (Vec<LogEntry>, u64) {
        let count = self.shared.load(scheduling::LOG_COUNT);
        let first = count.saturating_sub(LOG_ENTRIES);
        let read = |index: u64| {
            let entry: Option<LogEntry> = self.shared.read(scheduling::log_entry(index));
            entry.map(|entry| (index, entry))
        };
        let read: Vec<(u64, LogEntry)> = (first..count).filter_map(read).collect();
        // The engine goes on meanwhile: what it has overwritten since, or may be overwriting now, was torn perhaps.
        let now = self.shared.load(scheduling::LOG_COUNT);
        let intact = now.max(count).saturating_sub(LOG_ENTRIES - 1);
        let entries: Vec<LogEntry> =
            read.into_iter().filter(|(index, _)| *index >= intact).map(|(_, entry)| entry).collect();
        let others = count.saturating_sub(entries.len() as u64);
        (entries, others)
    }

    /// Slices of dispatches so far.
    pub fn slices(&self) -> Slices {
        let time = |place: u64| Duration::from_nanos(self.shared.load(place));
        Slices {
            done: self.shared.load(scheduling::SLICES),
            took: time(scheduling::SLICE_NANOSECONDS),
            target: time(scheduling::SLICE_TARGET),
        }
    }
}

//! Scheduling, from the daemon: properties of contexts and bands, preemption, which context had the engine.

use std::time::Duration;

use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::BandProperties;
use campanile_protocol::engine::scheduling::Bands;
use campanile_protocol::engine::scheduling::LOG_ENTRIES;
use campanile_protocol::engine::scheduling::LogEntry;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::process::EngineProcess;
use crate::engine::properties::properties;
use crate::engine::properties::units;
use crate::memory::bits;
use crate::memory::mapping::Mapping;
use crate::sched::parameters::Parameters;
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

/// Preempt commands to one engine.
#[derive(Debug, Default)]
pub struct Preemptions {
    /// The last PreemptionFenceId.
    issued: u64,
    is_outstanding: bool,
}

impl EngineProcess {
    pub(super) fn preempt(&mut self) -> Preemption {
        if self.preemptions.is_outstanding {
            return Preemption::Requested(self.preemptions.issued);
        }
        self.preemptions.issued += 1;
        let fence_id = self.preemptions.issued;
        if self.fence_ids.is_empty() {
            return Preemption::Reported(PreemptionReport { fence_id, last_completed: self.last_completed });
        }
        self.preemptions.is_outstanding = true;
        // PAIRS WITH engine/execution.rs `catch_up`: the submissions are there first.
        self.store(scheduling::PREEMPT_REQUEST, fence_id);
        self.poke();
        Preemption::Requested(fence_id)
    }

    pub(super) fn take_preemption(&mut self) -> Option<PreemptionReport> {
        let fence_id = self.preemptions.issued;
        // PAIRS WITH engine/execution.rs `put_back`.
        let is_done = self.preemptions.is_outstanding && self.load(scheduling::PREEMPT_REPORT) == fence_id;
        // Results come before the report of what put the others back.
        if !is_done || self.load(campanile_protocol::engine::block::HW_QUEUE_COMPLETED) > self.completed {
            return None;
        }
        self.preemptions.is_outstanding = false;
        Some(PreemptionReport { fence_id, last_completed: self.load(scheduling::PREEMPT_LAST_COMPLETED) })
    }

    /// Reports an outstanding preempt command in the place of the process that has ended: it runs nothing any more, and
    /// what it had is the next one's.
    pub(super) fn report_preemption(&self) {
        self.store(scheduling::PREEMPT_REPORT, self.preemptions.issued);
    }

    /// Whether a preempt command is not reported yet: until then nothing is submitted.
    pub fn is_preempting(&self) -> bool {
        self.preemptions.is_outstanding
    }

    pub(super) fn write_properties(&mut self, context: u32, generation: u32, parameters: &Parameters) {
        let properties = properties(parameters, generation);
        write(&self.shared, scheduling::properties(context), properties.as_bytes());
        // PAIRS WITH engine/run_list.rs `refresh`: the properties are there first.
        bits::raise(&self.shared, scheduling::RESCHEDULED, context);
        self.change();
    }

    pub(super) fn write_bands(&mut self, settings: &Settings) {
        let bands = settings.bands.map(|band| BandProperties {
            grace: units(band.grace),
            process_quantum: units(band.process_quantum),
            process_grace: units(band.process_grace),
        });
        let bands = Bands { bands, normal_share: settings.normal_share, reserved: 0 };
        write(&self.shared, scheduling::BANDS, bands.as_bytes());
        self.change();
    }

    /// How long a context has had the engine, by the engine's own word.
    pub fn used(&self, context: u32) -> Duration {
        Duration::from_nanos(self.load(scheduling::used(context)))
    }

    /// The scheduling log: the newest stretches, oldest first, and how many others there were. The engine's own word,
    /// and good for pictures alone.
    pub fn scheduling_log(&self) -> (Vec<LogEntry>, u64) {
        let count = self.load(scheduling::LOG_COUNT);
        let first = count.saturating_sub(LOG_ENTRIES);
        let read = |index: u64| {
            let mut bytes = [0; size_of::<LogEntry>()];
            self.shared.slice(scheduling::log_entry(index), bytes.len() as u64)?.copy_to(&mut bytes);
            LogEntry::read_from_bytes(&bytes).ok().map(|entry| (index, entry))
        };
        let read: Vec<(u64, LogEntry)> = (first..count).filter_map(read).collect();
        // The engine goes on meanwhile: what it has overwritten since, or may be overwriting now, was torn perhaps.
        let now = self.load(scheduling::LOG_COUNT);
        let intact = now.max(count).saturating_sub(LOG_ENTRIES - 1);
        let entries: Vec<LogEntry> =
            read.into_iter().filter(|(index, _)| *index >= intact).map(|(_, entry)| entry).collect();
        let others = count.saturating_sub(entries.len() as u64);
        (entries, others)
    }

    /// Which use of a context entry is the present one, as log entries say it; none of an entry that was never used.
    pub fn context_generation(&self, context: u32) -> Option<u32> {
        self.contexts.generation(context)
    }

    /// Slices of dispatches so far.
    pub fn slices(&self) -> Slices {
        let time = |place: u64| Duration::from_nanos(self.load(place));
        Slices {
            done: self.load(scheduling::SLICES),
            took: time(scheduling::SLICE_NANOSECONDS),
            target: time(scheduling::SLICE_TARGET),
        }
    }
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

fn write(shared: &Mapping, place: u64, bytes: &[u8]) {
    if let Some(slice) = shared.slice(place, bytes.len() as u64) {
        slice.copy_from(bytes);
    }
}

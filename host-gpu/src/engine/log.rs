//! The scheduling log: which context had the engine, and when.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_protocol::engine::scheduling;
use campanile_protocol::engine::scheduling::ContextProperties;
use campanile_protocol::engine::scheduling::LogEntry;
use zerocopy::IntoBytes;

use super::words::load;
use crate::ids::ContextIndex;
use crate::memory::mapping::Mapping;
use crate::node::clock::nanoseconds;

/// Turns of one context that follow each other within this are one stretch.
const GAP: Duration = Duration::from_micros(20);

/// The writer's side of the log; the last stretch is written when the next begins.
#[derive(Debug, Default)]
pub struct Log {
    count: u64,
    stretch: Option<LogEntry>,
}

impl Log {
    /// Goes on where an earlier process of this engine stopped.
    pub fn new(shared: &Mapping) -> Self {
        Self { count: load(shared, scheduling::LOG_COUNT), stretch: None }
    }

    /// A context ran from `times.0` to `times.1`, and was put aside or had no more to run.
    pub fn ran(
        &mut self,
        shared: &Mapping,
        context: ContextIndex,
        properties: &ContextProperties,
        times: (Duration, Duration),
        was_preempted: bool,
    ) {
        let (begin, end) = (nanoseconds(times.0), nanoseconds(times.1));
        if let Some(word) = shared.word(scheduling::used(context.get())) {
            word.store(word.load(Ordering::Relaxed) + (end - begin.min(end)), Ordering::Relaxed);
        }
        let is_preempted = u32::from(was_preempted);
        if let Some(stretch) = &mut self.stretch
            && stretch.context == context.get()
            && stretch.generation == properties.generation
            && begin.saturating_sub(stretch.end) <= nanoseconds(GAP)
        {
            stretch.end = end;
            stretch.was_preempted = is_preempted;
        } else {
            self.count += u64::from(self.stretch.is_some());
            self.stretch = Some(LogEntry {
                begin,
                end,
                context: context.get(),
                generation: properties.generation,
                band: u32::from(properties.band),
                was_preempted: is_preempted,
            });
        }
        self.write(shared);
    }

    /// The entry under way is in the log too, and grows.
    fn write(&self, shared: &Mapping) {
        let Some(stretch) = &self.stretch else { return };
        let place = scheduling::log_entry(self.count);
        if let Some(slice) = shared.slice(place, size_of::<LogEntry>() as u64) {
            slice.copy_from(stretch.as_bytes());
        }
        if let Some(word) = shared.word(scheduling::LOG_COUNT) {
            word.store(self.count + 1, Ordering::Release);
        }
    }
}

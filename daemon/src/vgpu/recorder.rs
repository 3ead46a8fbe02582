//! What happens to a vGPU, as long as it is traced.
//!
//! A trace asks again and again, and each time for a while ([`LEASE`]): one that went away costs nothing from then on. Without a
//! trace an event costs a look at a word that nothing changes. Engines log for themselves what they run (`control::history`).

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::ids::GuestProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_name;
use campanile_host_gpu::node::clock;
use serde::Serialize;
use serde::Serializer;

/// How long events are kept after a trace has asked for them.
pub const LEASE: Duration = Duration::from_secs(5);
/// Events that are kept; the oldest goes when there is one more.
const KEPT: usize = 16 << 10;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A buffer of a kernel-mode queue: from its SUBMIT to its fence.
    Submission,
    /// A doorbell of a user-mode queue was connected.
    Doorbell,
    /// An engine was told to put back what it has, for more urgent work.
    Preempt,
    /// An engine is reset, or everything.
    Reset,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Counts the events of a vGPU while it is traced.
    pub sequence: u64,
    /// What it was.
    pub kind: Kind,
    /// When it began, nanoseconds of the host's monotonic clock.
    pub begin_ns: u64,
    /// When it was over.
    pub end_ns: u64,
    /// EngineOrdinal.
    pub engine: u8,
    /// The node.
    #[serde(serialize_with = "node")]
    pub node: EngineAddress,
    /// The guest process, as the virtio-gpu context id, where it is of one.
    pub process: Option<GuestProcess>,
    /// Of a reset, what led to it.
    pub cause: Option<&'static str>,
}

fn node<S: Serializer>(at: &EngineAddress, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(node_name(at.node))
}

/// What a trace gets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Recorded {
    /// Oldest first.
    pub events: Vec<Event>,
    /// The sequence number of the next.
    pub next: u64,
    /// Of those asked for, how many were forgotten before they were.
    pub forgotten: u64,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Event>,
    next: u64,
}

/// The events of one vGPU.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Until when events are kept, nanoseconds of the monotonic clock; zero without a trace.
    until: AtomicU64,
    kept: Mutex<Kept>,
}

impl Recorder {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This has happened, and took so long.
    pub fn note(
        &self,
        kind: Kind,
        at: EngineAddress,
        process: Option<GuestProcess>,
        cause: Option<&'static str>,
        took: Duration,
    ) {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return;
        }
        let now = clock::monotonic();
        if clock::nanoseconds(now) > until {
            self.until.store(0, Ordering::Relaxed);
            self.kept().events = VecDeque::new();
            return;
        }
        let mut kept = self.kept();
        let event = Event {
            sequence: kept.next,
            kind,
            begin_ns: clock::nanoseconds(now.saturating_sub(took)),
            end_ns: clock::nanoseconds(now),
            engine: at.engine,
            node: at,
            process,
            cause,
        };
        kept.next += 1;
        if kept.events.len() >= KEPT {
            kept.events.pop_front();
        }
        kept.events.push_back(event);
    }

    /// The events from this sequence number on; without one there are none yet. More are kept from now on, for [`LEASE`].
    pub fn read(&self, from: Option<u64>) -> Recorded {
        let kept = self.kept();
        let until = clock::monotonic() + LEASE;
        self.until.store(clock::nanoseconds(until), Ordering::Relaxed);
        let Some(from) = from else {
            return Recorded { next: kept.next, ..Recorded::default() };
        };
        let oldest = kept.events.front().map_or(kept.next, |event| event.sequence);
        let forgotten = oldest.saturating_sub(from);
        let events = kept.events.iter().filter(|event| event.sequence >= from).copied().collect();
        Recorded { events, next: kept.next, forgotten }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;

    use super::KEPT;
    use super::Kind;
    use super::Recorder;
    use crate::ids::GuestProcess;

    fn note(recorder: &Recorder, took: Duration) {
        recorder.note(
            Kind::Submission,
            EngineAddress::new(0, NodeKind::Copy),
            Some(GuestProcess::new(3)),
            None,
            took,
        );
    }

    #[test]
    fn events_are_kept_while_someone_asks_in_order_and_no_more_than_so_many() {
        let recorder = Recorder::default();
        note(&recorder, Duration::ZERO);
        assert_eq!(recorder.read(Some(0)).events, [], "none had been asked for");
        let begun = recorder.read(None).next;
        (0..3).for_each(|time| note(&recorder, Duration::from_nanos(time)));
        let read = recorder.read(Some(begun));
        assert_eq!((read.events.len(), read.next, read.forgotten), (3, begun + 3, 0));
        assert!(read.events.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence));
        assert_eq!(
            read.events.iter().map(|event| event.end_ns - event.begin_ns).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert_eq!(recorder.read(Some(read.next)).events, []);
        (0..KEPT + 5).for_each(|_| note(&recorder, Duration::ZERO));
        let read = recorder.read(Some(read.next));
        assert_eq!((read.events.len(), read.forgotten), (KEPT, 5));
    }

    #[test]
    fn a_trace_that_went_away_leaves_nothing() {
        let recorder = Recorder::default();
        recorder.read(None);
        note(&recorder, Duration::ZERO);
        assert_eq!(recorder.kept().events.len(), 1);
        recorder.until.store(1, Ordering::Relaxed);
        note(&recorder, Duration::ZERO);
        assert_eq!((recorder.kept().events.capacity(), recorder.until.load(Ordering::Relaxed)), (0, 0));
    }
}

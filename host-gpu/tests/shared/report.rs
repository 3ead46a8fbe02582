//! Native fences: what was computed before a signal is there for the thread that waits for its value (UMS-134 to UMS-141).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_host_gpu::engine::signals::Signals;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::segment::Place;
use campanile_host_gpu::memory::segment::Segments;
use campanile_host_gpu::node::signal::Signal;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::block::BLOCK_BYTES;
use campanile_protocol::engine::fences;
use campanile_protocol::handshake::fence;
use campanile_protocol::handshake::signalled::Payload;
use campanile_protocol::handshake::signalled::Report;
use campanile_protocol::page_table::SegmentId;

use crate::support::TIMES;
use crate::support::mapping;
use crate::support::read;
use crate::support::until;
use crate::support::word;
use crate::support::write;

const HANDLE: u64 = 77;
/// The fence, and where results lie behind its page.
const FENCE: u32 = 2;
const RESULTS: u64 = 4 * PAGE_SIZE;
/// Values that the engine is ahead of what was seen, at most.
const SEEN_LAG: u64 = 3;

#[test]
fn ums_137_ums_141_a_result_is_there_once_its_value_is_whether_seen_or_reported() {
    let (shared, values) = (mapping(BLOCK_BYTES), mapping(RESULTS + TIMES * 8));
    let signals = Signals::new(Arc::clone(&shared), Event::new().unwrap());
    word(&shared, fences::handle(FENCE)).store(HANDLE, Ordering::Release);
    let current = word(&values, u64::from(FENCE) * PAGE_SIZE);
    let report = Report {
        written: word(&shared, fences::SIGNALLED_WRITTEN),
        taken: word(&shared, fences::SIGNALLED_TAKEN),
        overflow: word(&shared, fences::SIGNALLED_OVERFLOW),
        slots: fences::SIGNALLED_SLOTS,
    };
    let seen = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut segments = Segments::default();
            segments.insert(SegmentId::FENCES, Arc::clone(&values));
            let place = Place { mapping: Arc::clone(&values), offset: u64::from(FENCE) * PAGE_SIZE };
            for value in 1..=TIMES {
                // A few values ahead and no more, and without any order: it is to be at work while its results are read.
                let seen = || SEEN_LAG + seen.load(Ordering::Relaxed);
                until("the daemon", || (seen() > value).then_some(()));
                write(&values, RESULTS + (value - 1) * 8, 3 * value);
                assert!(signals.signal(&segments, &place, value));
            }
        });
        let mut last = 0;
        while last < TIMES {
            let now = fence::monitor(current, word(&shared, fences::monitored(FENCE)), Some(last + 1));
            let now =
                if now > last { now } else { until("a report", || reported(&shared, &report, current)) };
            for value in last + 1..=now {
                assert_eq!(read(&values, RESULTS + (value - 1) * 8), 3 * value);
            }
            last = last.max(now);
            seen.store(last, Ordering::Relaxed);
        }
    });
}

/// Daemon: the value of the fence, where a report names it.
fn reported(shared: &Mapping, report: &Report<'_, AtomicU64>, current: &AtomicU64) -> Option<u64> {
    let (named, end) = match report.look() {
        Payload::Handles { first, end } => {
            for count in first..end {
                let handle = word(shared, fences::signalled(count)).load(Ordering::Relaxed);
                assert_eq!(handle, HANDLE, "the {count}th report was read before it was there");
            }
            (end > first, end)
        }
        Payload::AllWaiters { end } => (true, end),
        Payload::Impossible => panic!("an honest engine was taken for a liar"),
    };
    report.finish(end);
    // PAIRS WITH `fence::signal`.
    named.then(|| current.load(Ordering::Acquire))
}

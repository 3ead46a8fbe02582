//! The report of signalled fences: every signal is named, or covered by "all waiters" after it.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::words::Modelled;
use super::words::Relaxed;
use super::words::Strong;
use crate::handshake::signalled::Payload;
use crate::handshake::signalled::Report;

/// Slots that there are.
const SLOTS: u64 = 1;
/// Fences that the engine signals, one after the other: 1, 2.
const SIGNALS: u64 = 2;

struct Shared<W> {
    written: W,
    taken: W,
    overflow: W,
    slot: W,
    /// CurrentValue of the fences.
    values: [AtomicU64; SIGNALS as usize],
}

impl<W: Modelled> Shared<W> {
    fn report(&self, slots: u64) -> Report<'_, W> {
        Report { written: &self.written, taken: &self.taken, overflow: &self.overflow, slots }
    }

    /// Daemon: reads the report once; adds the fences whose waiters it releases.
    fn read(&self, slots: u64, released: &mut [bool]) {
        let report = self.report(slots);
        let end = match report.look() {
            Payload::Handles { first, end } => {
                for _ in first..end {
                    let handle = self.slot.load(Ordering::Acquire);
                    assert_ne!(handle, 0, "a signal was lost: its handle was read before it was there");
                    released[usize::try_from(handle - 1).unwrap()] = true;
                }
                end
            }
            Payload::AllWaiters { end } => {
                for (value, released) in self.values.iter().zip(released) {
                    *released |= value.load(Ordering::Acquire) != 0;
                }
                end
            }
            Payload::Impossible => panic!("an honest engine was taken for a liar"),
        };
        report.finish(end);
    }
}

/// An engine that signals two fences into one slot against a daemon that reads. `slots`: what both think there are.
fn report_against_reader<W: Modelled>(slots: u64) {
    loom::model(move || {
        let shared = Arc::new(Shared {
            written: W::new(0),
            taken: W::new(0),
            overflow: W::new(0),
            slot: W::new(0),
            values: std::array::from_fn(|_| AtomicU64::new(0)),
        });
        let engine = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for handle in 1..=SIGNALS {
                    let value = &shared.values[usize::try_from(handle - 1).unwrap()];
                    value.store(1, Ordering::Release);
                    shared.report(slots).push(handle, |_| Some(&shared.slot));
                }
            })
        };
        let mut released = [false; SIGNALS as usize];
        shared.read(slots, &mut released);
        engine.join().unwrap();
        // The last interrupt.
        shared.read(slots, &mut released);
        assert_eq!(released, [true; SIGNALS as usize], "a signal was lost");
    });
}

#[test]
fn ums_141_every_signal_is_named_or_all_waiters_are_looked_at() {
    report_against_reader::<Strong>(SLOTS);
}

#[test]
#[should_panic(expected = "a signal was lost")]
fn loom_twin_without_release_names_nothing() {
    report_against_reader::<Relaxed>(SLOTS);
}

#[test]
#[should_panic(expected = "a signal was lost")]
fn loom_twin_that_writes_over_what_is_not_read_loses_a_signal() {
    report_against_reader::<Strong>(2 * SLOTS);
}

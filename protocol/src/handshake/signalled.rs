//! The report of signalled fences: a ring of global handles from the engine to the daemon (UMS-141).
//!
//! ```text
//!   engine                                daemon
//!   room?  slot = handle                  overflow ⇐ 0?   ─▶ all waiters
//!          written + 1                    written?        ─▶ handles taken .. written
//!   none?  overflow = 1                   taken = written
//!   ── interrupt ──
//! ```
//!
//! The engine says so after each report; the daemon reads after each interrupt. A report is never lost: what does
//! not fit becomes "all waiters".

use core::sync::atomic::Ordering;

use super::word::Word;

/// The words between an engine and the daemon.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a, W> {
    /// Handles reported, ever; engine.
    pub written: &'a W,
    /// Handles read, ever; daemon.
    pub taken: &'a W,
    /// Whether one did not fit; engine (or), daemon (swap).
    pub overflow: &'a W,
    /// How many slots there are.
    pub slots: u64,
}

/// What the daemon found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Payload {
    /// Handles `first .. end` are in their slots.
    Handles {
        /// Count of the first.
        first: u64,
        /// One past the last.
        end: u64,
    },
    /// The payload is empty: all waiters must be looked at, and what is in the slots does not matter.
    AllWaiters {
        /// One past the last that is in its slot.
        end: u64,
    },
    /// More was written than fits: the engine lies.
    Impossible,
}

impl<W: Word> Report<'_, W> {
    /// Engine: reports `handle`; `slot` gives the word of the count-th report. An interrupt must follow.
    pub fn push<'s>(&self, handle: u64, slot: impl FnOnce(u64) -> Option<&'s W>)
    where
        W: 's,
    {
        let written = self.written.load(Ordering::Relaxed);
        // PAIRS WITH `finish`: the daemon has read the slot before it is stored to again.
        let taken = self.taken.load(Ordering::Acquire);
        let place = if written.wrapping_sub(taken) < self.slots { slot(written) } else { None };
        match place {
            Some(place) => {
                place.store(handle, Ordering::Relaxed);
                // PAIRS WITH `look`: the handle is there first.
                self.written.store(written.wrapping_add(1), Ordering::Release);
            }
            None => {
                // PAIRS WITH `look`: the value of the fence is there first.
                self.overflow.fetch_or(1, Ordering::Release);
            }
        }
    }

    /// Daemon: what has been reported since the last [`Self::finish`].
    pub fn look(&self) -> Payload {
        // Both in any case: what is looked at as a whole is not named again later.
        let overflowed = self.overflow.swap(0, Ordering::AcqRel) != 0;
        let taken = self.taken.load(Ordering::Relaxed);
        // PAIRS WITH `push`.
        let written = self.written.load(Ordering::Acquire);
        match written.checked_sub(taken) {
            Some(count) if count <= self.slots && overflowed => Payload::AllWaiters { end: written },
            Some(count) if count <= self.slots => Payload::Handles { first: taken, end: written },
            _ => Payload::Impossible,
        }
    }

    /// Daemon: handles before `end` were read.
    pub fn finish(&self, end: u64) {
        // PAIRS WITH `push`.
        self.taken.store(end, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering;

    use super::Payload;
    use super::Report;

    /// The words of a report of two slots.
    struct Words {
        written: AtomicU64,
        taken: AtomicU64,
        overflow: AtomicU64,
        slots: [AtomicU64; 2],
    }

    impl Words {
        fn new(written: u64, taken: u64) -> Self {
            let [overflow, a, b] = [const { AtomicU64::new(0) }; 3];
            Self { written: written.into(), taken: taken.into(), overflow, slots: [a, b] }
        }

        fn report(&self) -> Report<'_, AtomicU64> {
            Report { written: &self.written, taken: &self.taken, overflow: &self.overflow, slots: 2 }
        }

        fn push(&self, handle: u64) {
            self.report().push(handle, |count| self.slots.get(usize::from(count % 2 == 1)));
        }
    }

    #[test]
    fn what_fits_is_named_in_order_until_it_was_read() {
        let words = Words::new(0, 0);
        words.push(11);
        words.push(12);
        assert_eq!(words.slots.each_ref().map(|slot| slot.load(Ordering::Relaxed)), [11, 12]);
        assert_eq!(words.report().look(), Payload::Handles { first: 0, end: 2 });
        words.report().finish(2);
        assert_eq!(words.report().look(), Payload::Handles { first: 2, end: 2 });
        words.push(13);
        assert_eq!(words.slots[0].load(Ordering::Relaxed), 13);
        assert_eq!(words.report().look(), Payload::Handles { first: 2, end: 3 });
    }

    #[test]
    fn what_does_not_fit_stands_for_all_waiters_once() {
        let words = Words::new(0, 0);
        for handle in 11..14 {
            words.push(handle);
        }
        assert_eq!(words.slots.each_ref().map(|slot| slot.load(Ordering::Relaxed)), [11, 12]);
        assert_eq!(words.report().look(), Payload::AllWaiters { end: 2 });
        assert_eq!(words.report().look(), Payload::Handles { first: 0, end: 2 });
    }

    #[test]
    fn counts_that_no_engine_reaches_are_impossible_whether_one_overflowed_or_not() {
        for (written, taken) in [(3, 0), (4, 5)] {
            let words = Words::new(written, taken);
            assert_eq!(words.report().look(), Payload::Impossible, "{written} after {taken}");
            words.overflow.store(1, Ordering::Relaxed);
            assert_eq!(words.report().look(), Payload::Impossible, "{written} after {taken}, overflowed");
        }
    }
}

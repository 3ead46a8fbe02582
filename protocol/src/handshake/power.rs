//! An engine that goes to sleep against a daemon that has work for it.
//!
//! ```text
//!            idle for the spin budget            daemon: all doorbells RETRY
//!   ACTIVE ───────────────────────▶ F1_WANTED ─────────────────────────────▶ F1_ALLOWED
//!     ▲  ▲                              │                                        │ nothing left to do
//!     │  └───── work came meanwhile ────┘                                        ▼
//!     └───────────────────── woken ◀───────────────────────────────────────── ASLEEP (F1)
//!
//!   ACTIVE ──▶ NAPPING ──▶ ACTIVE      a short sleep with doorbells connected: no grant yet, or a blocked wait
//!   ACTIVE ──▶ HUNG                    its driver is lost: it runs nothing more, and waits for its end
//! ```
//!
//! ACTIVE, F1_WANTED and HUNG are what an engine reports of itself, with the values of NewState (UMS-117).
//!
//! The engine stores every state but F1_ALLOWED. The daemon pokes the wake eventfd of an engine that is not
//! ACTIVE after it has published work.

use core::sync::atomic::Ordering;

use super::word::Word;

/// F0: polls its doorbells.
pub const ACTIVE: u64 = 0;
/// Asks for F1: the TRANSITION_TO_F1 report (UMS-116, UMS-117).
pub const F1_WANTED: u64 = 1;
/// Cannot go on: the HUNG report, which starts recovery (UMS-117, UMS-121).
pub const HUNG: u64 = 2;
/// F1: sleeps, nothing is watched.
pub const ASLEEP: u64 = 3;
/// Sleeps for a moment with doorbells connected.
pub const NAPPING: u64 = 4;
/// The daemon has disconnected the doorbells; the engine may sleep (UMS-118).
pub const F1_ALLOWED: u64 = 5;

/// Engine: announces `state` (ASLEEP or NAPPING) and looks once more with `has_work`; true when it may
/// block on its wake eventfd. Otherwise it is ACTIVE again.
#[must_use]
pub fn may_block<W: Word>(power: &W, state: u64, has_work: impl FnOnce() -> bool) -> bool {
    power.store(state, Ordering::Release);
    // PAIRS WITH `needs_poke`.
    W::full_fence();
    if has_work() {
        power.store(ACTIVE, Ordering::Release);
        return false;
    }
    true
}

/// Daemon: after work was published (counts raised with release), whether the engine must be poked.
#[must_use]
pub fn needs_poke<W: Word>(power: &W) -> bool {
    // PAIRS WITH `may_block`.
    W::full_fence();
    power.load(Ordering::Acquire) != ACTIVE
}

/// Engine: asks for F1; only from ACTIVE (UMS-117).
pub fn want_f1<W: Word>(power: &W) -> bool {
    power.compare_exchange(ACTIVE, F1_WANTED, Ordering::AcqRel).is_ok()
}

/// Engine: reports that it cannot go on; only from ACTIVE (UMS-117).
pub fn report_hung<W: Word>(power: &W) -> bool {
    power.compare_exchange(ACTIVE, HUNG, Ordering::AcqRel).is_ok()
}

/// Engine: takes the request back, because work came; false when the daemon was faster.
pub fn cancel_f1<W: Word>(power: &W) -> bool {
    power.compare_exchange(F1_WANTED, ACTIVE, Ordering::AcqRel).is_ok()
}

/// Daemon: grants the request, after it has disconnected all doorbells; false when it was taken back.
pub fn allow_f1<W: Word>(power: &W) -> bool {
    power.compare_exchange(F1_WANTED, F1_ALLOWED, Ordering::AcqRel).is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering;

    use super::ACTIVE;
    use super::ASLEEP;
    use super::F1_ALLOWED;
    use super::F1_WANTED;
    use super::HUNG;
    use super::NAPPING;
    use super::allow_f1;
    use super::cancel_f1;
    use super::may_block;
    use super::needs_poke;
    use super::report_hung;
    use super::want_f1;

    const STATES: [u64; 6] = [ACTIVE, F1_WANTED, HUNG, ASLEEP, NAPPING, F1_ALLOWED];

    #[test]
    fn an_engine_may_block_after_it_has_said_so_and_found_no_work() {
        let power = AtomicU64::new(ACTIVE);
        assert!(may_block(&power, NAPPING, || {
            assert_eq!(power.load(Ordering::Relaxed), NAPPING);
            false
        }));
        assert_eq!(power.load(Ordering::Relaxed), NAPPING);
        assert!(!may_block(&power, ASLEEP, || true));
        assert_eq!(power.load(Ordering::Relaxed), ACTIVE);
    }

    #[test]
    fn every_engine_that_is_not_active_is_poked() {
        for state in STATES {
            assert_eq!(needs_poke(&AtomicU64::new(state)), state != ACTIVE, "{state}");
        }
    }

    #[test]
    fn f1_is_taken_back_or_allowed_only_while_it_is_wanted() {
        for start in STATES {
            let word = AtomicU64::new(start);
            assert_eq!(cancel_f1(&word), start == F1_WANTED, "taken back from {start}");
            assert_eq!(word.load(Ordering::Relaxed), if start == F1_WANTED { ACTIVE } else { start });
            let word = AtomicU64::new(start);
            assert_eq!(allow_f1(&word), start == F1_WANTED, "allowed from {start}");
            assert_eq!(word.load(Ordering::Relaxed), if start == F1_WANTED { F1_ALLOWED } else { start });
        }
    }

    #[test]
    fn ums_117_reported_states_have_the_published_values_and_start_from_active() {
        assert_eq!([ACTIVE, F1_WANTED, HUNG], [0, 1, 2]);
        for start in STATES {
            let word = AtomicU64::new(start);
            assert_eq!(want_f1(&word), start == ACTIVE, "F1 from {start}");
            let word = AtomicU64::new(start);
            assert_eq!(report_hung(&word), start == ACTIVE, "HUNG from {start}");
            assert_eq!(word.load(Ordering::Relaxed), if start == ACTIVE { HUNG } else { start });
        }
    }
}

//! Whose turn it is on a node of the physical GPU (design §10.2).
//!
//! ```text
//!            engine            supervisor            supervisor             engine
//!   IDLE ────────────▶ WANT ────────────▶ GRANTED ────────────▶ REVOKING ────────────▶ YIELDED
//!    ▲                                     ▲ │ engine, done          │                    │ │
//!    ├─────────────────────────────────────┼─┴───────────────────────┘                    │ │
//!    │                                     └────────────────────── supervisor ────────────┘ │
//!    └───────────────────────────────────── engine, has none ───────────────────────────────┘
//!
//!            engine, sleeps          engine, wakes             supervisor, somebody wants the node
//!   GRANTED ────────────────▶ PARKED ─────────────▶ GRANTED      PARKED ─────────────▶ IDLE
//! ```
//!
//! One word an engine. The supervisor gives a node to one engine at a time: it raises the next to GRANTED only
//! after it has seen the last one in IDLE, WANT or YIELDED, or its process reaped. An engine that sleeps keeps a node
//! that nobody else wants, so that it need not ask when it wakes; who comes first of both, has it.
//!
//! Who has YIELDED wants the node as who is in WANT. Had it to ask first, urgent work that came while it stopped could wait
//! for a turn of somebody else: the supervisor hears of the yield, and decides before the engine gets to ask.

use core::sync::atomic::Ordering;

use super::word::Word;

/// Phase of a grant word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// Has nothing to run.
    Idle = 0,
    /// Has work.
    Want = 1,
    /// Runs.
    Granted = 2,
    /// Runs, and must stop at its next boundary.
    Revoking = 3,
    /// Has stopped, and has more work.
    Yielded = 4,
    /// Sleeps, and keeps the node while nobody wants it.
    Parked = 5,
}

/// A grant word, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The phase.
    pub phase: Phase,
    /// Counts the grants of this engine.
    pub generation: u64,
}

impl Grant {
    /// Decodes a word; one that no peer writes reads as IDLE, so that a hostile engine gains nothing by it.
    pub const fn from_word(word: u64) -> Self {
        let phase = match word & 7 {
            1 => Phase::Want,
            2 => Phase::Granted,
            3 => Phase::Revoking,
            4 => Phase::Yielded,
            5 => Phase::Parked,
            _ => Phase::Idle,
        };
        Self { phase, generation: word >> 8 }
    }

    /// Encodes.
    pub const fn word(self) -> u64 {
        (self.generation << 8) | self.phase as u64
    }

    /// Whether its engine may be running.
    pub const fn holds(self) -> bool {
        matches!(self.phase, Phase::Granted | Phase::Revoking)
    }
}

/// What an engine may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Turn {
    /// Run.
    Run,
    /// Run, and tell the supervisor: it watches nobody who sleeps.
    Resume,
    /// Stop at the next boundary and [`yield_turn`].
    Stop,
    /// Wait: the supervisor knows, or is told by who yields.
    Wait,
    /// Wait, and tell the supervisor: it did not know.
    Ask,
}

fn advance<W: Word>(word: &W, from: Phase, to: Phase) -> bool {
    let seen = word.load(Ordering::Acquire);
    let grant = Grant::from_word(seen);
    if grant.phase != from {
        return false;
    }
    let generation = if matches!(to, Phase::Granted) { grant.generation + 1 } else { grant.generation };
    // PAIRS WITH itself on the other side: what was run before is visible to who runs next.
    word.compare_exchange(seen, Grant { phase: to, generation }.word(), Ordering::AcqRel).is_ok()
}

/// Engine: has work; may it run? Costs one load of its own line while granted.
pub fn take_turn<W: Word>(word: &W) -> Turn {
    match Grant::from_word(word.load(Ordering::Acquire)).phase {
        Phase::Granted => Turn::Run,
        Phase::Revoking => Turn::Stop,
        Phase::Want | Phase::Yielded => Turn::Wait,
        Phase::Idle if advance(word, Phase::Idle, Phase::Want) => Turn::Ask,
        Phase::Parked if advance(word, Phase::Parked, Phase::Granted) => Turn::Resume,
        // The supervisor was faster: it has to be asked as by anybody else.
        Phase::Parked if advance(word, Phase::Idle, Phase::Want) => Turn::Ask,
        Phase::Idle | Phase::Parked => Turn::Wait,
    }
}

/// Engine: goes to sleep, or goes on sleeping, with the node, if nobody has asked for it. False when it does not hold
/// it, or must give it back.
#[must_use]
pub fn park<W: Word>(word: &W) -> bool {
    advance(word, Phase::Granted, Phase::Parked)
        || Grant::from_word(word.load(Ordering::Acquire)).phase == Phase::Parked
}

/// Supervisor: takes the node from an engine that sleeps; false when that has woken.
#[must_use]
pub fn reclaim<W: Word>(word: &W) -> bool {
    advance(word, Phase::Parked, Phase::Idle)
}

/// Engine: stops because it was told to. True when the supervisor must be told.
#[must_use]
pub fn yield_turn<W: Word>(word: &W) -> bool {
    advance(word, Phase::Revoking, Phase::Yielded)
}

/// Engine: has nothing more to run. True when the supervisor must be told.
#[must_use]
pub fn release<W: Word>(word: &W) -> bool {
    loop {
        let phase = Grant::from_word(word.load(Ordering::Acquire)).phase;
        if phase == Phase::Idle {
            return false;
        }
        if advance(word, phase, Phase::Idle) {
            return true;
        }
    }
}

/// Supervisor: gives the turn to an engine that wants it.
#[must_use]
pub fn give<W: Word>(word: &W) -> bool {
    advance(word, Phase::Want, Phase::Granted) || advance(word, Phase::Yielded, Phase::Granted)
}

/// Supervisor: asks for the turn back; false when the engine does not hold it.
#[must_use]
pub fn revoke<W: Word>(word: &W) -> bool {
    advance(word, Phase::Granted, Phase::Revoking)
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering;

    use super::Grant;
    use super::Phase;
    use super::Turn;
    use super::give;
    use super::park;
    use super::reclaim;
    use super::release;
    use super::revoke;
    use super::take_turn;
    use super::yield_turn;
    use crate::handshake::word::Word;

    fn at(phase: Phase) -> AtomicU64 {
        AtomicU64::new(Grant { phase, generation: 5 }.word())
    }

    fn phase(word: &AtomicU64) -> Phase {
        Grant::from_word(word.load(core::sync::atomic::Ordering::Relaxed)).phase
    }

    #[test]
    fn every_edge_of_the_grant_and_no_other_is_there() {
        use Phase::Granted;
        use Phase::Idle;
        use Phase::Parked;
        use Phase::Revoking;
        use Phase::Want;
        use Phase::Yielded;
        for start in [Idle, Want, Granted, Revoking, Yielded, Parked] {
            let word = at(start);
            let turn = take_turn(&word);
            let (expected, after) = match start {
                Idle => (Turn::Ask, Want),
                Want | Yielded => (Turn::Wait, start),
                Granted => (Turn::Run, Granted),
                Revoking => (Turn::Stop, Revoking),
                Parked => (Turn::Resume, Granted),
            };
            assert_eq!((turn, phase(&word)), (expected, after), "take_turn from {start:?}");

            let word = at(start);
            let wants = matches!(start, Want | Yielded);
            assert_eq!(give(&word), wants, "give from {start:?}");
            assert_eq!(phase(&word), if wants { Granted } else { start });

            let word = at(start);
            assert_eq!(revoke(&word), start == Granted, "revoke from {start:?}");
            assert_eq!(phase(&word), if start == Granted { Revoking } else { start });

            let word = at(start);
            assert_eq!(yield_turn(&word), start == Revoking, "yield from {start:?}");
            assert_eq!(phase(&word), if start == Revoking { Yielded } else { start });

            let word = at(start);
            assert_eq!(release(&word), start != Idle, "release from {start:?}");
            assert_eq!(phase(&word), Idle);

            let word = at(start);
            assert_eq!(park(&word), matches!(start, Granted | Parked), "park from {start:?}");
            assert_eq!(phase(&word), if start == Granted { Parked } else { start });

            let word = at(start);
            assert_eq!(reclaim(&word), start == Parked, "reclaim from {start:?}");
            assert_eq!(phase(&word), if start == Parked { Idle } else { start });
        }
    }

    /// A word that the supervisor changes between two looks of the engine.
    struct Reclaimed(AtomicU64);

    impl Word for Reclaimed {
        fn load(&self, order: Ordering) -> u64 {
            Word::load(&self.0, order)
        }
        fn store(&self, value: u64, order: Ordering) {
            Word::store(&self.0, value, order);
        }
        fn swap(&self, value: u64, order: Ordering) -> u64 {
            Word::swap(&self.0, value, order)
        }
        fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
            Word::fetch_or(&self.0, bits, order)
        }
        fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
            let _first = reclaim(&self.0);
            Word::compare_exchange(&self.0, current, new, success)
        }
        fn full_fence() {}
    }

    #[test]
    fn an_engine_whose_node_was_taken_while_it_woke_asks_for_it() {
        let word = Reclaimed(at(Phase::Parked));
        assert_eq!(take_turn(&word), Turn::Ask);
        assert_eq!(phase(&word.0), Phase::Want);
    }

    #[test]
    fn a_grant_has_a_new_generation() {
        let word = at(Phase::Want);
        assert!(give(&word));
        assert_eq!(Grant::from_word(word.load(core::sync::atomic::Ordering::Relaxed)).generation, 6);
    }
}

//! Whose turn it is on a node of the physical GPU (design §10.2).
//!
//! ```text
//!            engine            supervisor            supervisor             engine
//!   IDLE ────────────▶ WANT ────────────▶ GRANTED ────────────▶ REVOKING ────────────▶ YIELDED
//!    ▲                  ▲                    │ engine, done          │                    │ │
//!    ├──────────────────┼────────────────────┴───────────────────────┘                    │ │
//!    │                  └────────────────── engine, has more ─────────────────────────────┘ │
//!    └───────────────────────────────────── engine, has none ───────────────────────────────┘
//! ```
//!
//! One word an engine. The supervisor gives a node to one engine at a time: it raises the next to GRANTED only
//! after it has seen the last one in IDLE, WANT or YIELDED, or its process reaped.

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
    /// Has stopped.
    Yielded = 4,
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
    /// Stop at the next boundary and [`yield_turn`].
    Stop,
    /// Wait: the supervisor knows.
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
        Phase::Want => Turn::Wait,
        Phase::Idle if advance(word, Phase::Idle, Phase::Want) => Turn::Ask,
        Phase::Yielded if advance(word, Phase::Yielded, Phase::Want) => Turn::Ask,
        Phase::Idle | Phase::Yielded => Turn::Wait,
    }
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
            return matches!(phase, Phase::Granted | Phase::Revoking);
        }
    }
}

/// Supervisor: gives the turn to an engine that wants it.
#[must_use]
pub fn give<W: Word>(word: &W) -> bool {
    advance(word, Phase::Want, Phase::Granted)
}

/// Supervisor: asks for the turn back; false when the engine does not hold it.
#[must_use]
pub fn revoke<W: Word>(word: &W) -> bool {
    advance(word, Phase::Granted, Phase::Revoking)
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::Grant;
    use super::Phase;
    use super::Turn;
    use super::give;
    use super::release;
    use super::revoke;
    use super::take_turn;
    use super::yield_turn;

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
        use Phase::Revoking;
        use Phase::Want;
        use Phase::Yielded;
        for start in [Idle, Want, Granted, Revoking, Yielded] {
            let word = at(start);
            let turn = take_turn(&word);
            let (expected, after) = match start {
                Idle | Yielded => (Turn::Ask, Want),
                Want => (Turn::Wait, Want),
                Granted => (Turn::Run, Granted),
                Revoking => (Turn::Stop, Revoking),
            };
            assert_eq!((turn, phase(&word)), (expected, after), "take_turn from {start:?}");

            let word = at(start);
            assert_eq!(give(&word), start == Want, "give from {start:?}");
            assert_eq!(phase(&word), if start == Want { Granted } else { start });

            let word = at(start);
            assert_eq!(revoke(&word), start == Granted, "revoke from {start:?}");
            assert_eq!(phase(&word), if start == Granted { Revoking } else { start });

            let word = at(start);
            assert_eq!(yield_turn(&word), start == Revoking, "yield from {start:?}");
            assert_eq!(phase(&word), if start == Revoking { Yielded } else { start });

            let word = at(start);
            assert_eq!(release(&word), matches!(start, Granted | Revoking), "release from {start:?}");
            assert_eq!(phase(&word), Idle);
        }
    }

    #[test]
    fn a_grant_has_a_new_generation() {
        let word = at(Phase::Want);
        assert!(give(&word));
        assert_eq!(Grant::from_word(word.load(core::sync::atomic::Ordering::Relaxed)).generation, 6);
    }
}

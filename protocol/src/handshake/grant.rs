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
//!            engine, sleeps          engine, wakes             supervisor, another engine wants the node
//!   GRANTED ────────────────▶ PARKED ─────────────▶ GRANTED      PARKED ─────────────▶ IDLE
//! ```
//!
//! One word an engine, in the block that it shares with the daemon:
//!
//! | bits | what | changed by |
//! |---|---|---|
//! | 0..3 | phase | both sides, along the edges above, by compare and exchange |
//! | 3..8 | zero | neither |
//! | 8..64 | generation: grants so far | the supervisor, with each step to GRANTED |
//!
//! The supervisor gives a node to one engine at a time: it raises the next to GRANTED only after it has seen the last one in IDLE,
//! WANT or YIELDED, or its process reaped. An engine that sleeps keeps a node that no other engine wants, so that it need not ask
//! when it wakes; whichever side comes first, has it.
//!
//! An engine in YIELDED wants the node as one in WANT does. Had it to ask first, urgent work that came while it stopped could wait
//! for a turn of another engine: the supervisor hears of the yield, and decides before the engine gets to ask.
//!
//! # What the supervisor believes
//!
//! An engine can store anything into the word at any time. What was given to it the supervisor knows by itself ([`Given`]): a new
//! process begins with generation 0 and without the node, and then each word is judged by what was given last.
//!
//! | given | words that an engine of good faith leaves | read as |
//! |---|---|---|
//! | no | IDLE, WANT, YIELDED | without the node |
//! | granted | GRANTED, PARKED | with the node |
//! | granted | IDLE, WANT | has given it back |
//! | revoking | REVOKING | with the node, and must yield |
//! | revoking | YIELDED, IDLE, WANT | has given it back |
//!
//! Every other word, one of another generation, and one with a bit outside of both fields is a [`Breach`]: what the engine does
//! with the node is not known any more, so that only the end of its process gives the node back. What the word cannot show is an
//! engine that says IDLE and goes on running: the time of the node that it uses so is not seen here.

use core::fmt;
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
    /// Sleeps, and keeps the node while no other engine wants it.
    Parked = 5,
}

impl Phase {
    /// From the low byte of a grant word.
    const fn from_byte(byte: u64) -> Option<Self> {
        Some(match byte {
            0 => Self::Idle,
            1 => Self::Want,
            2 => Self::Granted,
            3 => Self::Revoking,
            4 => Self::Yielded,
            5 => Self::Parked,
            _ => return None,
        })
    }
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
    /// Decodes a word, for the engine and for reports; one that neither side writes reads as IDLE. The supervisor decides by
    /// [`Given::look`].
    pub const fn from_word(word: u64) -> Self {
        let phase = match Phase::from_byte(word & 7) {
            Some(phase) => phase,
            None => Phase::Idle,
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
    /// Run, and tell the supervisor: it does not watch a sleeping engine.
    Resume,
    /// Stop at the next boundary and [`yield_turn`].
    Stop,
    /// Wait: the supervisor knows, or is told by the engine that yields.
    Wait,
    /// Wait, and tell the supervisor: it did not know.
    Ask,
}

/// A step of the engine. The generation stays what it is.
fn advance<W: Word>(word: &W, from: Phase, to: Phase) -> bool {
    let seen = word.load(Ordering::Acquire);
    let grant = Grant::from_word(seen);
    if grant.phase != from {
        return false;
    }
    // PAIRS WITH `exchange`: what was run before is visible to the engine that runs next.
    word.compare_exchange(seen, Grant { phase: to, ..grant }.word(), Ordering::AcqRel).is_ok()
}

/// Engine: has work; may it run? Costs one load of its own line while granted.
pub fn take_turn<W: Word>(word: &W) -> Turn {
    match Grant::from_word(word.load(Ordering::Acquire)).phase {
        Phase::Granted => Turn::Run,
        Phase::Revoking => Turn::Stop,
        Phase::Want | Phase::Yielded => Turn::Wait,
        Phase::Idle if advance(word, Phase::Idle, Phase::Want) => Turn::Ask,
        Phase::Parked if advance(word, Phase::Parked, Phase::Granted) => Turn::Resume,
        // The supervisor was faster: it has to be asked as by any other engine.
        Phase::Parked if advance(word, Phase::Idle, Phase::Want) => Turn::Ask,
        Phase::Idle | Phase::Parked => Turn::Wait,
    }
}

/// Engine: goes to sleep, or goes on sleeping, with the node, if it was not asked for. False when it does not hold
/// it, or must give it back.
#[must_use]
pub fn park<W: Word>(word: &W) -> bool {
    advance(word, Phase::Granted, Phase::Parked)
        || Grant::from_word(word.load(Ordering::Acquire)).phase == Phase::Parked
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

/// Whether an engine has its node, as the supervisor knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Held {
    /// Not given, or given back.
    #[default]
    No,
    /// Given.
    Granted,
    /// Given, and asked for again.
    Revoking,
}

/// What the supervisor has given to an engine: its own record, out of the engine's reach. A new one stands for a process that
/// was just started, whose word is `{IDLE, 0}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Given {
    generation: u64,
    held: Held,
}

/// A word that no engine of good faith stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breach {
    /// The word.
    pub word: u64,
    /// What was given to its engine.
    pub given: Given,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, given: Given { generation, held } } = self;
        let is = match held {
            Held::No => "does not have its node",
            Held::Granted => "was granted its node",
            Held::Revoking => "was asked to yield its node",
        };
        write!(f, "its grant word {word:#x} breaks the protocol: it {is}, at generation {generation:#x}")
    }
}

impl Given {
    /// What an engine has that another supervisor has given turns to, by the word that this one has left.
    ///
    /// # Errors
    /// No supervisor and no engine of good faith leave such a word.
    pub fn adopt(word: u64) -> Result<Self, Breach> {
        let held = match Phase::from_byte(word & 0xff) {
            Some(Phase::Idle | Phase::Want | Phase::Yielded) => Held::No,
            Some(Phase::Granted | Phase::Parked) => Held::Granted,
            Some(Phase::Revoking) => Held::Revoking,
            None => return Err(Breach { word, given: Self::default() }),
        };
        Ok(Self { generation: word >> 8, held })
    }

    /// The word from which [`Self::adopt`] makes the same.
    pub const fn word(self) -> u64 {
        let phase = match self.held {
            Held::No => Phase::Idle,
            Held::Granted => Phase::Granted,
            Held::Revoking => Phase::Revoking,
        };
        Grant { phase, generation: self.generation }.word()
    }

    /// The same without the node.
    pub const fn without_node(self) -> Self {
        Self { held: Held::No, ..self }
    }

    /// Whether the engine has the node.
    pub const fn holds(&self) -> bool {
        !matches!(self.held, Held::No)
    }

    /// Loads the word of the engine, and judges it.
    ///
    /// # Errors
    /// The engine broke the protocol.
    pub fn look<W: Word>(&mut self, word: &W) -> Result<Phase, Breach> {
        // PAIRS WITH `advance`: what the engine ran before it gave the node back is visible to the next.
        self.judge(word.load(Ordering::Acquire))
    }

    /// What a word of the engine says, and whether it may say so. A node that it gives back is no longer given.
    ///
    /// # Errors
    /// The engine broke the protocol. What was given stays given: whether it still runs is not known.
    pub fn judge(&mut self, word: u64) -> Result<Phase, Breach> {
        let breach = Breach { word, given: *self };
        let phase = Phase::from_byte(word & 0xff).filter(|_| word >> 8 == self.generation).ok_or(breach)?;
        match (self.held, phase) {
            (Held::No, Phase::Idle | Phase::Want | Phase::Yielded)
            | (Held::Granted, Phase::Granted | Phase::Parked)
            | (Held::Revoking, Phase::Revoking) => {}
            (Held::Granted, Phase::Idle | Phase::Want)
            | (Held::Revoking, Phase::Idle | Phase::Want | Phase::Yielded) => self.held = Held::No,
            (Held::No, Phase::Granted | Phase::Revoking | Phase::Parked)
            | (Held::Granted, Phase::Revoking | Phase::Yielded)
            | (Held::Revoking, Phase::Granted | Phase::Parked) => return Err(breach),
        }
        Ok(phase)
    }

    /// Gives the node to an engine that wants it. False where it does not, or has a node that was not seen to be given back.
    #[must_use]
    pub fn give<W: Word>(&mut self, word: &W) -> bool {
        let (last, next) = (self.generation, self.generation + 1);
        let steps = |from| exchange(word, (from, last), (Phase::Granted, next));
        let is_given = self.held == Held::No && (steps(Phase::Want) || steps(Phase::Yielded));
        if is_given {
            *self = Self { generation: next, held: Held::Granted };
        }
        is_given
    }

    /// Asks for the node back. False where the engine was not given it, sleeps with it, or has given it back meanwhile.
    #[must_use]
    pub fn revoke<W: Word>(&mut self, word: &W) -> bool {
        let of = self.generation;
        let is_asked =
            self.held == Held::Granted && exchange(word, (Phase::Granted, of), (Phase::Revoking, of));
        if is_asked {
            self.held = Held::Revoking;
        }
        is_asked
    }

    /// Takes the node from an engine that sleeps. False where it has woken.
    #[must_use]
    pub fn reclaim<W: Word>(&mut self, word: &W) -> bool {
        let of = self.generation;
        let is_taken = self.held == Held::Granted && exchange(word, (Phase::Parked, of), (Phase::Idle, of));
        if is_taken {
            self.held = Held::No;
        }
        is_taken
    }
}

/// A step of the supervisor, from exactly what it expects.
fn exchange<W: Word>(word: &W, from: (Phase, u64), to: (Phase, u64)) -> bool {
    let [from, to] = [from, to].map(|(phase, generation)| Grant { phase, generation }.word());
    // PAIRS WITH `advance`: what was run before is visible to the engine that runs next.
    word.compare_exchange(from, to, Ordering::AcqRel).is_ok()
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering;

    use super::Breach;
    use super::Given;
    use super::Grant;
    use super::Held;
    use super::Phase;
    use super::Turn;
    use super::park;
    use super::release;
    use super::take_turn;
    use super::yield_turn;
    use crate::handshake::word::Word;

    fn at(phase: Phase) -> AtomicU64 {
        AtomicU64::new(Grant { phase, generation: 5 }.word())
    }

    fn given(held: Held) -> Given {
        Given { generation: 5, held }
    }

    #[test]
    fn a_supervisor_takes_over_what_the_word_of_an_engine_says_that_it_has() {
        let words = [
            (Phase::Idle, Held::No),
            (Phase::Want, Held::No),
            (Phase::Yielded, Held::No),
            (Phase::Granted, Held::Granted),
            (Phase::Parked, Held::Granted),
            (Phase::Revoking, Held::Revoking),
        ];
        for (phase, held) in words {
            let word = Grant { phase, generation: 5 }.word();
            let mut adopted = Given::adopt(word).unwrap();
            assert_eq!(adopted, given(held), "{phase:?}");
            assert_eq!(adopted.judge(word), Ok(phase), "what it has may stand in its word");
            assert_eq!(Given::adopt(adopted.word()), Ok(given(held)));
            assert_eq!(adopted.without_node(), given(Held::No));
        }
        for word in [6, 7, 8, 0x502 | 0x80] {
            assert_eq!(Given::adopt(word), Err(Breach { word, given: Given::default() }));
        }
    }

    #[test]
    fn the_supervisor_knows_an_engine_to_have_the_node_until_it_gave_it_back() {
        assert_eq!(
            [Held::No, Held::Granted, Held::Revoking].map(|held| given(held).holds()),
            [false, true, true]
        );
    }

    #[test]
    fn an_engine_may_run_while_it_is_granted_or_revoked_and_in_no_other_phase() {
        let holds = |phase| Grant { phase, generation: 5 }.holds();
        assert!([Phase::Granted, Phase::Revoking].into_iter().all(holds));
        assert!(![Phase::Idle, Phase::Want, Phase::Yielded, Phase::Parked].into_iter().any(holds));
    }

    fn phase(word: &AtomicU64) -> Phase {
        Grant::from_word(word.load(core::sync::atomic::Ordering::Relaxed)).phase
    }

    #[test]
    fn every_edge_of_the_engine_and_no_other_is_there() {
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
            assert_eq!(yield_turn(&word), start == Revoking, "yield from {start:?}");
            assert_eq!(phase(&word), if start == Revoking { Yielded } else { start });

            let word = at(start);
            assert_eq!(release(&word), start != Idle, "release from {start:?}");
            assert_eq!(phase(&word), Idle);

            let word = at(start);
            assert_eq!(park(&word), matches!(start, Granted | Parked), "park from {start:?}");
            assert_eq!(phase(&word), if start == Granted { Parked } else { start });
            assert_eq!(Grant::from_word(word.load(Ordering::Relaxed)).generation, 5);
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
            let _first = given(Held::Granted).reclaim(&self.0);
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
    fn every_edge_of_the_supervisor_and_no_other_is_there() {
        type Step = fn(&mut Given, &AtomicU64) -> bool;
        type Row = (Step, Held, &'static [Phase], Grant, Held);
        const STEPS: [Row; 3] = [
            (
                Given::give,
                Held::No,
                &[Phase::Want, Phase::Yielded],
                Grant { phase: Phase::Granted, generation: 6 },
                Held::Granted,
            ),
            (
                Given::revoke,
                Held::Granted,
                &[Phase::Granted],
                Grant { phase: Phase::Revoking, generation: 5 },
                Held::Revoking,
            ),
            (
                Given::reclaim,
                Held::Granted,
                &[Phase::Parked],
                Grant { phase: Phase::Idle, generation: 5 },
                Held::No,
            ),
        ];
        for (number, (step, needs, from, to, after)) in STEPS.into_iter().enumerate() {
            for held in [Held::No, Held::Granted, Held::Revoking] {
                for (byte, generation) in (0..=255).flat_map(|byte| [4, 5, 6].map(|of| (byte, of))) {
                    let start = generation << 8 | byte;
                    let word = AtomicU64::new(start);
                    let mut own = given(held);
                    let is_right = generation == 5 && from.iter().any(|phase| *phase as u64 == byte);
                    let is_due = held == needs && is_right;
                    let name = std::format!("step {number} from {start:#x}, {held:?}");
                    assert_eq!(step(&mut own, &word), is_due, "{name}");
                    assert_eq!(word.into_inner(), if is_due { to.word() } else { start }, "{name}");
                    let expected = Given { generation: to.generation, held: after };
                    assert_eq!(own, if is_due { expected } else { given(held) }, "{name}");
                }
            }
        }
    }

    #[test]
    fn every_word_is_judged_by_what_was_given() {
        // What each phase leads to, in their order; none for a breach.
        let legal = [
            (Held::No, [Some(Held::No), Some(Held::No), None, None, Some(Held::No), None]),
            (
                Held::Granted,
                [Some(Held::No), Some(Held::No), Some(Held::Granted), None, None, Some(Held::Granted)],
            ),
            (
                Held::Revoking,
                [Some(Held::No), Some(Held::No), None, Some(Held::Revoking), Some(Held::No), None],
            ),
        ];
        let phases =
            [Phase::Idle, Phase::Want, Phase::Granted, Phase::Revoking, Phase::Yielded, Phase::Parked];
        for (held, after) in legal {
            for byte in 0..=255u64 {
                // Older, newer, and one that differs in the highest bit only.
                for generation in [0, 4, 5, 6, 5 | 1 << 55] {
                    let word = generation << 8 | byte;
                    let mut own = given(held);
                    let index = usize::try_from(byte).unwrap();
                    let expected = after.get(index).copied().flatten().filter(|_| generation == 5);
                    let name = std::format!("{word:#x}, {held:?}");
                    match expected {
                        Some(after) => {
                            assert_eq!(own.judge(word), Ok(phases[index]), "{name}");
                            assert_eq!(own, given(after), "{name}");
                        }
                        None => {
                            assert_eq!(own.judge(word), Err(Breach { word, given: given(held) }), "{name}");
                            assert_eq!(own, given(held), "{name}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_node_that_was_revoked_is_not_taken_again_by_a_word_of_the_engine() {
        let word = AtomicU64::new(0);
        let mut own = Given::default();
        assert_eq!(take_turn(&word), Turn::Ask);
        assert!(own.give(&word) && own.revoke(&word) && own.holds());
        word.store(Grant { phase: Phase::Granted, generation: 1 }.word(), Ordering::Release);
        let breach = own.look(&word).unwrap_err();
        assert!(own.holds(), "it may run");
        assert_eq!(
            std::string::ToString::to_string(&breach),
            "its grant word 0x102 breaks the protocol: it was asked to yield its node, at generation 0x1"
        );
    }
}

//! What an engine reports of its own state: whether it gets further, sleeps or hangs.

use std::sync::Arc;

use campanile_protocol::engine::block;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::handshake::power;

use super::shared::SharedBlock;

/// The power and progress words.
#[derive(Debug)]
pub struct Power {
    shared: Arc<SharedBlock>,
    /// The progress word as it was last asked for.
    progress: u64,
    found_by_look: u64,
}

impl Power {
    pub(super) fn new(shared: Arc<SharedBlock>) -> Self {
        Self { shared, progress: 0, found_by_look: 0 }
    }

    /// Whether the engine wishes for F1. The caller disconnects all doorbells, and only then calls
    /// [`Self::allow_f1`] (UMS-118).
    pub fn wishes_f1(&self) -> bool {
        self.shared.load(block::POWER) == power::F1_WANTED
    }

    /// Whether the engine reports that it cannot go on (UMS-121, TDR-23).
    pub fn says_hung(&self) -> bool {
        self.shared.load(block::POWER) == power::HUNG
    }

    /// Whether the engine is in F1.
    pub fn is_asleep(&self) -> bool {
        self.shared.load(block::POWER) == power::ASLEEP
    }

    /// Lets the engine sleep: its doorbells are disconnected. False when work came to it meanwhile.
    pub fn allow_f1(&self) -> bool {
        let allowed = self.shared.word(block::POWER).is_some_and(power::allow_f1);
        self.shared.poke();
        allowed
    }

    /// See [`super::ddi::Adapter::query_engine_status`].
    pub(super) fn is_responsive(&mut self) -> bool {
        let progress = self.shared.load(block::PROGRESS);
        let is_idle = Progress::from_word(progress).work == Work::Nothing;
        std::mem::replace(&mut self.progress, progress) != progress || is_idle
    }

    /// Rings since the last call that only a look found. The engine's own word for it: good for counting alone.
    pub fn take_found_by_look(&mut self) -> u64 {
        let found = self.shared.load(block::FOUND_BY_LOOK);
        found.saturating_sub(std::mem::replace(&mut self.found_by_look, found))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::engine::block;
    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::handshake::power;

    use super::Power;
    use super::SharedBlock;

    #[test]
    fn tdr_26_an_engine_is_responsive_that_got_further_or_runs_nothing() {
        let shared = Arc::new(SharedBlock::new().unwrap());
        let mut engine = Power::new(Arc::clone(&shared));
        let run = |steps, work| {
            shared.store(block::PROGRESS, Progress { steps, is_exempt: false, work }.word());
        };
        run(1, Work::HwQueue);
        assert!(engine.is_responsive());
        assert!(!engine.is_responsive());
        run(2, Work::HwQueue);
        assert!(engine.is_responsive());
        run(2, Work::Nothing);
        assert!(engine.is_responsive() && engine.is_responsive());
    }

    #[test]
    fn ums_118_an_engine_sleeps_once_it_is_allowed_what_it_wished_for() {
        let shared = Arc::new(SharedBlock::new().unwrap());
        let engine = Power::new(Arc::clone(&shared));
        let is = || (engine.wishes_f1(), engine.is_asleep(), engine.says_hung());
        assert!(!engine.allow_f1(), "it did not wish for it");
        shared.store(block::POWER, power::F1_WANTED);
        assert_eq!(is(), (true, false, false));
        assert!(engine.allow_f1());
        assert_eq!(is(), (false, false, false), "it may, and is not yet");
        shared.store(block::POWER, power::ASLEEP);
        assert_eq!(is(), (false, true, false));
        shared.store(block::POWER, power::HUNG);
        assert_eq!(is(), (false, false, true));
    }

    #[test]
    fn rings_that_a_look_found_are_counted_once_and_never_backwards() {
        let shared = Arc::new(SharedBlock::new().unwrap());
        let mut engine = Power::new(Arc::clone(&shared));
        for (word, found) in [(3, 3), (3, 0), (1, 0), (4, 3)] {
            shared.store(block::FOUND_BY_LOOK, word);
            assert_eq!(engine.take_found_by_look(), found);
        }
    }
}

//! Native fences, from the daemon to one engine and back.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_protocol::engine::fences;
use campanile_protocol::handle::Handle;
use campanile_protocol::handshake::fence;
use campanile_protocol::handshake::signalled::Payload;
use campanile_protocol::handshake::signalled::Report;

use super::shared::SharedBlock;

/// What an engine says it has signalled (UMS-141).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Signalled {
    /// These fences, by global handle; an empty handle stands for all.
    Fences(Vec<Handle>),
    /// Some: all waiters must be looked at.
    AllWaiters,
    /// A count that cannot be: the engine lies.
    Impossible,
}

/// The words of native fences.
#[derive(Debug)]
pub struct NativeFences {
    shared: Arc<SharedBlock>,
}

impl NativeFences {
    pub(super) fn new(shared: Arc<SharedBlock>) -> Self {
        Self { shared }
    }

    /// Tells the engine of a fence, before its page is mapped anywhere. Nobody waits for it yet.
    pub fn create(&self, index: u32, global: Handle) {
        self.shared.store(fences::monitored(index), fence::NOBODY);
        self.shared.store(fences::handle(index), global.0);
    }

    /// Takes a fence back, after every engine has let its page go.
    pub fn destroy(&self, index: u32) {
        self.shared.store(fences::handle(index), Handle::NONE.0);
    }

    /// Sets what the CPU's waiters of a fence wait for, and returns the CurrentValue read after it, from `current`
    /// (UMS-133, UMS-137).
    pub fn monitor(&self, index: u32, smallest: Option<u64>, current: &AtomicU64) -> u64 {
        match self.shared.word(fences::monitored(index)) {
            Some(monitored) => fence::monitor(current, monitored, smallest),
            None => current.load(Ordering::Acquire),
        }
    }

    /// What was signalled since the last call.
    pub fn take_signalled(&self) -> Signalled {
        let words = [fences::SIGNALLED_WRITTEN, fences::SIGNALLED_TAKEN, fences::SIGNALLED_OVERFLOW];
        let [Some(written), Some(taken), Some(overflow)] = words.map(|word| self.shared.word(word)) else {
            return Signalled::AllWaiters;
        };
        let report = Report { written, taken, overflow, slots: fences::SIGNALLED_SLOTS };
        match report.look() {
            Payload::Impossible => Signalled::Impossible,
            Payload::AllWaiters { end } => {
                report.finish(end);
                Signalled::AllWaiters
            }
            Payload::Handles { first, end } => {
                let handles =
                    (first..end).map(|count| Handle(self.shared.load(fences::signalled(count)))).collect();
                report.finish(end);
                Signalled::Fences(handles)
            }
        }
    }

    /// Forgets what a process that was reset has said: the caller looks at all waiters.
    pub fn forget_signalled(&self) {
        self.shared.store(fences::SIGNALLED_OVERFLOW, 0);
        // Not the other way round: the daemon's own count is never the engine's word.
        self.shared.store(fences::SIGNALLED_WRITTEN, self.shared.load(fences::SIGNALLED_TAKEN));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use campanile_protocol::engine::fences;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::handshake::fence::NOBODY;

    use super::NativeFences;
    use super::SharedBlock;
    use super::Signalled;

    fn fences() -> (Arc<SharedBlock>, NativeFences) {
        let shared = Arc::new(SharedBlock::new().unwrap());
        (Arc::clone(&shared), NativeFences::new(shared))
    }

    #[test]
    fn ums_133_an_engine_knows_a_fence_and_the_value_below_the_smallest_that_is_waited_for() {
        let (shared, engine) = fences();
        engine.create(3, Handle(77));
        let told = || (shared.load(fences::handle(3)), shared.load(fences::monitored(3)));
        assert_eq!(told(), (77, NOBODY));
        let current = AtomicU64::new(5);
        assert_eq!(engine.monitor(3, Some(9), &current), 5);
        assert_eq!(told(), (77, 8));
        // What has no word is read all the same.
        assert_eq!(engine.monitor(u32::MAX, Some(9), &current), 5);
        assert_eq!(engine.monitor(3, None, &current), 5);
        assert_eq!(told(), (77, NOBODY));
        engine.destroy(3);
        assert_eq!(shared.load(fences::handle(3)), Handle::NONE.0);
    }

    #[test]
    fn ums_141_what_was_signalled_is_taken_once_and_what_a_dead_process_said_is_forgotten() {
        let (shared, engine) = fences();
        let say = |handle: u64| {
            let count = shared.load(fences::SIGNALLED_WRITTEN);
            shared.store(fences::signalled(count), handle);
            shared.store(fences::SIGNALLED_WRITTEN, count + 1);
        };
        say(5);
        say(6);
        assert_eq!(engine.take_signalled(), Signalled::Fences(vec![Handle(5), Handle(6)]));
        assert_eq!(engine.take_signalled(), Signalled::Fences(Vec::new()));
        say(7);
        shared.store(fences::SIGNALLED_OVERFLOW, 1);
        assert_eq!(engine.take_signalled(), Signalled::AllWaiters);
        assert_eq!(engine.take_signalled(), Signalled::Fences(Vec::new()), "once");
        say(8);
        shared.store(fences::SIGNALLED_OVERFLOW, 1);
        engine.forget_signalled();
        assert_eq!(engine.take_signalled(), Signalled::Fences(Vec::new()));
        say(9);
        assert_eq!(engine.take_signalled(), Signalled::Fences(vec![Handle(9)]));
        // More than fits.
        shared.store(
            fences::SIGNALLED_WRITTEN,
            shared.load(fences::SIGNALLED_TAKEN) + fences::SIGNALLED_SLOTS + 1,
        );
        assert_eq!(engine.take_signalled(), Signalled::Impossible);
        // Only the engine's words are made anew.
        let taken = shared.load(fences::SIGNALLED_TAKEN);
        engine.forget_signalled();
        assert_eq!(
            (shared.load(fences::SIGNALLED_WRITTEN), shared.load(fences::SIGNALLED_TAKEN)),
            (taken, taken)
        );
    }
}

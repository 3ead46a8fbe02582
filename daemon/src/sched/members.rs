//! The engines that take part in turns: what was given to each, and what its words say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::adapter::process::GrantHandle;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::log_limit;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_protocol::engine::block::GRANT;
use campanile_protocol::engine::block::PROGRESS;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::scheduling::CONTENDED;
use campanile_protocol::engine::scheduling::HURRIED;
use campanile_protocol::handshake::grant::Given;
use campanile_protocol::handshake::grant::Phase;

use super::alarm::Alarm;
use super::alarm::Hang;
use super::bells::Bells;
use super::hearing::FRUITFUL;
use super::hearing::FRUITLESS;
use super::hearing::Hearing;
use super::hearing::LOOK;
use super::share::Share;
use super::suspends::Expected;
use super::turns::EngineId;
use super::turns::Operation;

/// An engine. Whoever adds one starts its process before, or has it over a word that is `{IDLE, 0}`.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) at: EngineAddress,
    pub(super) handle: GrantHandle,
    pub(super) alarm: Arc<Alarm>,
    pub(super) timeout: Option<Duration>,
    pub(super) share: Share,
    pub(super) held: Duration,
    given: Given,
    /// As it was when a signal was last judged.
    given_before: Given,
    /// It broke the protocol: nothing that it stores counts any more, and its process is to end.
    is_broken: bool,
    hearing: Hearing,
    /// How much may be logged for its VM.
    log: Option<Arc<LogLimit>>,
}

impl Member {
    pub(super) fn new(
        at: EngineAddress,
        handle: GrantHandle,
        alarm: Arc<Alarm>,
        timeout: Option<Duration>,
        share: Share,
    ) -> Self {
        let given = Given::default();
        let (held, hearing) = (Duration::ZERO, Hearing::default());
        Self {
            at,
            handle,
            alarm,
            timeout,
            share,
            held,
            given,
            given_before: given,
            is_broken: false,
            hearing,
            log: LogLimit::of_thread(),
        }
    }

    fn load(&self, offset: u64) -> u64 {
        self.handle.shared.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Where it is with its node, as its word says it and as it may say it. The first breach raises the alarm; from then on it keeps
    /// the node that it had, or wants none.
    pub(super) fn look(&mut self) -> Phase {
        let judged = match self.handle.shared.word(GRANT) {
            Some(word) if !self.is_broken => self.given.look(word),
            _ if self.given.holds() => return Phase::Revoking,
            _ => return Phase::Idle,
        };
        judged.unwrap_or_else(|breach| {
            self.raise(Hang::BrokenProtocol(breach), self.progress());
            self.is_broken = true;
            self.look()
        })
    }

    pub(super) fn progress(&self) -> Progress {
        Progress::from_word(self.load(PROGRESS))
    }

    /// Raises its alarm. Nothing else is said of one that broke the protocol.
    pub(super) fn raise(&self, hang: Hang, progress: Progress) {
        if !self.is_broken {
            self.alarm.raise(hang, progress);
        }
    }

    /// A signal of it led to what was done since the last, or a step of the supervisor found it gone on. True where it is not to
    /// be listened to from now on.
    fn spend(&mut self, now: Duration) -> bool {
        let cost = if self.given == self.given_before { FRUITLESS } else { FRUITFUL };
        self.given_before = self.given;
        self.hearing.spend(cost, now)
    }

    fn listen(&self, bells: &Bells, engine: EngineId, listens: bool) {
        if let Err(error) = bells.set_listens(engine, &self.handle.asks, listens) {
            log_limit::within(self.log.clone(), || {
                log::warn!("{} engine {} of the supervisor: {error}", self.at, engine.0);
            });
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) next: u64,
    pub(super) engines: BTreeMap<EngineId, Member>,
    pub(super) gone: Vec<EngineId>,
    pub(super) new: Vec<EngineId>,
    pub(super) expected: Vec<Expected>,
    pub(super) stop: bool,
}

impl Members {
    /// A word of an engine; 0 where it is gone.
    pub(super) fn load(&self, engine: EngineId, offset: u64) -> u64 {
        self.engines.get(&engine).map_or(0, |member| member.load(offset))
    }

    /// Where each engine is with its node.
    pub(super) fn look(&mut self) -> BTreeMap<EngineId, Phase> {
        self.engines.iter_mut().map(|(&engine, member)| (engine, member.look())).collect()
    }

    /// After everything was looked at for these signals. Mutes engines that signal for nothing, and listens again to those that were
    /// muted long enough. When to look again, where an engine is muted.
    pub(super) fn hear(&mut self, bells: &Bells, signalled: &[EngineId], now: Duration) -> Option<Duration> {
        for (&engine, member) in &mut self.engines {
            if member.hearing.is_forgiven(now) {
                member.listen(bells, engine, true);
            }
            if signalled.contains(&engine) && member.spend(now) {
                member.listen(bells, engine, false);
            }
        }
        self.engines.values().any(|member| member.hearing.is_muted()).then_some(now + LOOK)
    }

    /// An engine was faster than a step of the supervisor. When to decide again.
    pub(super) fn outrun(&mut self, bells: &Bells, engine: EngineId, now: Duration) -> Duration {
        let Some(member) = self.engines.get_mut(&engine) else { return now };
        if member.spend(now) {
            member.listen(bells, engine, false);
        }
        if member.hearing.is_muted() { now + LOOK } else { now }
    }

    /// Carries an operation out; where the engine was faster, which.
    pub(super) fn apply(&mut self, operation: Operation) -> Result<(), EngineId> {
        let (Operation::Give(engine)
        | Operation::Revoke(engine)
        | Operation::Hurry(engine)
        | Operation::Reclaim(engine)
        | Operation::Contend(engine, _)
        | Operation::Hung(engine)) = operation;
        let Some(member) = self.engines.get_mut(&engine).filter(|member| !member.is_broken) else {
            return Ok(());
        };
        let shared = Arc::clone(&member.handle.shared);
        let Some(word) = shared.word(GRANT) else { return Ok(()) };
        let is_done = match operation {
            Operation::Give(_) => member.given.give(word),
            Operation::Revoke(_) => member.given.revoke(word),
            Operation::Hurry(_) => {
                if let Some(word) = shared.word(HURRIED) {
                    word.fetch_add(1, Ordering::Release);
                }
                return Ok(());
            }
            // Let it sleep: it asks when it has work.
            Operation::Reclaim(_) => return member.given.reclaim(word).then_some(()).ok_or(engine),
            Operation::Hung(_) => {
                member.raise(Hang::NotYielded, member.progress());
                true
            }
            Operation::Contend(_, is_contended) => {
                if let Some(word) = shared.word(CONTENDED) {
                    word.store(u64::from(is_contended), Ordering::Release);
                }
                return Ok(());
            }
        };
        member.handle.wake.signal();
        is_done.then_some(()).ok_or(engine)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::event::Event;
    use campanile_host_gpu::memory::mapping::Access;
    use campanile_host_gpu::memory::mapping::Mapping;
    use campanile_host_gpu::memory::vram::create_memfd;
    use campanile_protocol::engine::block::BLOCK_BYTES;
    use campanile_protocol::handshake::grant;
    use campanile_protocol::handshake::grant::Grant;

    use super::Alarm;
    use super::Bells;
    use super::CONTENDED;
    use super::EngineAddress;
    use super::EngineId;
    use super::GRANT;
    use super::GrantHandle;
    use super::HURRIED;
    use super::Hang;
    use super::LOOK;
    use super::Member;
    use super::Members;
    use super::Operation;
    use super::Phase;
    use super::Share;

    const A: EngineId = EngineId(1);
    const B: EngineId = EngineId(2);
    const NOW: Duration = Duration::from_secs(7);

    /// Two engines without processes, which are listened to.
    fn members() -> (Members, Bells) {
        let (mut members, bells) = (Members::default(), Bells::new().unwrap());
        for engine in [A, B] {
            let file: File = create_memfd("block", BLOCK_BYTES).unwrap();
            let shared = Arc::new(Mapping::new(file, 0, BLOCK_BYTES, Access::ReadWrite).unwrap());
            let [wake, asks] = [(); 2].map(|()| Arc::new(Event::new().unwrap()));
            bells.listen(engine, &asks).unwrap();
            let (at, alarm) = (EngineAddress::new(0, NodeKind::Copy), Arc::new(Alarm::new().unwrap()));
            let handle = GrantHandle { shared, wake, asks };
            members.engines.insert(engine, Member::new(at, handle, alarm, None, Share::default()));
        }
        (members, bells)
    }

    fn store(members: &Members, engine: EngineId, offset: u64, value: u64) {
        let shared = &members.engines[&engine].handle.shared;
        shared.word(offset).unwrap().store(value, Ordering::Release);
    }

    fn asks(members: &Members, engine: EngineId) {
        let word = members.engines[&engine].handle.shared.word(GRANT).unwrap();
        assert_eq!(grant::take_turn(word), grant::Turn::Ask);
    }

    /// Whether a signal of an engine is heard.
    fn is_heard(members: &Members, bells: &Bells, engine: EngineId) -> bool {
        members.engines[&engine].handle.asks.signal();
        bells.wait(Some(Duration::ZERO)).contains(&engine)
    }

    #[test]
    fn an_engine_that_is_always_faster_than_the_supervisor_is_muted_and_looked_at_less_often() {
        let (mut members, bells) = members();
        let count = (0..10_000).take_while(|_| members.outrun(&bells, A, NOW) == NOW).count();
        assert_eq!(count, 100, "decided at once, until it has spent its budget");
        assert_eq!(members.outrun(&bells, A, NOW), NOW + LOOK);
        assert!(!is_heard(&members, &bells, A) && is_heard(&members, &bells, B));
        assert_eq!(members.outrun(&bells, B, NOW), NOW, "each spends its own");
        assert_eq!(members.outrun(&bells, EngineId(9), NOW), NOW);
    }

    #[test]
    fn an_engine_that_signals_for_nothing_is_muted_and_others_and_those_that_get_on_are_not() {
        let (mut members, bells) = members();
        asks(&members, B);
        for _ in 0..100 {
            assert_eq!(members.hear(&bells, &[A], NOW), None);
        }
        assert_eq!(members.hear(&bells, &[A, B], NOW), Some(NOW + LOOK), "looked at though it is not heard");
        assert!(!is_heard(&members, &bells, A) && is_heard(&members, &bells, B));
        assert_eq!(members.hear(&bells, &[], NOW + LOOK), Some(NOW + LOOK * 2));
        assert_eq!(members.hear(&bells, &[], NOW + super::super::hearing::WINDOW), None);
        assert!(is_heard(&members, &bells, A), "it is forgiven");
        // Each signal of this one led to a step.
        for _ in 0..150 {
            assert_eq!(members.apply(Operation::Give(B)), Ok(()));
            assert_eq!(members.hear(&bells, &[B], NOW), None);
            let word = members.engines[&B].handle.shared.word(GRANT).unwrap();
            assert!(grant::release(word));
            assert_eq!(members.look()[&B], Phase::Idle);
            asks(&members, B);
            assert_eq!(members.hear(&bells, &[B], NOW), None);
        }
    }

    #[test]
    fn an_operation_changes_the_words_of_its_engine_and_wakes_it_where_it_has_to_act() {
        let (mut members, _bells) = members();
        let wakes = |members: &Members| [A, B].map(|engine| members.engines[&engine].handle.wake.drain());
        let words = |members: &Members, offset| [A, B].map(|engine| members.load(engine, offset));
        assert_eq!(members.apply(Operation::Contend(A, true)), Ok(()));
        assert_eq!((words(&members, CONTENDED), wakes(&members)), ([1, 0], [false; 2]));
        assert_eq!(members.apply(Operation::Contend(A, false)), Ok(()));
        assert_eq!(words(&members, CONTENDED), [0, 0]);
        for count in 1..=2 {
            assert_eq!(members.apply(Operation::Hurry(B)), Ok(()));
            assert_eq!((words(&members, HURRIED), wakes(&members)), ([0, count], [false; 2]));
        }
        // It does not want its node, does not have it, does not sleep with it.
        for operation in [Operation::Give(A), Operation::Revoke(A), Operation::Reclaim(A)] {
            assert_eq!(members.apply(operation), Err(A), "{operation:?}");
        }
        assert!(wakes(&members)[0], "it is woken to look at its word");
        asks(&members, A);
        let word = |phase, generation| Grant { phase, generation }.word();
        assert_eq!(members.apply(Operation::Give(A)), Ok(()));
        assert_eq!((words(&members, GRANT), wakes(&members)), ([word(Phase::Granted, 1), 0], [true, false]));
        assert!(grant::park(members.engines[&A].handle.shared.word(GRANT).unwrap()));
        assert_eq!(members.apply(Operation::Reclaim(A)), Ok(()));
        assert_eq!((words(&members, GRANT), wakes(&members)), ([word(Phase::Idle, 1), 0], [false; 2]));
        asks(&members, A);
        assert_eq!(members.apply(Operation::Give(A)), Ok(()));
        assert_eq!(members.apply(Operation::Revoke(A)), Ok(()));
        assert_eq!(words(&members, GRANT), [word(Phase::Revoking, 2), 0]);
        assert_eq!(members.apply(Operation::Hung(A)), Ok(()));
        assert_eq!(members.engines[&A].alarm.take().map(|it| it.hang), Some(Hang::NotYielded));
        assert_eq!(members.engines[&B].alarm.take(), None);
        assert_eq!(members.apply(Operation::Give(EngineId(9))), Ok(()), "one that is gone");
    }

    #[test]
    fn a_word_of_another_generation_or_phase_than_was_given_breaks_the_protocol_for_good() {
        let (mut members, _bells) = members();
        let word = |phase, generation| Grant { phase, generation }.word();
        asks(&members, A);
        assert_eq!(members.apply(Operation::Give(A)), Ok(()));
        store(&members, A, GRANT, word(Phase::Granted, 2));
        assert_eq!(members.look()[&A], Phase::Revoking, "it keeps the node that it had");
        assert!(matches!(members.engines[&A].alarm.take().unwrap().hang, Hang::BrokenProtocol(_)));
        store(&members, B, GRANT, word(Phase::Granted, 0));
        assert_eq!(members.look()[&B], Phase::Idle, "it had none");
        assert!(matches!(members.engines[&B].alarm.take().unwrap().hang, Hang::BrokenProtocol(_)));
        // What they store from now on is neither read nor answered, and nothing more is said of them.
        store(&members, A, GRANT, word(Phase::Idle, 1));
        store(&members, B, GRANT, word(Phase::Want, 0));
        assert_eq!(members.look().into_values().collect::<Vec<_>>(), [Phase::Revoking, Phase::Idle]);
        for operation in [Operation::Give(B), Operation::Hung(A), Operation::Contend(B, true)] {
            assert_eq!(members.apply(operation), Ok(()), "{operation:?}");
        }
        assert_eq!((members.load(B, GRANT), members.load(B, CONTENDED)), (word(Phase::Want, 0), 0));
        assert_eq!([A, B].map(|engine| members.engines[&engine].alarm.take()), [None; 2]);
    }
}

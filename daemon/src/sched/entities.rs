//! The scheduling entities of the supervisor, one an engine: what was granted to each, and what its words say.

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
use campanile_protocol::engine::scheduling::LATENCY_BOOSTS;
use campanile_protocol::handshake::grant::Breach;
use campanile_protocol::handshake::grant::Given;
use campanile_protocol::handshake::grant::Phase;

use super::alarm::Alarm;
use super::alarm::Hang;
use super::measures::Measures;
use super::measures::Times;
use super::schedule::Participant;
use super::share::Share;
use super::signal_budget::FRUITFUL;
use super::signal_budget::FRUITLESS;
use super::signal_budget::LOOK;
use super::signal_budget::SignalBudget;
use super::suspends::Expected;
use super::turns::EngineId;
use super::turns::Operation;
use super::wake_sources::WakeSources;

/// An engine.
#[derive(Debug)]
pub(super) struct Entity {
    pub(super) at: EngineAddress,
    pub(super) handle: GrantHandle,
    pub(super) alarm: Arc<Alarm>,
    pub(super) timeout: Option<Duration>,
    pub(super) share: Share,
    pub(super) held: Duration,
    /// Where its time is added up.
    pub(super) measures: Option<Arc<dyn Measures>>,
    given: Given,
    /// When it was asked to yield its node, which it has not done yet.
    asked: Option<Duration>,
    /// `given` when a signal was last charged.
    given_before: Given,
    /// It broke the protocol: nothing that it stores counts any more, and its process is to end.
    is_broken: bool,
    budget: SignalBudget,
    /// The limit of log lines of its VM.
    log: Option<Arc<LogLimit>>,
}

impl Entity {
    /// One that has so much already.
    pub(super) fn new(participant: Participant, given: Given) -> Self {
        let Participant { at, handle, alarm, timeout, share } = participant;
        let (held, budget) = (Duration::ZERO, SignalBudget::default());
        Self {
            at,
            handle,
            alarm,
            timeout,
            share,
            held,
            measures: None,
            given,
            asked: None,
            given_before: given,
            is_broken: false,
            budget,
            log: LogLimit::of_thread(),
        }
    }

    /// Whether it has its node, by what was given to it.
    pub(super) fn holds(&self) -> bool {
        self.given.holds()
    }

    /// It says that it has its node, which another one has: it is to end.
    pub(super) fn refuse_node(&mut self) {
        let word = self.load(GRANT);
        self.given = self.given.without_node();
        self.raise(Hang::BrokenProtocol(Breach { word, given: self.given }), self.progress());
        self.is_broken = true;
    }

    fn load(&self, offset: u64) -> u64 {
        self.handle.shared.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// The phase in its grant word, where that is one that may follow what was granted. The first breach raises the alarm; from then
    /// on the engine counts as a holder that does not yield, if it had the node, and else as idle.
    pub(super) fn look(&mut self, now: Duration) -> Phase {
        let phase = self.judge();
        if !self.given.holds() {
            self.note_yield(now);
        }
        if let Some(measures) = &self.measures {
            measures.set_keeps(phase == Phase::Revoking);
        }
        phase
    }

    /// It does not have its node any more, at the latest since `now`.
    pub(super) fn note_yield(&mut self, now: Duration) {
        if let (Some(asked), Some(measures)) = (self.asked.take(), &self.measures) {
            measures.note_yield(now.saturating_sub(asked));
        }
    }

    fn judge(&mut self) -> Phase {
        let judged = match self.handle.shared.word(GRANT) {
            Some(word) if !self.is_broken => self.given.look(word),
            _ if self.given.holds() => return Phase::Revoking,
            _ => return Phase::Idle,
        };
        judged.unwrap_or_else(|breach| {
            self.raise(Hang::BrokenProtocol(breach), self.progress());
            self.is_broken = true;
            self.judge()
        })
    }

    pub(super) fn progress(&self) -> Progress {
        Progress::from_word(self.load(PROGRESS))
    }

    /// Raises its alarm, unless a breach has raised it before.
    pub(super) fn raise(&self, hang: Hang, progress: Progress) {
        if !self.is_broken {
            self.alarm.raise(hang, progress);
        }
    }

    /// Charges a signal by what was granted since the last one, or a step of the supervisor that it made void. True where it is
    /// to be muted from now on.
    fn spend(&mut self, now: Duration) -> bool {
        let cost = if self.given == self.given_before { FRUITLESS } else { FRUITFUL };
        self.given_before = self.given;
        self.budget.spend(cost, now)
    }

    fn set_watched(&self, wake_sources: &WakeSources, engine: EngineId, is_watched: bool) {
        if let Err(error) = wake_sources.set_watched(engine, &self.handle.asks, is_watched) {
            log_limit::within(self.log.clone(), || {
                log::warn!("{} engine {} of the supervisor: {error}", self.at, engine.0);
            });
        }
    }
}

impl Entity {
    /// It has had its node for so long, up to now.
    pub(super) fn set_held(&mut self, held: Duration) {
        let more = held.saturating_sub(std::mem::replace(&mut self.held, held));
        self.measure(Times { held: more, ..Times::default() });
    }

    pub(super) fn measure(&self, times: Times) {
        if let Some(measures) = &self.measures {
            measures.add(times);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Entities {
    pub(super) next: u64,
    pub(super) engines: BTreeMap<EngineId, Entity>,
    pub(super) gone: Vec<EngineId>,
    pub(super) new: Vec<EngineId>,
    /// Those with another timeout or share than the turns know.
    pub(super) tuned: Vec<EngineId>,
    pub(super) expected: Vec<Expected>,
    /// No turns are given for now: engines that have their nodes may not be known yet.
    pub(super) is_held_back: bool,
    pub(super) stop: bool,
}

impl Entities {
    /// A word of an engine; 0 where it is gone.
    pub(super) fn load(&self, engine: EngineId, offset: u64) -> u64 {
        self.engines.get(&engine).map_or(0, |entity| entity.load(offset))
    }

    /// The phase of each engine's grant word, `now`.
    pub(super) fn look(&mut self, now: Duration) -> BTreeMap<EngineId, Phase> {
        self.engines.iter_mut().map(|(&engine, entity)| (engine, entity.look(now))).collect()
    }

    /// Those that want their node or have it, by their phases.
    pub(super) fn wanting(
        &self,
        phases: &BTreeMap<EngineId, Phase>,
    ) -> impl Iterator<Item = (EngineId, EngineAddress, Share)> {
        let wanting = phases.iter().filter(|(_, phase)| !matches!(phase, Phase::Idle | Phase::Parked));
        wanting.filter_map(|(&engine, _)| {
            self.engines.get(&engine).map(|entity| (engine, entity.at, entity.share))
        })
    }

    /// Charges these signals, after all engines were examined for them. Mutes engines that have spent their budgets, and unmutes
    /// those whose time is over. Returns when to look again, where an engine is muted.
    pub(super) fn charge_signals(
        &mut self,
        wake_sources: &WakeSources,
        signalled: &[EngineId],
        now: Duration,
    ) -> Option<Duration> {
        for (&engine, entity) in &mut self.engines {
            if entity.budget.ends_mute(now) {
                entity.set_watched(wake_sources, engine, true);
            }
            if signalled.contains(&engine) && entity.spend(now) {
                entity.set_watched(wake_sources, engine, false);
            }
        }
        self.engines.values().any(|entity| entity.budget.is_muted()).then_some(now + LOOK)
    }

    /// Charges an engine that changed its word before a step of the supervisor. Returns when to decide again.
    pub(super) fn outrun(&mut self, wake_sources: &WakeSources, engine: EngineId, now: Duration) -> Duration {
        let Some(entity) = self.engines.get_mut(&engine) else { return now };
        if entity.spend(now) {
            entity.set_watched(wake_sources, engine, false);
        }
        if entity.budget.is_muted() { now + LOOK } else { now }
    }

    /// Carries out an operation that was decided `now`. The error is the engine that changed its word before.
    pub(super) fn apply(&mut self, operation: Operation, now: Duration) -> Result<(), EngineId> {
        let (Operation::Give(engine)
        | Operation::Revoke(engine)
        | Operation::Boost(engine)
        | Operation::Reclaim(engine)
        | Operation::Contend(engine, _)
        | Operation::Hung(engine)) = operation;
        let Some(entity) = self.engines.get_mut(&engine).filter(|entity| !entity.is_broken) else {
            return Ok(());
        };
        let shared = Arc::clone(&entity.handle.shared);
        let Some(word) = shared.word(GRANT) else { return Ok(()) };
        let is_done = match operation {
            Operation::Give(_) => entity.given.give(word),
            Operation::Revoke(_) => {
                let is_asked = entity.given.revoke(word);
                entity.asked = is_asked.then_some(now).or(entity.asked);
                is_asked
            }
            Operation::Boost(_) => {
                if let Some(word) = shared.word(LATENCY_BOOSTS) {
                    word.fetch_add(1, Ordering::Release);
                }
                return Ok(());
            }
            // It sleeps on: it asks when it has work.
            Operation::Reclaim(_) => return entity.given.reclaim(word).then_some(()).ok_or(engine),
            Operation::Hung(_) => {
                entity.raise(Hang::NotYielded, entity.progress());
                true
            }
            Operation::Contend(_, is_contended) => {
                if let Some(word) = shared.word(CONTENDED) {
                    word.store(u64::from(is_contended), Ordering::Release);
                }
                return Ok(());
            }
        };
        entity.handle.wake.signal();
        is_done.then_some(()).ok_or(engine)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_protocol::handshake::grant;
    use campanile_protocol::handshake::grant::Grant;

    use super::CONTENDED;
    use super::EngineAddress;
    use super::EngineId;
    use super::Entities;
    use super::Entity;
    use super::GRANT;
    use super::Given;
    use super::Hang;
    use super::LATENCY_BOOSTS;
    use super::LOOK;
    use super::Operation;
    use super::Phase;
    use super::Share;
    use super::Times;
    use super::WakeSources;
    use crate::sched::meter::Meters;
    use crate::sched::meter::Preemption;
    use crate::sched::testing::participant;

    const A: EngineId = EngineId(1);
    const B: EngineId = EngineId(2);
    const NOW: Duration = Duration::from_secs(7);

    /// Two engines without processes, whose eventfds are watched.
    fn entities() -> (Entities, WakeSources) {
        let (mut entities, wake_sources) = (Entities::default(), WakeSources::new().unwrap());
        for engine in [A, B] {
            let participant = participant(EngineAddress::new(0, NodeKind::Copy));
            wake_sources.watch(engine, &participant.handle.asks).unwrap();
            entities.engines.insert(engine, Entity::new(participant, Given::default()));
        }
        (entities, wake_sources)
    }

    fn store(entities: &Entities, engine: EngineId, offset: u64, value: u64) {
        let shared = &entities.engines[&engine].handle.shared;
        shared.word(offset).unwrap().store(value, Ordering::Release);
    }

    fn asks(entities: &Entities, engine: EngineId) {
        let word = entities.engines[&engine].handle.shared.word(GRANT).unwrap();
        assert_eq!(grant::take_turn(word), grant::Turn::Ask);
    }

    /// Whether a signal of an engine wakes the supervisor.
    fn wakes_supervisor(entities: &Entities, wake_sources: &WakeSources, engine: EngineId) -> bool {
        entities.engines[&engine].handle.asks.signal();
        wake_sources.wait(Some(Duration::ZERO)).contains(&engine)
    }

    #[test]
    fn an_engine_that_is_always_faster_than_the_supervisor_is_muted_and_looked_at_less_often() {
        let (mut entities, wake_sources) = entities();
        let count = (0..10_000).take_while(|_| entities.outrun(&wake_sources, A, NOW) == NOW).count();
        assert_eq!(count, 100, "decided at once, until it has spent its budget");
        assert_eq!(entities.outrun(&wake_sources, A, NOW), NOW + LOOK);
        assert!(
            !wakes_supervisor(&entities, &wake_sources, A) && wakes_supervisor(&entities, &wake_sources, B)
        );
        assert_eq!(entities.outrun(&wake_sources, B, NOW), NOW, "each spends its own");
        assert_eq!(entities.outrun(&wake_sources, EngineId(9), NOW), NOW);
    }

    #[test]
    fn an_engine_that_signals_for_nothing_is_muted_and_others_and_those_that_get_on_are_not() {
        let (mut entities, wake_sources) = entities();
        asks(&entities, B);
        for _ in 0..100 {
            assert_eq!(entities.charge_signals(&wake_sources, &[A], NOW), None);
        }
        assert_eq!(
            entities.charge_signals(&wake_sources, &[A, B], NOW),
            Some(NOW + LOOK),
            "its word is read though it is muted"
        );
        assert!(
            !wakes_supervisor(&entities, &wake_sources, A) && wakes_supervisor(&entities, &wake_sources, B)
        );
        assert_eq!(entities.charge_signals(&wake_sources, &[], NOW + LOOK), Some(NOW + LOOK * 2));
        assert_eq!(
            entities.charge_signals(&wake_sources, &[], NOW + super::super::signal_budget::WINDOW),
            None
        );
        assert!(wakes_supervisor(&entities, &wake_sources, A), "it is unmuted");
        // Each signal of this one led to a step.
        for _ in 0..150 {
            assert_eq!(entities.apply(Operation::Give(B), NOW), Ok(()));
            assert_eq!(entities.charge_signals(&wake_sources, &[B], NOW), None);
            let word = entities.engines[&B].handle.shared.word(GRANT).unwrap();
            assert!(grant::release(word));
            assert_eq!(entities.look(NOW)[&B], Phase::Idle);
            asks(&entities, B);
            assert_eq!(entities.charge_signals(&wake_sources, &[B], NOW), None);
        }
    }

    #[test]
    fn an_operation_changes_the_words_of_its_engine_and_wakes_it_where_it_has_to_act() {
        let (mut entities, _wake_sources) = entities();
        let wakes = |entities: &Entities| [A, B].map(|engine| entities.engines[&engine].handle.wake.drain());
        let words = |entities: &Entities, offset| [A, B].map(|engine| entities.load(engine, offset));
        assert_eq!(entities.apply(Operation::Contend(A, true), NOW), Ok(()));
        assert_eq!((words(&entities, CONTENDED), wakes(&entities)), ([1, 0], [false; 2]));
        assert_eq!(entities.apply(Operation::Contend(A, false), NOW), Ok(()));
        assert_eq!(words(&entities, CONTENDED), [0, 0]);
        for count in 1..=2 {
            assert_eq!(entities.apply(Operation::Boost(B), NOW), Ok(()));
            assert_eq!((words(&entities, LATENCY_BOOSTS), wakes(&entities)), ([0, count], [false; 2]));
        }
        // It does not want its node, does not have it, does not sleep with it.
        for operation in [Operation::Give(A), Operation::Revoke(A), Operation::Reclaim(A)] {
            assert_eq!(entities.apply(operation, NOW), Err(A), "{operation:?}");
        }
        assert!(wakes(&entities)[0], "it is woken to look at its word");
        asks(&entities, A);
        let word = |phase, generation| Grant { phase, generation }.word();
        assert_eq!(entities.apply(Operation::Give(A), NOW), Ok(()));
        assert_eq!(
            (words(&entities, GRANT), wakes(&entities)),
            ([word(Phase::Granted, 1), 0], [true, false])
        );
        assert!(grant::park(entities.engines[&A].handle.shared.word(GRANT).unwrap()));
        assert_eq!(entities.apply(Operation::Reclaim(A), NOW), Ok(()));
        assert_eq!((words(&entities, GRANT), wakes(&entities)), ([word(Phase::Idle, 1), 0], [false; 2]));
        asks(&entities, A);
        assert_eq!(entities.apply(Operation::Give(A), NOW), Ok(()));
        assert_eq!(entities.apply(Operation::Revoke(A), NOW), Ok(()));
        assert_eq!(words(&entities, GRANT), [word(Phase::Revoking, 2), 0]);
        assert_eq!(entities.apply(Operation::Hung(A), NOW), Ok(()));
        assert_eq!(entities.engines[&A].alarm.take().map(|it| it.hang), Some(Hang::NotYielded));
        assert_eq!(entities.engines[&B].alarm.take(), None);
        assert_eq!(entities.apply(Operation::Give(EngineId(9)), NOW), Ok(()), "one that is gone");
    }

    #[test]
    fn a_word_of_another_generation_or_phase_than_was_given_breaks_the_protocol_for_good() {
        let (mut entities, _wake_sources) = entities();
        let word = |phase, generation| Grant { phase, generation }.word();
        asks(&entities, A);
        assert_eq!(entities.apply(Operation::Give(A), NOW), Ok(()));
        store(&entities, A, GRANT, word(Phase::Granted, 2));
        assert_eq!(entities.look(NOW)[&A], Phase::Revoking, "it keeps the node that it had");
        assert!(matches!(entities.engines[&A].alarm.take().unwrap().hang, Hang::BrokenProtocol(_)));
        store(&entities, B, GRANT, word(Phase::Granted, 0));
        assert_eq!(entities.look(NOW)[&B], Phase::Idle, "it had none");
        assert!(matches!(entities.engines[&B].alarm.take().unwrap().hang, Hang::BrokenProtocol(_)));
        // What they store from now on is neither read nor answered, and nothing more is said of them.
        store(&entities, A, GRANT, word(Phase::Idle, 1));
        store(&entities, B, GRANT, word(Phase::Want, 0));
        assert_eq!(entities.look(NOW).into_values().collect::<Vec<_>>(), [Phase::Revoking, Phase::Idle]);
        for operation in [Operation::Give(B), Operation::Hung(A), Operation::Contend(B, true)] {
            assert_eq!(entities.apply(operation, NOW), Ok(()), "{operation:?}");
        }
        assert_eq!((entities.load(B, GRANT), entities.load(B, CONTENDED)), (word(Phase::Want, 0), 0));
        assert_eq!([A, B].map(|engine| entities.engines[&engine].alarm.take()), [None; 2]);
    }

    #[test]
    fn a_yield_takes_from_when_it_is_asked_for_until_the_node_is_free() {
        let (mut entities, _wake_sources) = entities();
        let meters = Arc::new(Meters::default());
        let entity = entities.engines.get_mut(&A).unwrap();
        entity.measures = Some(meters.begin(entity.at, &entity.handle.shared));
        let yields = || {
            let seen = meters.preemptions(EngineAddress::new(0, NodeKind::Copy), Preemption::Yield);
            (seen.buckets.iter().sum::<u64>(), seen.sum)
        };
        let later = |milliseconds| NOW + Duration::from_millis(milliseconds);
        let gives_back: [fn(&AtomicU64) -> bool; 2] = [grant::yield_turn, grant::release];
        asks(&entities, A);
        for (count, (gives_back, took)) in (1..).zip(gives_back.into_iter().zip([5, 7])) {
            let before = yields();
            assert_eq!(entities.apply(Operation::Give(A), NOW), Ok(()));
            assert_eq!(entities.apply(Operation::Revoke(A), NOW), Ok(()));
            assert_eq!(entities.apply(Operation::Revoke(A), later(1)), Err(A), "it was asked before");
            assert_eq!(entities.look(later(2))[&A], Phase::Revoking);
            assert_eq!(yields(), before, "it has not yielded yet");
            assert!(gives_back(entities.engines[&A].handle.shared.word(GRANT).unwrap()));
            let _phases = (entities.look(later(took)), entities.look(later(9)));
            assert_eq!(yields(), (count, before.1 + Duration::from_millis(took)));
        }
        // What it gives back by itself is no preemption.
        asks(&entities, A);
        assert_eq!(entities.apply(Operation::Give(A), NOW), Ok(()));
        assert!(grant::release(entities.engines[&A].handle.shared.word(GRANT).unwrap()));
        assert_eq!((entities.look(later(9))[&A], yields().0), (Phase::Idle, 2));
        // One that breaks the protocol has its node until it ends.
        asks(&entities, A);
        assert_eq!(entities.apply(Operation::Give(A), NOW), Ok(()));
        assert_eq!(entities.apply(Operation::Revoke(A), NOW), Ok(()));
        store(&entities, A, GRANT, 0);
        assert_eq!((entities.look(later(9))[&A], yields().0), (Phase::Revoking, 2));
        entities.engines.get_mut(&A).unwrap().note_yield(later(30));
        assert_eq!(yields(), (3, Duration::from_millis(5 + 7 + 30)));
    }

    #[test]
    fn what_an_engine_has_had_of_its_node_is_added_up_once_it_is_metered_by_what_is_new_of_it() {
        let (mut entities, _wake_sources) = entities();
        let meters = Arc::new(Meters::default());
        let times = |held, due| {
            let [held, due] = [held, due].map(Duration::from_millis);
            Times { held, due, ..Times::default() }
        };
        let entity = entities.engines.get_mut(&A).unwrap();
        entity.set_held(Duration::from_millis(3));
        entity.measures = Some(meters.begin(entity.at, &entity.handle.shared));
        for held in [5, 9, 9] {
            entity.set_held(Duration::from_millis(held));
            assert_eq!(
                (entity.held, meters.times(entity.at)),
                (Duration::from_millis(held), times(held - 3, 0))
            );
        }
        entity.measure(times(0, 7));
        assert_eq!(meters.times(entity.at), times(6, 7));
    }

    #[test]
    fn an_engine_wants_its_node_or_has_it_unless_it_is_idle_or_sleeps_with_it() {
        let (entities, _wake_sources) = entities();
        let wanting = |phase| {
            let phases = [(A, phase), (B, Phase::Want), (EngineId(9), phase)].into();
            entities.wanting(&phases).map(|(engine, at, share)| (engine, at.node, share)).collect::<Vec<_>>()
        };
        let [first, second] = [A, B].map(|engine| (engine, NodeKind::Copy, Share::default()));
        for phase in [Phase::Want, Phase::Granted, Phase::Revoking, Phase::Yielded] {
            assert_eq!(wanting(phase), [first, second], "{phase:?}");
        }
        for phase in [Phase::Idle, Phase::Parked] {
            assert_eq!(wanting(phase), [second], "{phase:?}");
        }
    }
}

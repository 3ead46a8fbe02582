//! The thread that runs [`super::turns`]: it waits, reads the words of all engines, decides, and writes grant words.

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::cpu_slice;
use campanile_host_gpu::essential_thread;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::node::clock;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_protocol::engine::block::context_report;
use campanile_protocol::engine::scheduling::REALTIME;
use campanile_protocol::engine::scheduling::URGENCY;
use campanile_protocol::engine::scheduling::Urgency;
use campanile_protocol::handshake::grant::Given;
use campanile_protocol::handshake::grant::Phase;

use super::alarm::Hang;
use super::awake::Awake;
use super::entities::Entities;
use super::entities::Entity;
use super::measures::Measures;
use super::meter::Dues;
use super::meter::Meters;
use super::schedule::Participant;
use super::schedule::Schedule;
use super::share::Share;
use super::suspends::Expected;
use super::suspends::Suspends;
use super::turns::EngineId;
use super::turns::Operation;
use super::turns::Turns;
use super::wake_sources::WakeSources;
use super::watchdog::Verdict;
use super::watchdog::Watchdog;

/// The supervisor. Dropping the last handle ends its thread.
#[derive(Debug)]
pub struct Supervisor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The times of the supervisor count from then.
    begun: Instant,
    wake_sources: WakeSources,
    entities: Mutex<Entities>,
    /// Rounds of its thread.
    rounds: AtomicU64,
}

impl Shared {
    /// Held for short changes of the set of engines only, never while a thread waits.
    fn lock(&self) -> MutexGuard<'_, Entities> {
        self.entities.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supervisor {
    /// Starts the thread, which gives turns by `policy`; NORMAL gets `normal_share` percent while FOCUS has work (PRE-68), and
    /// CPUs stay `awake` while realtime work comes.
    ///
    /// A panic of that thread ends the process: without it engines would never get a turn again, and no timeout would be seen.
    ///
    /// # Errors
    /// No thread or eventfd could be had.
    pub fn start<F>(policy: Choice, normal_share: u32, awake: Awake<F>) -> io::Result<Self>
    where
        F: Write + Send + 'static,
    {
        let (begun, wake_sources) = (Instant::now(), WakeSources::new()?);
        let (entities, rounds) = (Mutex::default(), AtomicU64::new(0));
        let shared = Arc::new(Shared { begun, wake_sources, entities, rounds });
        let its = Arc::clone(&shared);
        let thread = essential_thread::spawn("supervisor", move || {
            cpu_slice::shorten();
            run(&its, Turns::new(policy, normal_share), awake);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// An engine takes part that has so much already. What it has from now on is written there.
    ///
    /// # Errors
    /// Its eventfd cannot be watched.
    pub(super) fn admit(
        &self,
        participant: Participant,
        given: Given,
        measures: Arc<dyn Measures>,
    ) -> io::Result<EngineId> {
        let mut entities = self.shared.lock();
        entities.next += 1;
        let id = EngineId(entities.next);
        self.shared.wake_sources.watch(id, &participant.handle.asks)?;
        let mut entity = Entity::new(participant, given);
        entity.measures = Some(measures);
        entities.engines.insert(id, entity);
        entities.new.push(id);
        drop(entities);
        self.shared.wake_sources.wake();
        Ok(id)
    }

    /// Gives no turns from now on, or gives them again: while it does not, engines that have their nodes keep them.
    pub(super) fn hold_back(&self, is_held_back: bool) {
        self.shared.lock().is_held_back = is_held_back;
        self.shared.wake_sources.wake();
    }
}

impl Schedule for Supervisor {
    fn add(&self, participant: Participant, meters: &Arc<Meters>) -> io::Result<EngineId> {
        let measures = meters.begin(participant.at, &participant.handle.shared);
        self.admit(participant, Given::default(), measures)
    }

    fn pulse(&self) -> u64 {
        let rounds = self.shared.rounds.load(Ordering::Relaxed);
        self.shared.wake_sources.wake();
        rounds
    }

    fn keeps_node(&self, engine: EngineId) -> bool {
        let mut entities = self.shared.lock();
        let now = self.shared.begun.elapsed();
        entities.engines.get_mut(&engine).is_some_and(|entity| entity.look(now) == Phase::Revoking)
    }

    fn expect_suspend(&self, engine: EngineId, context: ContextIndex, fence: u64) {
        self.shared.lock().expected.push(Expected { engine, context, fence });
        self.shared.wake_sources.wake();
    }

    fn held(&self, engine: EngineId) -> Duration {
        self.shared.lock().engines.get(&engine).map_or(Duration::ZERO, |entity| entity.held)
    }

    fn retune(&self, engine: EngineId, timeout: Option<Duration>, share: Share) {
        let mut entities = self.shared.lock();
        if let Some(entity) = entities.engines.get_mut(&engine) {
            (entity.timeout, entity.share) = (timeout, share);
            entities.tuned.push(engine);
        }
        drop(entities);
        self.shared.wake_sources.wake();
    }

    fn remove(&self, engine: EngineId) {
        let mut entities = self.shared.lock();
        if let Some(mut entity) = entities.engines.remove(&engine) {
            entity.note_yield(self.shared.begun.elapsed());
            self.shared.wake_sources.unwatch(engine, &entity.handle.asks);
            if let Some(measures) = &entity.measures {
                measures.end();
            }
        }
        entities.gone.push(engine);
        drop(entities);
        self.shared.wake_sources.wake();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake_sources.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the supervisor thread panicked");
        }
    }
}

fn run(shared: &Shared, mut turns: Turns, mut awake: Awake<impl Write>) {
    let mut watchdog = Watchdog::default();
    let mut suspends = Suspends::default();
    let mut dues = Dues::default();
    let begun = shared.begun;
    let mut again = None;
    loop {
        let wait = again.map(|at: Duration| at.saturating_sub(begun.elapsed()));
        let signalled = shared.wake_sources.wait(wait);
        shared.rounds.fetch_add(1, Ordering::Relaxed);
        let mut entities = shared.lock();
        if entities.stop {
            return;
        }
        for engine in std::mem::take(&mut entities.new) {
            if let Some(entity) = entities.engines.get_mut(&engine) {
                turns.add(engine, entity.at, entity.timeout, entity.share, begun.elapsed());
                if entity.holds() && !turns.adopt(engine, begun.elapsed()) {
                    entity.refuse_node();
                }
            }
        }
        for engine in std::mem::take(&mut entities.tuned) {
            if let Some(entity) = entities.engines.get(&engine) {
                turns.change(engine, entity.timeout, entity.share, begun.elapsed());
            }
        }
        for engine in std::mem::take(&mut entities.gone) {
            turns.remove(engine);
            watchdog.forget(engine);
            suspends.forget(engine);
        }
        for expected in std::mem::take(&mut entities.expected) {
            // An engine without a timeout is not watched.
            if let Some(timeout) = entities.engines.get(&expected.engine).and_then(|entity| entity.timeout) {
                suspends.expect(expected, timeout, begun.elapsed());
            }
        }
        let now = begun.elapsed();
        let phases = entities.look(now);
        let phase = |engine: EngineId| phases.get(&engine).copied().unwrap_or(Phase::Idle);
        let urgency = |engine: EngineId| Urgency::from_word(entities.load(engine, URGENCY));
        let (operations, mut next) =
            if entities.is_held_back { Default::default() } else { turns.decide(phase, urgency, now) };
        for operation in operations {
            if let Err(engine) = entities.apply(operation, now) {
                // The engine has changed its word meanwhile: decide again at once.
                let decide = entities.outrun(&shared.wake_sources, engine, now);
                next = next.into_iter().chain([decide]).min();
            }
        }
        let unmute = entities.charge_signals(&shared.wake_sources, &signalled, now);
        let phases = entities.look(begun.elapsed());
        for (engine, _, times) in dues.advance(now, entities.wanting(&phases)) {
            if let Some(entity) = entities.engines.get(&engine) {
                entity.measure(times);
            }
        }
        for (engine, phase) in phases {
            if !matches!(phase, Phase::Granted | Phase::Revoking) {
                watchdog.forget(engine);
                continue;
            }
            let Some(entity) = entities.engines.get(&engine) else { continue };
            let Some(timeout) = entity.timeout else { continue };
            let progress = entity.progress();
            let (verdict, look) = watchdog.look(engine, progress, timeout, now);
            match verdict {
                Verdict::Fine => {}
                Verdict::Ask => {
                    if turns.ask(engine, now) {
                        // An engine that has changed its word meanwhile does not stand still.
                        let _asked = entities.apply(Operation::Revoke(engine), now);
                    }
                }
                Verdict::Hangs => entity.raise(Hang::NoProgress, progress),
            }
            next = Some(next.map_or(look, |at| at.min(look)));
        }
        let reported = |engine, context: ContextIndex| entities.load(engine, context_report(context.get()));
        let (late, look) = suspends.look(reported, now);
        for entity in late.iter().filter_map(|engine| entities.engines.get(engine)) {
            entity.raise(Hang::NotSuspended, entity.progress());
        }
        // Realtime work of an engine whose vGPU was granted none does not count.
        let may_boost =
            entities.engines.iter().filter(|(_, entity)| entity.share.highest_band == Band::Realtime);
        for (&engine, _) in may_boost {
            let last = Duration::from_nanos(entities.load(engine, REALTIME));
            awake.note_realtime(last, clock::monotonic());
        }
        for (engine, held) in turns.held() {
            if let Some(entity) = entities.engines.get_mut(&engine) {
                entity.set_held(held);
            }
        }
        drop(entities);
        let left = awake.look(clock::monotonic());
        again =
            next.into_iter().chain(look).chain(unmute).chain(left.map(|left| begun.elapsed() + left)).min();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Duration;

    use campanile_host_gpu::adapter::process::GrantHandle;
    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::essential_thread;
    use campanile_host_gpu::event::Event;
    use campanile_host_gpu::ids::ContextIndex;
    use campanile_host_gpu::node::clock;
    use campanile_host_gpu::sched::choice::Choice;
    use campanile_host_gpu::sched::parameters::Band;
    use campanile_protocol::engine::block::GRANT;
    use campanile_protocol::engine::block::PROGRESS;
    use campanile_protocol::engine::block::context_report;
    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::engine::scheduling::REALTIME;
    use campanile_protocol::handshake::grant;
    use campanile_protocol::handshake::grant::Grant;
    use campanile_protocol::handshake::grant::Phase;
    use rustix::event::PollFd;
    use rustix::event::PollFlags;
    use rustix::event::Timespec;
    use rustix::event::poll;

    use super::EngineId;
    use super::Meters;
    use super::Participant;
    use super::Schedule;
    use super::Supervisor;
    use crate::latencies::Distribution;
    use crate::sched::alarm::Alarm;
    use crate::sched::alarm::Hang;
    use crate::sched::alarm::Sighting;
    use crate::sched::awake::Awake;
    use crate::sched::meter::Preemption;
    use crate::sched::share::Share;
    use crate::sched::testing::participant;

    /// An engine without a process, which wants its node.
    fn add(supervisor: &Supervisor, highest_band: Band) -> (EngineId, GrantHandle) {
        let engine = participant(EngineAddress::new(0, NodeKind::Compute));
        let handle = engine.handle.clone();
        run_realtime_work(&handle);
        let _asks = grant::take_turn(handle.shared.word(GRANT).unwrap());
        let share = Share { highest_band, ..Share::default() };
        (supervisor.add(Participant { share, ..engine }, &Arc::default()).unwrap(), handle)
    }

    fn run_realtime_work(engine: &GrantHandle) {
        let word = engine.shared.word(REALTIME).unwrap();
        word.store(clock::nanoseconds(clock::monotonic()), Ordering::Release);
    }

    #[test]
    fn cpus_stay_awake_for_engines_that_may_have_realtime_work_until_none_has_come_for_a_while() {
        let (mut asked, asks) = std::io::pipe().unwrap();
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::over(asks, 7)).unwrap();
        let (_, engine) = add(&supervisor, Band::Realtime);
        for _ in 0..2 {
            let is_enough = AtomicBool::new(false);
            let mut next = || {
                let mut bytes = [0; 4];
                asked.read_exact(&mut bytes).unwrap();
                u32::from_ne_bytes(bytes)
            };
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_enough.load(Ordering::Acquire) {
                        run_realtime_work(&engine);
                        engine.asks.signal();
                        thread::yield_now();
                    }
                });
                assert_eq!(next(), 7);
                is_enough.store(true, Ordering::Release);
            });
            assert!(next() > 7, "none has come since, and nothing has said so");
        }
    }

    /// What the CPUs are asked, by a supervisor that is about to panic.
    struct Panics(std::sync::mpsc::Sender<()>);

    impl std::io::Write for Panics {
        fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
            self.0.send(()).unwrap();
            panic!("a bug in the supervisor");
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    #[ignore = "ends its process: run by the test below"]
    fn a_supervisor_panics() {
        let (sender, panics) = std::sync::mpsc::channel();
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::over(Panics(sender), 7)).unwrap();
        let _engine = add(&supervisor, Band::Realtime);
        panics.recv().unwrap();
        // Waits for the thread. Where the process did not end, this test would pass.
        drop(supervisor);
    }

    #[test]
    fn a_panic_of_the_supervisor_ends_the_process_and_not_the_scheduling() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "sched::thread::tests::a_supervisor_panics";
        let output = command.args(["--ignored", "--exact", "--nocapture", name]).output().unwrap();
        assert_eq!(output.status.code(), Some(essential_thread::EXIT_STATUS), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("thread 'supervisor'") && said.contains("a bug in the supervisor"), "{said}");
    }

    #[test]
    fn realtime_work_of_a_vgpu_that_was_granted_none_keeps_no_cpu_awake() {
        let (mut asked, asks) = std::io::pipe().unwrap();
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::over(asks, 7)).unwrap();
        let (first, handle) = add(&supervisor, Band::Focus);
        handle.wake.wait(None);
        // That one has its turn. Once the next has it, what the first said has been looked at.
        supervisor.remove(first);
        let (_, next) = add(&supervisor, Band::Normal);
        next.wake.wait(None);
        drop(supervisor);
        let mut bytes = Vec::new();
        asked.read_to_end(&mut bytes).unwrap();
        assert!(bytes.is_empty(), "{bytes:?}");
    }

    /// An engine without a process that has its node, and stands still at `progress`.
    struct Still {
        id: EngineId,
        handle: GrantHandle,
        alarm: Arc<Alarm>,
        meters: Arc<Meters>,
    }

    impl Still {
        fn start(
            supervisor: &Supervisor,
            physical: u8,
            progress: Progress,
            timeout: Option<Duration>,
        ) -> Self {
            let engine = participant(EngineAddress::new(physical, NodeKind::Copy));
            let (handle, alarm) = (engine.handle.clone(), Arc::clone(&engine.alarm));
            handle.shared.word(PROGRESS).unwrap().store(progress.word(), Ordering::Release);
            let _asks = grant::take_turn(handle.shared.word(GRANT).unwrap());
            let meters = Arc::default();
            let id = supervisor.add(Participant { timeout, ..engine }, &meters).unwrap();
            assert!(handle.wake.wait(Some(NEVER)), "it is given its node");
            let engine = Self { id, handle, alarm, meters };
            assert_eq!(engine.phase(), Phase::Granted);
            engine
        }

        fn phase(&self) -> Phase {
            Grant::from_word(self.handle.shared.word(GRANT).unwrap().load(Ordering::Acquire)).phase
        }

        /// What the alarm says, once it is raised.
        fn alarmed(&self) -> Sighting {
            let limit = Timespec::try_from(NEVER).unwrap();
            assert_eq!(poll(&mut [PollFd::new(&*self.alarm, PollFlags::IN)], Some(&limit)), Ok(1));
            self.alarm.take().unwrap()
        }
    }

    const NEVER: Duration = Duration::from_secs(60);
    const TIMEOUT: Option<Duration> = Some(Duration::from_millis(100));

    #[test]
    fn tdr_11_tdr_12_an_engine_without_progress_is_asked_to_yield_and_has_the_timeout_from_then_on() {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let stuck = Progress { steps: 7, is_exempt: false, work: Work::HwQueue };
        // These are looked at as often, and stand still as long: none of them may be asked.
        let unwatched = Still::start(&supervisor, 1, stuck, None);
        let exempt = Still::start(&supervisor, 2, Progress { is_exempt: true, ..stuck }, TIMEOUT);
        let idle = Still::start(&supervisor, 3, Progress { work: Work::Nothing, ..stuck }, TIMEOUT);
        let engine = Still::start(&supervisor, 0, stuck, TIMEOUT);
        let sighting = engine.alarmed();
        assert_eq!(sighting.progress, stuck);
        assert_eq!(engine.phase(), Phase::Revoking, "reported without having been asked");
        assert!(engine.handle.wake.drain(), "it was woken when it was asked");
        for (name, other) in [("unwatched", unwatched), ("exempt", exempt), ("idle", idle)] {
            assert_eq!((other.phase(), other.alarm.take()), (Phase::Granted, None), "{name}");
            assert!(!other.handle.wake.drain(), "{name}");
        }
    }

    #[test]
    fn tdr_11_tdr_38_an_engine_that_yields_when_asked_is_not_reported() {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let stuck = Progress { steps: 7, is_exempt: false, work: Work::UserQueue(3) };
        let yields = Still::start(&supervisor, 1, stuck, Some(Duration::from_secs(1)));
        assert!(yields.handle.wake.wait(Some(NEVER)), "it is asked");
        assert_eq!(yields.phase(), Phase::Revoking);
        let word = yields.handle.shared.word(PROGRESS).unwrap();
        word.store(stuck.next(Work::Nothing, false).word(), Ordering::Release);
        assert!(grant::yield_turn(yields.handle.shared.word(GRANT).unwrap()));
        yields.handle.asks.signal();
        // What is asked later, and has as long, is reported.
        let stays = Still::start(&supervisor, 0, stuck, Some(Duration::from_secs(1)));
        assert_eq!(stays.alarmed().progress, stuck);
        assert_eq!(yields.alarm.take(), None);
    }

    #[test]
    fn an_engine_that_is_given_a_timeout_later_is_watched_from_then_on() {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let stuck = Progress { steps: 7, is_exempt: false, work: Work::HwQueue };
        let engine = Still::start(&supervisor, 0, stuck, None);
        supervisor.retune(engine.id, TIMEOUT, Share::default());
        assert_eq!(engine.alarmed().progress, stuck);
    }

    #[test]
    fn an_engine_that_never_yielded_did_so_at_the_end_of_its_process() {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let stuck = Progress { steps: 7, is_exempt: false, work: Work::HwQueue };
        let engine = Still::start(&supervisor, 0, stuck, TIMEOUT);
        let _hangs = engine.alarmed();
        let yields = || engine.meters.preemptions(EngineAddress::new(0, NodeKind::Copy), Preemption::Yield);
        assert_eq!(yields(), Distribution::default(), "it has not");
        supervisor.remove(engine.id);
        assert_eq!(yields().buckets.iter().sum::<u64>(), 1);
        assert!(yields().sum >= TIMEOUT.unwrap(), "{:?}", yields());
    }

    #[test]
    fn ums_112_a_suspend_that_is_not_reported_in_time_is_a_hang_and_one_that_is_reported_is_none() {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let idle = Progress { steps: 7, is_exempt: false, work: Work::Nothing };
        let unwatched = Still::start(&supervisor, 2, idle, None);
        let reports = Still::start(&supervisor, 1, idle, TIMEOUT);
        let silent = Still::start(&supervisor, 0, idle, TIMEOUT);
        reports.handle.shared.word(context_report(5)).unwrap().store(9, Ordering::Release);
        for engine in [&unwatched, &reports, &silent] {
            supervisor.expect_suspend(engine.id, ContextIndex::new(5), 9);
        }
        assert_eq!(silent.alarmed().hang, Hang::NotSuspended);
        assert_eq!((unwatched.alarm.take(), reports.alarm.take()), (None, None));
    }

    /// An engine without a process, of the node of every other that is made so; its alarm.
    fn join(supervisor: &Supervisor) -> (EngineId, GrantHandle, Arc<Alarm>) {
        let engine = participant(EngineAddress::new(0, NodeKind::Copy));
        let (handle, alarm) = (engine.handle.clone(), Arc::clone(&engine.alarm));
        let id = supervisor.add(Participant { timeout: TIMEOUT, ..engine }, &Arc::default()).unwrap();
        (id, handle, alarm)
    }

    fn grant_word(handle: &GrantHandle) -> u64 {
        handle.shared.word(GRANT).unwrap().load(Ordering::Acquire)
    }

    fn ask(handle: &GrantHandle) {
        assert_eq!(grant::take_turn(handle.shared.word(GRANT).unwrap()), grant::Turn::Ask);
        handle.asks.signal();
    }

    fn wait_for(alarm: &Alarm) -> Sighting {
        let limit = Timespec::try_from(NEVER).unwrap();
        assert_eq!(poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&limit)), Ok(1), "never raised");
        alarm.take().unwrap()
    }

    #[test]
    fn an_engine_that_takes_its_node_back_after_a_revoke_is_reported_and_its_end_gives_the_node_to_the_next()
    {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let (keeper, keeps, alarm) = join(&supervisor);
        ask(&keeps);
        assert!(keeps.wake.wait(Some(NEVER)));
        let (_, wants, quiet) = join(&supervisor);
        ask(&wants);
        assert!(keeps.wake.wait(Some(NEVER)), "it is asked to yield");
        assert_eq!(grant_word(&keeps), Grant { phase: Phase::Revoking, generation: 1 }.word());
        let stolen = Grant { phase: Phase::Granted, generation: 1 }.word();
        keeps.shared.word(GRANT).unwrap().store(stolen, Ordering::Release);
        keeps.asks.signal();
        // At once, or by the time that it should have yielded: nothing that it says ends that.
        let Hang::BrokenProtocol(breach) = wait_for(&alarm).hang else { panic!("another alarm") };
        assert_eq!(breach.word, stolen);
        // Not for what it stores next either.
        let idle = Grant { phase: Phase::Idle, generation: 1 }.word();
        keeps.shared.word(GRANT).unwrap().store(idle, Ordering::Release);
        keeps.asks.signal();
        // Another engine of another node is given its turn only after that was looked at.
        let idle = Progress { steps: 0, is_exempt: false, work: Work::Nothing };
        Still::start(&supervisor, 1, idle, None);
        assert!(supervisor.keeps_node(keeper), "its process may run");
        assert_eq!(grant_word(&wants), Grant { phase: Phase::Want, generation: 0 }.word());
        supervisor.remove(keeper);
        assert!(wants.wake.wait(Some(NEVER)), "the node is free");
        assert_eq!(grant_word(&wants), Grant { phase: Phase::Granted, generation: 1 }.word());
        assert_eq!((alarm.take(), quiet.take()), (None, None), "reported once");
    }

    #[test]
    fn an_engine_that_claims_a_node_that_it_was_not_given_is_reported_and_does_not_get_it() {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let (_, claims, alarm) = join(&supervisor);
        let word = Grant { phase: Phase::Parked, generation: 0 }.word();
        claims.shared.word(GRANT).unwrap().store(word, Ordering::Release);
        claims.asks.signal();
        assert!(matches!(wait_for(&alarm).hang, Hang::BrokenProtocol(_)));
        // It had none, so that nothing stands between another engine and the node.
        let (_, wants, _) = join(&supervisor);
        let word = Grant { phase: Phase::Want, generation: 0 }.word();
        claims.shared.word(GRANT).unwrap().store(word, Ordering::Release);
        ask(&wants);
        assert!(wants.wake.wait(Some(NEVER)));
        assert_eq!(grant_word(&claims), word, "it is not served any more");
        assert_eq!(alarm.take(), None, "reported once");
    }

    #[test]
    fn an_engine_keeps_its_node_by_what_the_supervisor_knows_and_not_by_what_its_word_says() {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let stuck = Progress { steps: 7, is_exempt: false, work: Work::HwQueue };
        let engine = Still::start(&supervisor, 0, stuck, TIMEOUT);
        assert!(!supervisor.keeps_node(engine.id), "it may");
        engine.alarmed();
        assert!(supervisor.keeps_node(engine.id), "it was asked, and stands still");
        let word = engine.handle.shared.word(GRANT).unwrap();
        // For a moment only, in which the session looks whether it hangs.
        word.store(Grant { phase: Phase::Granted, generation: 1 }.word(), Ordering::Release);
        assert!(supervisor.keeps_node(engine.id));
    }

    /// Whether the supervisor's epoll instance waits for signals of an eventfd, as the kernel shows it.
    fn is_watched(asks: &Event) -> bool {
        let number = asks.as_fd().as_raw_fd();
        let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
        let infos = infos.filter_map(|info| std::fs::read_to_string(info.path()).ok());
        let lines: Vec<String> =
            infos.flat_map(|info| info.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        let line = lines.iter().find(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some("tfd:") && words.next() == Some(&number.to_string())
        });
        let line = line.unwrap_or_else(|| panic!("nothing waits for {number}: {lines:?}"));
        let events = line.split_whitespace().nth(3).unwrap();
        u32::from_str_radix(events, 16).unwrap() & 1 != 0
    }

    fn until(mut holds: impl FnMut() -> bool, what: &str) {
        let begun = std::time::Instant::now();
        while !holds() {
            assert!(begun.elapsed() < NEVER, "{what}");
            thread::yield_now();
        }
    }

    #[test]
    fn the_time_that_an_engine_has_had_its_node_is_known_up_to_the_last_decision() {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let idle = Progress { steps: 0, is_exempt: false, work: Work::Nothing };
        let engine = Still::start(&supervisor, 0, idle, None);
        let (other, _, _) = join(&supervisor);
        until(
            || {
                engine.handle.asks.signal();
                !supervisor.held(engine.id).is_zero()
            },
            "it has had its node for no time",
        );
        assert_eq!(supervisor.held(other), Duration::ZERO, "another had it");
    }

    /// Ends a flood when dropped.
    struct EndsFlood<'a>(&'a AtomicBool);

    impl Drop for EndsFlood<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn an_engine_that_floods_its_eventfd_is_muted_and_mutes_no_other() {
        let supervisor = Supervisor::start(Choice::default(), 10, Awake::off()).unwrap();
        let (_, floods, alarm) = join(&supervisor);
        let (_, drains, _) = join(&supervisor);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Also where an assertion fails: the scope waits for its threads.
            let _ends = EndsFlood(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    floods.asks.signal();
                    drains.asks.drain();
                }
            });
            until(|| !is_watched(&floods.asks), "the flood occupies the supervisor");
            // Signals of another engine wake the supervisor all the same, and the word of this one is read.
            for _ in 0..10 {
                let (id, wants, quiet) = join(&supervisor);
                ask(&wants);
                assert!(wants.wake.wait(Some(NEVER)));
                assert!(is_watched(&wants.asks));
                supervisor.remove(id);
                assert_eq!(quiet.take(), None);
            }
            let _asks = grant::take_turn(floods.shared.word(GRANT).unwrap());
            assert!(floods.wake.wait(Some(NEVER)));
            assert!(grant::release(floods.shared.word(GRANT).unwrap()));
        });
        until(|| is_watched(&floods.asks), "it is never unmuted");
        ask(&floods);
        assert!(floods.wake.wait(Some(NEVER)));
        assert_eq!(alarm.take(), None, "that is no breach");
    }
}

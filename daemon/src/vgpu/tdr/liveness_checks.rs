//! Looks at engines that run nothing: a process that is stopped looks as idle as any, until it is asked for something.
//!
//! Only while an engine is awake or owes something, so that an idle daemon costs nothing.

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::NODES;
use campanile_host_gpu::engine::address::node_index;
use std::time::Duration;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::engine::progress::Work;

use super::liveness::Observation;
use super::liveness::Verdict;
use super::reason::Reason;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::tdr::recovery::Recovery;
use crate::vgpu::vm::Vm;
use std::time::Instant;

/// How long an engine may take to come up: it starts a driver and tests it.
const START_LIMIT: Duration = Duration::from_secs(60);

/// When engines are looked at next that run nothing.
#[derive(Debug, Default)]
pub struct Watch {
    /// Then; not at all, where none is awake or owes something.
    pub(in crate::vgpu) at: Option<Instant>,
}

impl Watch {
    /// Has engines looked at that are awake. To be called when something was asked of one.
    pub(in crate::vgpu) fn keep_looking(&mut self, vm: &mut Vm) {
        Pager::of(vm).serve_residency();
        if self.at.is_some() || !vm.engines.addresses().any(|at| vm.engines.is_to_be_looked_at(at)) {
            return;
        }
        let periods = NODES.map(|node| vm.config.timeouts[node_index(node)]);
        let period = periods[0].min(periods[1]).min(vm.config.policy.compile_timeout) / 2;
        let at = clock::now() + period;
        self.at = Some(at);
        vm.timer.set(at);
    }

    /// Looks, if it is time to.
    pub(in crate::vgpu) fn look_at_engines(&mut self, vm: &mut Vm) {
        if self.at.is_none_or(|at| at > clock::now()) {
            return;
        }
        self.at = None;
        for at in vm.engines.addresses() {
            Recovery::of(vm).look_at_engine(at);
        }
        self.keep_looking(vm);
    }
}

impl Recovery<'_> {
    fn look_at_engine(&mut self, at: EngineAddress) {
        let now = self.vm.engines.now();
        let timeout = self.vm.config.watched_timeout(at.node);
        let compile_timeout = self.vm.config.policy.compile_timeout;
        let slot = &mut self.vm.engines[at.index()];
        if !slot.hears() || slot.is_held {
            return;
        }
        if !slot.has_begun() {
            if clock::since(slot.stirred) >= START_LIMIT {
                self.recover_engine(at, Reason::EngineTimeout, "it did not come up in time", None);
            }
            return;
        }
        let compiles_since = slot.oldest_kernel().map_or(slot.stirred, |(_, kernel)| kernel.since);
        if slot.owes_kernels() && clock::since(compiles_since) >= compile_timeout {
            return self.kernels_are_overdue(at);
        }
        if !slot.rebuilding.is_empty() {
            // It is told to begin behind these, and acknowledges nothing until it has: the compiler's own limit is what holds.
            slot.liveness.forget();
            return;
        }
        let Some(timeout) = timeout else { return };
        let has_work = !slot.in_flight.is_empty();
        let (liveness, process) = slot.liveness_and_process();
        let Some(process) = process else { return };
        let info = process.collect_debug_info();
        let observed = Observation {
            progress: info.progress.word(),
            runs: info.progress.work != Work::Nothing,
            is_asleep: process.power.is_asleep() && !has_work,
            asked: process.watch_sequence(),
            acknowledged: process.watch_acknowledged(),
        };
        match liveness.look(observed, timeout, now) {
            Verdict::Fine => self.vm.engines.compile_ahead(at, &self.vm.objects),
            Verdict::Ask => process.ask_acknowledgement(),
            Verdict::Dead => self.engine_timeout(at, "it does not answer", None),
        }
    }

    /// The kernel that is compiled has taken too long: it is refused, and its owner pays for the reset, where it is there yet. One that
    /// is not forgotten is like any hang.
    fn kernels_are_overdue(&mut self, at: EngineAddress) {
        let limit = self.vm.config.policy.compile_timeout;
        let slot = &self.vm.engines[at.index()];
        if slot.oldest_kernel().is_none() && slot.rebuilding.is_empty() {
            return self.engine_timeout(at, &format!("it did not forget a kernel within {limit:?}"), None);
        }
        let owner = Kernels::of(self.vm).refuse_overdue(at, format!("it did not compile within {limit:?}"));
        let text = format!("a kernel did not compile within {limit:?}");
        let report = self.recover_engine(at, Reason::EngineTimeout, &text, None);
        if let Some(owner) = owner {
            self.note_offence(owner, report);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;
    use std::time::Instant;

    use campanile_protocol::engine::block;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::handshake::power;

    use crate::ids::GuestProcess;
    use crate::vgpu::config::Config;
    use crate::vgpu::engines::lifecycle::Lifecycle;
    use crate::vgpu::engines::pending_kernel::PendingKernel;
    use crate::vgpu::engines::pending_kernel::Suspicion;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::session::Session;
    use crate::vgpu::tdr::policy::Policy;
    use crate::vgpu::tdr::recovery::Recovery;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::counted;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::give;
    use crate::vgpu::testing::load;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::run;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;
    use crate::vgpu::testing::store_progress;
    use crate::vgpu::testing::take_buffer;

    /// Looks until an engine that stands still is asked and, where it does not answer, is reset.
    fn look(session: &mut Session) {
        for _ in 0..6 {
            Recovery::of(&mut session.vm).look_at_engine(COPY);
        }
    }

    fn with_timeout(timeout: Duration) -> Session {
        let mut session = session(&Arc::new(Config { timeouts: [timeout; 2], ..startable() }));
        run(&mut session, COPY);
        store(&session, COPY, block::WATCH_ACK, load(&session, COPY, block::WATCH_SEQUENCE));
        session
    }

    #[test]
    fn tdr_27_an_engine_that_sleeps_is_asked_nothing_and_one_that_sleeps_over_work_is_reset() {
        for has_work in [false, true] {
            let mut session = with_timeout(Duration::ZERO);
            store(&session, COPY, block::POWER, power::ASLEEP);
            if has_work {
                give(&mut session, None);
            }
            look(&mut session);
            assert_eq!(counted(&session.vm.counters.engines_reset), u64::from(has_work));
        }
    }

    #[test]
    fn tdr_27_an_engine_that_compiles_what_there_was_before_it_is_asked_nothing_until_it_has() {
        let mut session = with_timeout(Duration::ZERO);
        session.vm.engines[COPY.index()].rebuilding.insert((1, 1));
        look(&mut session);
        assert_eq!(counted(&session.vm.counters.engines_reset), 0);
        session.vm.engines[COPY.index()].rebuilding.clear();
        look(&mut session);
        assert_eq!(counted(&session.vm.counters.engines_reset), 1);
    }

    #[test]
    fn tdr_17_an_engine_that_is_held_for_a_debugger_is_not_looked_at() {
        for is_held in [true, false] {
            let mut session = with_timeout(Duration::ZERO);
            session.vm.engines[COPY.index()].is_held = is_held;
            look(&mut session);
            assert_eq!(counted(&session.vm.counters.engines_reset), u64::from(!is_held));
        }
    }

    #[test]
    fn tdr_21_who_has_a_kernel_compiled_for_too_long_has_an_offence_more() {
        let policy = Policy { compile_timeout: Duration::ZERO, ..Policy::default() };
        let mut session = restored(Config { policy, ..startable() });
        let origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };
        session.vm.engines[COPY.index()].rebuilding.clear();
        // The one behind it is innocent.
        for (number, context) in [(4, OWNER), (5, GuestProcess::new(1))] {
            let kernel = PendingKernel::new(Origin { context, ..origin }, Handle(number), number);
            let root = device(&mut session, context).root.0;
            session.vm.engines[COPY.index()].compiling.insert((root, number), kernel);
        }
        Recovery::of(&mut session.vm).look_at_engine(COPY);
        let offences =
            |of: GuestProcess| session.vm.objects.processes[&of].offences.ages(Instant::now()).len();
        assert_eq!((offences(OWNER), offences(GuestProcess::new(1))), (1, 0));
        assert_eq!(counted(&session.vm.counters.engines_reset), 1);
        let left = &session.vm.engines[COPY.index()].compiling;
        assert_eq!(left.values().map(|kernel| kernel.number).collect::<Vec<_>>(), [5], "and is compiled");
    }

    #[test]
    fn a_kernel_that_was_cleared_is_none_any_more_once_its_next_process_is_up() {
        let policy = Policy { compile_timeout: Duration::ZERO, ..Policy::default() };
        let mut session = restored(Config { policy, ..startable() });
        session.vm.engines[COPY.index()].rebuilding.clear();
        for (number, context) in [(4, OWNER), (5, GuestProcess::new(1))] {
            let origin = Origin { context, slot: 1, sequence: number, ring: 1, item: None };
            let root = device(&mut session, context).root.0;
            let kernel = PendingKernel::new(origin, Handle(number), number);
            session.vm.engines[COPY.index()].compiling.insert((root, number), kernel);
        }
        // It is not judged by this end: work ran.
        let buffer = take_buffer(&mut session);
        give(&mut session, Some((OWNER, buffer)));
        store_progress(&session, Work::HwQueue);
        Recovery::of(&mut session.vm).look_at_engine(COPY);
        session.vm.engines[COPY.index()].came_up();
        let left = session.vm.engines[COPY.index()].compiling.values();
        let left: Vec<_> = left.map(|kernel| (kernel.number, kernel.suspicion)).collect();
        assert_eq!(left, [(5, Suspicion::OneOfSeveral)]);
    }

    #[test]
    fn engines_are_looked_at_twice_within_the_shortest_of_all_timeouts() {
        let long = Duration::from_secs(600);
        for (timeouts, compile_timeout) in [
            ([Duration::from_secs(60), long], long),
            ([long, Duration::from_secs(60)], long),
            ([long; 2], Duration::from_secs(60)),
        ] {
            let policy = Policy { compile_timeout, ..Policy::default() };
            let mut session = session(&Arc::new(Config { timeouts, policy, ..startable() }));
            run(&mut session, COPY);
            session.look_at.keep_looking(&mut session.vm);
            let at = session.look_at.at.unwrap();
            assert!(at <= Instant::now() + Duration::from_secs(30) && at > Instant::now(), "{timeouts:?}");
        }
    }

    #[test]
    fn an_engine_is_looked_at_while_it_starts_is_awake_or_owes_something_and_at_no_other_time() {
        let mut session = with_timeout(Duration::from_secs(600));
        let at = |session: &Session| session.vm.engines.is_to_be_looked_at(COPY);
        store(&session, COPY, block::POWER, power::ASLEEP);
        assert!(!at(&session), "it sleeps, and owes nothing");
        store(&session, COPY, block::POWER, power::ACTIVE);
        assert!(at(&session), "it is awake");
        store(&session, COPY, block::POWER, power::ASLEEP);
        session.vm.engines[COPY.index()].process_mut().unwrap().ask_acknowledgement();
        assert!(at(&session), "it has not acknowledged a change");
        let sequence = load(&session, COPY, block::WATCH_SEQUENCE);
        store(&session, COPY, block::WATCH_ACK, sequence);
        assert!(!at(&session), "it has");
        store(&session, COPY, block::WATCH_ACK, sequence + 1);
        assert!(!at(&session), "it says more than it was asked");
        let origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };
        let kernel = PendingKernel::new(origin, Handle(4), 4);
        session.vm.engines[COPY.index()].compiling.insert((1, 4), kernel);
        assert!(at(&session), "it owes a kernel");
        session.vm.engines[COPY.index()].compiling.clear();
        give(&mut session, None);
        assert!(at(&session), "it has a buffer");
        let mut session = self::session(&Arc::new(startable()));
        assert!(!at(&session), "there is none");
        session.look_at.keep_looking(&mut session.vm);
        assert_eq!(session.look_at.at, None, "nothing is to be looked at");
        assert!(
            !Lifecycle::of(&mut session.vm)
                .ensure_engine(COPY)
                .unwrap_or_else(|refused| panic!("{}", refused.text))
        );
        store(&session, COPY, block::POWER, power::ASLEEP);
        assert!(at(&session), "it starts");
        Recovery::of(&mut session.vm).look_at_engine(COPY);
        assert!(session.vm.engines[COPY.index()].process().is_some(), "and has time for that");
    }

    #[test]
    fn engines_are_looked_at_when_it_is_time_and_again_after_that() {
        let mut session = with_timeout(Duration::ZERO);
        give(&mut session, None);
        session.look_at.at = None;
        (0..6).for_each(|_| session.look_at.look_at_engines(&mut session.vm));
        assert_eq!(
            (session.look_at.at, counted(&session.vm.counters.engines_reset)),
            (None, 0),
            "nothing was asked"
        );
        let later = Instant::now() + Duration::from_secs(600);
        for _ in 0..6 {
            session.look_at.at = Some(later);
            session.look_at.look_at_engines(&mut session.vm);
            assert_eq!(session.look_at.at, Some(later));
        }
        assert_eq!(counted(&session.vm.counters.engines_reset), 0, "it is not time yet");
        for _ in 0..6 {
            session.look_at.at = Some(Instant::now());
            session.look_at.look_at_engines(&mut session.vm);
            assert!(session.look_at.at.is_some_and(|at| at != later), "again");
        }
        assert_eq!(counted(&session.vm.counters.engines_reset), 1);
    }

    #[test]
    fn only_an_engine_that_compiles_has_the_time_of_a_kernel_and_only_past_it_is_it_reset() {
        for (compile_timeout, has_kernel, resets) in
            [(Duration::ZERO, false, 0), (Duration::from_secs(600), true, 0), (Duration::ZERO, true, 1)]
        {
            let policy = Policy { compile_timeout, ..Policy::default() };
            let mut session = restored(Config { policy, ..startable() });
            let origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };
            let kernel = PendingKernel::new(origin, Handle(4), 4);
            let slot = &mut session.vm.engines[COPY.index()];
            slot.rebuilding.clear();
            slot.compiling.clear();
            if has_kernel {
                slot.compiling.insert((1, 4), kernel);
            }
            Recovery::of(&mut session.vm).look_at_engine(COPY);
            assert_eq!(
                counted(&session.vm.counters.engines_reset),
                resets,
                "{compile_timeout:?}, {has_kernel}"
            );
        }
    }
}

//! An engine that hung or died is replaced, and the device whose work it ran is lost: no other device notices (TDR-03,
//! TDR-70).
//!
//! ```text
//!   hung, died ─▶ no longer listened to (TDR-37) ─▶ whose work does it run? ─▶ stopped and killed (TDR-40, TDR-46)
//!        ┌──────────────────────────────────────────────────────────────────────────┘
//!        ├─▶ that device is in error (TDR-61)
//!        └─▶ next process over the same shared block ─▶ told of segments and kernels
//!                  ─▶ ready: takes part in turns, goes on where the other stopped (TDR-57)
//! ```
//!
//! Where that cannot be, or was too often of late, the whole adapter is reset (TDR-50, TDR-73; `adapter.rs`).

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::node_index;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::error::AdapterError;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_HUNG;
use log::Level;

use super::group::DependentGroup;
use super::reason::Reason;
use super::recovery::Recovery;
use super::reset_record::Case;
use crate::sched::alarm::Sighting;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::orders::Answer;
use crate::vgpu::control::orders::OrderError;
use crate::vgpu::counters::count;
use crate::vgpu::engines::device_moves::mover;
use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::engines::room::Condemned;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::spans;
use crate::vgpu::submission::reports::EngineReports;
use crate::vgpu::submission::waits::Waits;
use serde_json::json;

impl Recovery<'_> {
    /// Replaces the engines that were found to be no good.
    pub(in crate::vgpu) fn replace_condemned(&mut self) {
        while let Some(Condemned { at, reason, text, .. }) = self.vm.engines.take_condemned() {
            self.recover_engine(at, reason, &text, None);
        }
    }

    /// An engine is no good any more: it is replaced, or everything of this vGPU is reset. The number of the report, where there
    /// was one.
    pub(in crate::vgpu) fn recover_engine(
        &mut self,
        at: EngineAddress,
        reason: Reason,
        text: &str,
        sighting: Option<Sighting>,
    ) -> u64 {
        if !self.vm.engines[at.index()].has_devices() {
            self.give_up_engine(at, text);
            return 0;
        }
        // What was done until now counts, and whatever else it has reported (TDR-39); what comes from here on is not listened
        // to (TDR-37, TDR-43).
        EngineReports::of(self.vm).flush_reports(at);
        if self.vm.engines.pid(at).is_none() {
            return 0;
        }
        // What it reported may be the better reason.
        let found = self.vm.engines.take_condemned_at(at);
        let (reason, text) = found.as_ref().map_or((reason, text), |found| (found.reason, &*found.text));
        self.vm.engines.unwatch(at);
        let mut case = self.open_case(at, reason, text, sighting);
        let number = case.number;
        let _span = spans::reset(&self.vm.config.name, at, case.reason.name()).entered();
        self.vm.objects.spans.yielded(at);
        if let Err(why) = self.reset_engine(at, &mut case) {
            count(&self.vm.counters.engines_lost);
            if case.reason == Reason::EngineTimeout {
                case.reason = Reason::PromotedToAdapter;
            }
            case.text = format!("{text}; {why}");
            if let Some((context, _)) = case.guilty.filter(|_| case.affected.is_empty()) {
                self.note_offence(context, case.number);
            }
            self.reset_adapter(case);
        }
        number
    }

    /// An engine that never came up: there is nothing to recover.
    fn give_up_engine(&mut self, at: EngineAddress, reason: &str) {
        Lifecycle::of(self.vm).stop_engine(at);
        if at == mover() {
            self.vm.engines.moves.set_available(false);
        }
        let text = format!("the {at} engine is lost: {reason}");
        self.refuse_waiting_for(at, &Refused { status: Status::NotSupported, text });
        Deferred::of(self.vm).run_pending();
    }

    /// Answers what waits for an engine that does not come.
    pub(in crate::vgpu) fn refuse_waiting_for(&mut self, at: EngineAddress, refused: &Refused) {
        for mut message in std::mem::take(&mut self.vm.engines[at.index()].waiting) {
            drop(message.charge.take());
            if message.ended_kernel().is_some() {
                // An engine that is not there knows no kernel.
                self.vm.engines.to_handle.push(message);
            } else {
                self.vm.answer(message.origin, Err(refused.clone()));
            }
        }
    }

    /// Replaces the process of a running engine; why not, where that cannot be.
    fn reset_engine(&mut self, at: EngineAddress, case: &mut Case) -> Result<(), String> {
        let index = at.index();
        let policy = self.vm.config.policy;
        let slot = &mut self.vm.engines[index];
        if !slot.has_begun() {
            return Err("it had not come up".to_owned());
        }
        let within = slot.resets.note(clock::now(), policy.limit_count, policy.limit_time);
        if case.reason == Reason::PromotedToAdapter {
            return Err("what it was to do cannot be done without".to_owned());
        }
        if case.reason == Reason::InvalidFence {
            return Err("it cannot be believed".to_owned());
        }
        if !within && policy.has_limits() && case.reason != Reason::Forced {
            return Err(format!("it was reset {} times in {:?}", policy.limit_count, policy.limit_time));
        }
        let process = slot.process_mut().ok_or_else(|| "it has no process".to_owned())?;
        // Every node is a process, and takes no other down; else everything is reset.
        let own = (at.engine, node_index(at.node));
        let group = DependentGroup::new(process.query_dependent_engine_group(), own);
        if group.map_err(|error| error.to_string())?.nodes().any(|other| other != own) {
            return Err("other nodes depend on it".to_owned());
        }
        let has_ended = process.has_ended();
        let last_aborted = process.reset_engine().map_err(|error| {
            case.is_fatal = matches!(error, AdapterError::Stuck { .. });
            error.to_string()
        })?;
        process.native_fences.forget_signalled();
        slot.fences.check(last_aborted).map_err(|error| error.to_string())?;
        case.last_aborted = Some(last_aborted);
        if let Some(id) = slot.supervised.take() {
            self.vm.config.schedule.remove(id);
        }
        case.reset_is_done();
        // First, so that nothing of it is told to the next process.
        self.convict(case);
        // One that is there, and was ended for its work or by order, was not ended for a kernel.
        let ran = case.guilty.is_some();
        if has_ended || !ran && case.reason != Reason::Forced {
            Kernels::of(self.vm).judge_compiling(at, ran);
        }
        Lifecycle::of(self.vm).start_next_process(at).map_err(|error| error.to_string())?;
        count(&self.vm.counters.engines_reset);
        // The aborted buffer is among these.
        self.collect_reports(at);
        let guilty =
            case.guilty.map_or_else(String::new, |(context, _)| format!("; context {context} is lost"));
        self.vm.journal.line(
            Level::Warn,
            format_args!("{at} engine is reset: {}{guilty} (report {})", case.text, case.number),
        );
        self.close_case(case, "engine reset", false);
        Waits::of(self.vm).release_all_waiters();
        Deferred::of(self.vm).run_pending();
        Ok(())
    }

    /// Puts the device in error whose work the engine ran when that was decided, even if it got done (TDR-48, TDR-61).
    fn convict(&mut self, case: &mut Case) {
        let Some((context, _)) = case.guilty else { return };
        self.note_offence(context, case.number);
        Devices::of(self.vm).lose_device(context, DEVICE_HUNG, case.loss(false));
        case.affected.push((context, false));
    }

    /// A forced reset of one engine, or of all that run (TDR-29).
    pub(in crate::vgpu) fn reset_by_order(&mut self, at: Option<EngineAddress>) -> Answer {
        if let Some(at) = at.filter(|at| at.engine >= self.vm.config.engines) {
            return Err(OrderError::Refused(format!("there is no engine {at}")));
        }
        let wanted = self.vm.engines.addresses().filter(|of| at.is_none_or(|at| at == *of));
        let running: Vec<EngineAddress> = wanted.filter(|of| self.vm.engines[of.index()].hears()).collect();
        // All or nothing, so that the answer is true of each.
        if let Some(of) = running.iter().find(|of| !self.vm.engines[of.index()].has_begun()) {
            return Err(OrderError::Refused(format!("the {of} engine is just coming up")));
        }
        let mut resets = Vec::new();
        for of in running {
            self.recover_engine(of, Reason::Forced, "the operator asked for it", None);
            resets.push(of.to_string());
        }
        if resets.is_empty() {
            return Err(OrderError::Refused("no such engine runs, so there is nothing to reset".to_owned()));
        }
        Ok(json!({ "engines_reset": resets }))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use campanile_host_gpu::adapter::Adapter;
    use campanile_host_gpu::adapter::process::EngineProcess;
    use campanile_host_gpu::adapter::scheduling::Preemption;
    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::memory::bits;
    use campanile_protocol::device_page::DEVICE_ACTIVE;
    use campanile_protocol::device_page::DEVICE_HUNG;
    use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
    use campanile_protocol::device_page::LOSS;
    use campanile_protocol::device_page::LOSS_PRIMARY;
    use campanile_protocol::device_page::LOSS_REPORT;
    use campanile_protocol::device_page::fence;
    use campanile_protocol::engine::block;
    use campanile_protocol::engine::hw_queue::HW_BLOCKED;
    use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
    use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::engine::scheduling::PREEMPT_LAST_COMPLETED;
    use campanile_protocol::engine::scheduling::PREEMPT_REPORT;
    use campanile_protocol::handshake::grant;
    use campanile_protocol::handshake::grant::Grant;
    use campanile_protocol::handshake::grant::Phase;
    use campanile_protocol::packet::Fault;
    use rustix::event::PollFd;
    use rustix::event::PollFlags;
    use rustix::event::Timespec;
    use rustix::event::poll;
    use serde_json::Value;

    use super::EngineReports;
    use super::Reason;
    use super::Recovery;
    use crate::ids::GuestProcess;
    use crate::sched::alarm::Hang;
    use crate::vgpu::config::Config;
    use crate::vgpu::control::deferred::Deferred;
    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::lifecycle::Lifecycle;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::objects::process::Buffer;
    use crate::vgpu::objects::timeline::Token;
    use crate::vgpu::session::Session;
    use crate::vgpu::tdr::fences::Fences;
    use crate::vgpu::tdr::policy::DebugMode;
    use crate::vgpu::tdr::policy::Level;
    use crate::vgpu::tdr::policy::Policy;
    use crate::vgpu::tdr::reports::ReportFolder;
    use crate::vgpu::tdr::reports::Reports;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::bands_of;
    use crate::vgpu::testing::counted;
    use crate::vgpu::testing::end;
    use crate::vgpu::testing::give;
    use crate::vgpu::testing::lose;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::run;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store_progress;
    use crate::vgpu::testing::take_buffer;

    /// The report of the reset of an engine whose fence ids go up to 7, where the session expects others.
    fn reset_with(expected: Fences) -> (Session, Value) {
        reset_for(expected, Reason::EngineTimeout)
    }

    fn reset_for(expected: Fences, reason: Reason) -> (Session, Value) {
        let folder = tempfile::tempdir().unwrap();
        let reports = ReportFolder::open(folder.path()).unwrap();
        let path = reports.path().to_owned();
        let config = Arc::new(Config { reports: Arc::new(Reports::new(Some(reports))), ..startable() });
        let mut session = session(&config);
        let slot = &mut session.vm.engines[COPY.index()];
        slot.fences = Fences::after(7, 7);
        slot.begin(EngineProcess::unstarted(NodeKind::Copy).unwrap());
        slot.came_up();
        slot.fences = expected;
        Recovery::of(&mut session.vm).recover_engine(COPY, reason, "a test", None);
        let mut files = std::fs::read_dir(path).unwrap();
        let report = std::fs::read(files.next().unwrap().unwrap().path()).unwrap();
        (session, serde_json::from_slice(&report).unwrap())
    }

    #[test]
    fn tdr_41_tdr_42_tdr_83_a_reset_whose_last_aborted_id_cannot_be_becomes_one_of_the_adapter() {
        let (session, report) = reset_with(Fences::after(7, 7));
        let count = |session: &Session| {
            let counters = &session.vm.counters;
            [&counters.engines_reset, &counters.adapters_reset].map(|it| it.load(Ordering::Relaxed))
        };
        assert_eq!((count(&session), &report["last_aborted_fence"]), ([1, 0], &7.into()), "{report}");
        for (last, range) in [(6, "6 to 6"), (8, "8 to 8")] {
            let (session, report) = reset_with(Fences::after(last, last));
            assert_eq!(count(&session), [0, 1], "{report}");
            assert_eq!(report["reason_name"], Reason::PromotedToAdapter.name(), "{report}");
            let what = report["what"].as_str().unwrap();
            assert!(what.contains(&format!("fence 7 is outside {range}")), "{what}");
            assert_eq!(report["last_aborted_fence"], Value::Null);
        }
    }

    // conformance: not a hang, so that neither debug mode nor level of TDR has a say
    #[test]
    fn an_engine_that_breaks_the_protocol_of_its_grant_is_replaced_whatever_debug_mode_and_level_say() {
        let modes = [DebugMode::Ignore, DebugMode::Break, DebugMode::Recover, DebugMode::RecoverAlways];
        for debug in modes {
            for level in [Level::Off, Level::Recover] {
                let policy = Policy { debug, level, ..Policy::default() };
                let mut session = session(&Arc::new(Config { policy, ..startable() }));
                run(&mut session, COPY);
                session.vm.engines.admit(COPY, &session.vm.config).unwrap();
                let process = session.vm.engines[COPY.index()].process().unwrap();
                let (pid, handle) = (process.pid(), process.grant_handle());
                let word = Grant { phase: Phase::Granted, generation: 3 }.word();
                handle.shared.word(block::GRANT).unwrap().store(word, Ordering::Release);
                handle.asks.signal();
                let alarm = Arc::clone(session.vm.engines[COPY.index()].alarm());
                let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
                assert_eq!(poll(&mut [PollFd::new(&*alarm, PollFlags::IN)], Some(&limit)), Ok(1));
                Recovery::of(&mut session.vm).engine_alarm(COPY);
                let name = format!("{debug:?}, {level:?}");
                let counters = &session.vm.counters;
                let counts = [&counters.broken_grants, &counters.engines_reset, &counters.timeouts_ignored];
                assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [1, 1, 0], "{name}");
                let next = session.vm.engines[COPY.index()].process().unwrap();
                assert_ne!(next.pid(), pid, "{name}");
                // Over the same word, of which the last process leaves nothing.
                assert_eq!(handle.shared.word(block::GRANT).unwrap().load(Ordering::Acquire), 0, "{name}");
                session.vm.engines[COPY.index()].came_up();
                session.vm.engines.admit(COPY, &session.vm.config).unwrap();
                let word = handle.shared.word(block::GRANT).unwrap();
                assert_eq!(grant::take_turn(word), grant::Turn::Ask);
                handle.wake.drain();
                handle.asks.signal();
                assert!(handle.wake.wait(Some(Duration::from_secs(60))), "{name}: it has its turns");
                assert_eq!(alarm.take(), None, "{name}");
            }
        }
    }

    #[test]
    fn pre_68_pre_69_every_process_of_an_engine_finds_the_bands_of_the_operator() {
        let mut session = session(&Arc::new(startable()));
        let bands = |session: &Session| bands_of(session.vm.engines[COPY.index()].process().unwrap());
        assert!(
            !Lifecycle::of(&mut session.vm)
                .ensure_engine(COPY)
                .unwrap_or_else(|refused| panic!("{}", refused.text))
        );
        assert_eq!(bands(&session).normal_share, 37, "the first");
        let first = session.vm.engines[COPY.index()].process().unwrap().pid();
        session.vm.engines[COPY.index()].came_up();
        Recovery::of(&mut session.vm).recover_engine(COPY, Reason::EngineTimeout, "a test", None);
        assert_ne!(session.vm.engines[COPY.index()].process().unwrap().pid(), first);
        assert_eq!(bands(&session).normal_share, 37, "its successor");
        session.vm.engines[COPY.index()].came_up();
        Recovery::of(&mut session.vm).recover_engine(COPY, Reason::InvalidFence, "a test", None);
        assert!(session.vm.engines[COPY.index()].process().is_none(), "the adapter is reset");
        assert!(
            !Lifecycle::of(&mut session.vm)
                .ensure_engine(COPY)
                .unwrap_or_else(|refused| panic!("{}", refused.text))
        );
        assert_eq!(bands(&session).normal_share, 37, "after a reset of the adapter");
    }

    #[test]
    fn tdr_53_tdr_56_a_session_counts_what_an_engine_hands_back_as_not_completed() {
        for fault in [HW_PREEMPTED, HW_SUSPENDED, HW_BLOCKED] {
            let mut session = session(&Arc::new(startable()));
            run(&mut session, COPY);
            let ids = [give(&mut session, None), give(&mut session, None)];
            end(&session, 0, ids[0], 0);
            end(&session, 1, ids[1], fault);
            EngineReports::of(&mut session.vm).collect_completions(COPY);
            let slot = &session.vm.engines[COPY.index()];
            assert_eq!((slot.fences.completed(), slot.fences.submitted()), (ids[0], ids[1]), "{fault:#x}");
            assert!(slot.in_flight.is_empty());
            let next = give(&mut session, None);
            end(&session, 2, next, 0);
            EngineReports::of(&mut session.vm).collect_completions(COPY);
            assert_eq!(session.vm.engines[COPY.index()].fences.completed(), next);
            assert_eq!(session.vm.counters.adapters_reset.load(Ordering::Relaxed), 0, "in order");
        }
    }

    /// A session whose copy engine runs, and a kernel-mode buffer of its second process.
    fn with_buffer() -> (Session, Buffer) {
        let mut session = restored(startable());
        let buffer = take_buffer(&mut session);
        (session, buffer)
    }

    fn device_status(session: &Session, context: GuestProcess) -> u64 {
        session.vm.objects.processes[&context].device.as_ref().unwrap().status
    }

    #[test]
    fn tdr_39_a_completion_that_was_not_collected_yet_convicts_nobody() {
        let (mut session, buffer) = with_buffer();
        let ids = [7, 1].map(|owner| give(&mut session, Some((GuestProcess::new(owner), buffer))));
        // The first is done, the second runs, and the session has not looked since.
        end(&session, 0, ids[0], 0);
        store_progress(&session, Work::HwQueue);
        Recovery::of(&mut session.vm).recover_engine(COPY, Reason::EngineTimeout, "a test", None);
        assert_eq!(session.vm.engines[COPY.index()].fences.completed(), ids[1]);
        assert_eq!(
            (device_status(&session, GuestProcess::new(7)), device_status(&session, GuestProcess::new(1))),
            (DEVICE_ACTIVE, DEVICE_HUNG)
        );
        assert_eq!(session.vm.counters.engines_reset.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn tdr_39_a_fault_that_an_engine_has_reported_is_acted_on_before_its_reset() {
        let (mut session, buffer) = with_buffer();
        give(&mut session, Some((GuestProcess::new(7), buffer)));
        store_progress(&session, Work::HwQueue);
        let device = session.vm.objects.processes[&GuestProcess::new(7)].device.as_ref().unwrap();
        let queue = device.doorbells.iter().find_map(|(_, doorbell)| doorbell.hw_queue).unwrap();
        let shared = session.vm.engines[COPY.index()].process().unwrap().grant_handle().shared;
        let fault = shared.word(block::queue(u32::from(queue.get())) + block::QUEUE_FAULT).unwrap();
        fault.store(Fault::PageFault as u64, Ordering::Release);
        bits::raise(&shared, block::ATTENTION, u32::from(queue.get()));
        Recovery::of(&mut session.vm).recover_engine(COPY, Reason::EngineTimeout, "a test", None);
        assert_eq!(
            device_status(&session, GuestProcess::new(7)),
            DEVICE_PAGE_FAULT,
            "the first reason stays"
        );
        assert_eq!(session.vm.counters.engines_reset.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn tdr_39_an_engine_that_its_last_reports_have_replaced_is_not_replaced_again() {
        let (mut session, _) = with_buffer();
        let shared = session.vm.engines[COPY.index()].process().unwrap().grant_handle().shared;
        shared.word(block::context_report(0)).unwrap().store(99, Ordering::Release);
        bits::raise(&shared, block::SUSPEND_REPORTS, 0);
        Recovery::of(&mut session.vm).recover_engine(COPY, Reason::EngineTimeout, "a test", None);
        let counters = &session.vm.counters;
        let counts = [&counters.engines_reset, &counters.engines_lost, &counters.adapters_reset];
        assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [1, 0, 0]);
    }

    #[test]
    fn tdr_48_tdr_61_whose_buffer_it_was_when_that_was_decided_pays_though_it_has_completed() {
        for completes in [true, false] {
            let (mut session, buffer) = with_buffer();
            let id = give(&mut session, Some((GuestProcess::new(7), buffer)));
            store_progress(&session, Work::HwQueue);
            session.vm.engines.unwatch(COPY);
            let mut case =
                Recovery::of(&mut session.vm).open_case(COPY, Reason::EngineTimeout, "a test", None);
            if completes {
                end(&session, 0, id, 0);
            }
            Recovery::of(&mut session.vm).reset_engine(COPY, &mut case).unwrap();
            assert_eq!(case.last_aborted, Some(id));
            assert_eq!(case.affected, [(GuestProcess::new(7), false)], "the primary cause, and no other");
            assert_eq!(session.vm.engines[COPY.index()].fences.completed(), id);
            let status = [7, 1].map(|context| device_status(&session, GuestProcess::new(context)));
            assert_eq!(status, [DEVICE_HUNG, DEVICE_ACTIVE], "completes: {completes}");
            let page = session.vm.memory.page(&session.vm.objects, GuestProcess::new(7)).unwrap();
            let told = [LOSS, LOSS_REPORT].map(|at| page.word(at).unwrap().load(Ordering::Acquire));
            assert_eq!(told, [LOSS_PRIMARY << 32 | 6, case.number], "its guest is told, too");
        }
    }

    #[test]
    fn tdr_64_an_engine_gets_no_turn_until_it_is_resumed_and_then_who_is_innocent_goes_on() {
        let (mut session, buffer) = with_buffer();
        session.vm.engines.admit(COPY, &session.vm.config).unwrap();
        assert!(session.vm.engines[COPY.index()].supervised.is_some());
        let ids = [1, 7].map(|owner| give(&mut session, Some((GuestProcess::new(owner), buffer))));
        store_progress(&session, Work::HwQueue);
        session.vm.engines.unwatch(COPY);
        let mut case = Recovery::of(&mut session.vm).open_case(COPY, Reason::EngineTimeout, "a test", None);
        Recovery::of(&mut session.vm).reset_engine(COPY, &mut case).unwrap();
        assert_eq!(
            case.affected,
            [(GuestProcess::new(1), false)],
            "named with CollateralDamage 0, and none with 1"
        );
        assert_eq!(
            (device_status(&session, GuestProcess::new(1)), device_status(&session, GuestProcess::new(7))),
            (DEVICE_HUNG, DEVICE_ACTIVE)
        );
        let slot = &session.vm.engines[COPY.index()];
        assert!(slot.supervised.is_none() && !slot.has_begun(), "it has no turns before it has come up");
        let waiting: Vec<_> =
            slot.in_flight.iter().map(|flight| (flight.fence_id, flight.owner.map(|(of, _)| of))).collect();
        assert_eq!(
            waiting[0],
            (ids[1], Some(GuestProcess::new(7))),
            "what the innocent had with the engine stays in its place"
        );
        assert!(waiting.iter().all(|(_, owner)| *owner == Some(GuestProcess::new(7))));
        session.vm.engines.admit(COPY, &session.vm.config).unwrap();
        assert!(session.vm.engines[COPY.index()].supervised.is_none(), "nor by a message in between");
        session.vm.engines[COPY.index()].came_up();
        session.vm.engines.admit(COPY, &session.vm.config).unwrap();
        assert!(session.vm.engines[COPY.index()].supervised.is_some(), "resumed");
        // The rest of its context follows.
        for count in 1..=4 {
            let oldest = session.vm.engines[COPY.index()].in_flight.front().unwrap();
            let (fence_id, owner) = (oldest.fence_id, oldest.owner.map(|(of, _)| of));
            assert_eq!(owner, Some(GuestProcess::new(7)), "buffer {count}");
            end(&session, count, fence_id, 0);
            EngineReports::of(&mut session.vm).collect_completions(COPY);
        }
        assert!(session.vm.engines[COPY.index()].in_flight.is_empty());
        assert_eq!(device_status(&session, GuestProcess::new(7)), DEVICE_ACTIVE);
    }

    #[test]
    fn tdr_33_a_reset_is_of_one_node_of_one_physical_adapter() {
        let config = Arc::new(Config { engines: 2, ..startable() });
        let all: Vec<_> = EngineAddress::all(2).collect();
        assert_eq!(all.len(), 4);
        for &reset in &all {
            let mut session = session(&config);
            all.iter().for_each(|at| run(&mut session, *at));
            let pids = |session: &Session| -> Vec<u32> {
                all.iter().map(|at| session.vm.engines[at.index()].process().unwrap().pid()).collect()
            };
            let before = pids(&session);
            Recovery::of(&mut session.vm).recover_engine(reset, Reason::EngineTimeout, "a test", None);
            for ((at, before), after) in all.iter().zip(before).zip(pids(&session)) {
                assert_eq!(before != after, *at == reset, "{at} after a reset of {reset}");
                assert_eq!(session.vm.engines[at.index()].has_begun(), *at != reset, "{at}");
            }
        }
    }

    #[test]
    fn tdr_74_each_kind_of_reset_is_recorded_by_its_number() {
        for (reason, recorded, adapters) in [
            (Reason::Forced, 1, 0),
            (Reason::EngineTimeout, 6, 0),
            // An engine whose fences cannot be believed is not reset by itself.
            (Reason::InvalidFence, 11, 1),
        ] {
            let (session, report) = reset_for(Fences::after(7, 7), reason);
            assert_eq!(report["reason"], recorded, "{report}");
            assert_eq!(session.vm.counters.adapters_reset.load(Ordering::Relaxed), adapters);
        }
        let (_, report) = reset_with(Fences::after(6, 6));
        assert_eq!(report["reason"], 9, "{report}");
    }

    /// The number of the only report in a folder, and the kind of reset that it records.
    fn recorded(folder: &Path) -> Value {
        let mut files = std::fs::read_dir(folder).unwrap();
        let report = std::fs::read(files.next().unwrap().unwrap().path()).unwrap();
        assert!(files.next().is_none(), "one reset, one report");
        serde_json::from_slice::<Value>(&report).unwrap()["reason"].clone()
    }

    #[test]
    fn tdr_74_what_happens_decides_which_kind_of_reset_is_recorded() {
        type Event = fn(&mut Session);
        let events: [(u32, &str, Event); 5] = [
            (6, "it hangs", |session| Recovery::of(&mut session.vm).engine_timeout(COPY, "a test", None)),
            (6, "its process has ended", |session| lose(session, COPY, "a test")),
            (11, "a result of a buffer that it was not given", |session| {
                let id = give(session, None);
                end(session, 0, id + 1, 0);
                Recovery::of(&mut session.vm).collect_reports(COPY);
            }),
            (11, "a preemption after a buffer that it was not given", |session| {
                let id = give(session, None);
                let process = session.vm.engines[COPY.index()].process_mut().unwrap();
                assert!(matches!(process.preempt_command(), Preemption::Requested(1)));
                let shared = process.grant_handle().shared;
                end(session, 0, id, HW_PREEMPTED);
                shared.word(PREEMPT_LAST_COMPLETED).unwrap().store(id + 1, Ordering::Release);
                shared.word(PREEMPT_REPORT).unwrap().store(1, Ordering::Release);
                Recovery::of(&mut session.vm).collect_reports(COPY);
            }),
            (1, "everything is given up", |session| session.recovery().lose_everything("a test")),
        ];
        for (number, what, event) in events {
            let folder = tempfile::tempdir().unwrap();
            let reports = ReportFolder::open(folder.path()).unwrap();
            let path = reports.path().to_owned();
            let config = Config { reports: Arc::new(Reports::new(Some(reports))), ..startable() };
            let mut session = session(&Arc::new(config));
            run(&mut session, COPY);
            event(&mut session);
            session.settle();
            assert_eq!(recorded(&path), number, "{what}");
        }
    }

    #[test]
    fn tdr_80_after_a_reset_of_the_adapter_what_waited_goes_on_and_engines_start_when_they_are_used() {
        let mut session = session(&Arc::new(startable()));
        run(&mut session, COPY);
        let barrier = Barrier::raise(&mut session.vm.engines);
        Deferred::of(&mut session.vm).after(barrier, Action::Answer(Token(5)));
        assert_eq!(
            (session.vm.engines.pending.len(), session.take_due()),
            (1, Vec::new()),
            "the engine does not answer"
        );
        Recovery::of(&mut session.vm).recover_engine(COPY, Reason::InvalidFence, "a test", None);
        assert!(
            session.vm.engines.iter().all(|slot| slot.process().is_none()),
            "none is left, nor there yet"
        );
        assert!(session.vm.engines.pending.is_empty());
        assert_eq!(session.take_due(), [(Token(5), Ok(()))], "what waited for engines waits no more");
        run(&mut session, COPY);
        session.vm.engines.admit(COPY, &session.vm.config).unwrap();
        assert!(session.vm.engines[COPY.index()].supervised.is_some(), "used again");
    }

    #[test]
    fn tdr_21_whose_work_ran_has_an_offence_more_however_the_reset_went() {
        for (reason, adapters) in [(Reason::EngineTimeout, 0), (Reason::InvalidFence, 1)] {
            let (mut session, buffer) = with_buffer();
            give(&mut session, Some((GuestProcess::new(7), buffer)));
            store_progress(&session, Work::HwQueue);
            Recovery::of(&mut session.vm).recover_engine(COPY, reason, "a test", None);
            let offences = |context: GuestProcess| {
                session.vm.objects.processes[&context].offences.ages(std::time::Instant::now()).len()
            };
            assert_eq!(
                (offences(GuestProcess::new(7)), offences(GuestProcess::new(1))),
                (1, 0),
                "{reason:?}"
            );
            assert_eq!(counted(&session.vm.counters.adapters_reset), adapters);
        }
    }

    #[test]
    fn tdr_17_tdr_29_neither_forced_resets_nor_those_without_limits_are_promoted() {
        let always = Policy { debug: DebugMode::RecoverAlways, ..Policy::default() };
        for (policy, reason, promoted) in [
            (Policy::default(), Reason::EngineTimeout, 1),
            (Policy::default(), Reason::Forced, 0),
            (always, Reason::EngineTimeout, 0),
        ] {
            let mut session = session(&Arc::new(Config { policy, ..startable() }));
            run(&mut session, COPY);
            for _ in 0..6 {
                Recovery::of(&mut session.vm).recover_engine(COPY, reason, "a test", None);
                session.vm.engines[COPY.index()].came_up();
            }
            let counts =
                [&session.vm.counters.engines_reset, &session.vm.counters.adapters_reset].map(counted);
            assert_eq!(counts, [6 - promoted, promoted], "{reason:?}");
        }
    }

    #[test]
    fn an_engine_that_was_held_for_a_debugger_and_an_old_alarm_say_nothing_of_the_next_process() {
        let mut session = session(&Arc::new(startable()));
        run(&mut session, COPY);
        session.vm.engines[COPY.index()].is_held = true;
        Recovery::of(&mut session.vm).recover_engine(COPY, Reason::Forced, "a test", None);
        assert!(!session.vm.engines[COPY.index()].is_held);
        let alarm = Arc::clone(session.vm.engines[COPY.index()].alarm());
        alarm.raise(Hang::NoProgress, Progress::from_word(0));
        session.vm.engines[COPY.index()].came_up();
        session.vm.engines.admit(COPY, &session.vm.config).unwrap();
        assert_eq!(alarm.take(), None);
        // Nor does the supervisor keep the process before.
        let slot = &session.vm.engines[COPY.index()];
        let (block, id) = (slot.process().unwrap().grant_handle().shared, slot.supervised);
        let held = Arc::strong_count(&block);
        Recovery::of(&mut session.vm).recover_engine(COPY, Reason::Forced, "a test", None);
        assert!(id.is_some() && Arc::strong_count(&block) < held);
    }

    #[test]
    fn a_wait_that_was_over_when_the_engine_ended_is_answered_after_its_reset() {
        let mut session = restored(startable());
        let (queue, value) = session.vm.objects.processes[&GuestProcess::new(7)]
            .device
            .as_ref()
            .unwrap()
            .waits
            .iter()
            .map(|wait| (wait.queue, wait.value))
            .next()
            .unwrap();
        session
            .vm
            .memory
            .page(&session.vm.objects, GuestProcess::new(7))
            .unwrap()
            .word(fence(queue.index()))
            .unwrap()
            .store(value, Ordering::Release);
        Recovery::of(&mut session.vm).recover_engine(COPY, Reason::EngineTimeout, "a test", None);
        assert!(
            session.vm.objects.processes[&GuestProcess::new(7)].device.as_ref().unwrap().waits.is_empty()
        );
    }
}

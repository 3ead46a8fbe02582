//! The reset of a whole vGPU, and its quarantine (TDR-71 to TDR-80).

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use log::Level;

use super::reason::Reason;
use super::reset_record::Case;
use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::counters::count;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::spans;
use crate::vgpu::tdr::recovery::Recovery;

impl Recovery<'_> {
    /// Resets every engine and ends every device (TDR-71); how many devices were lost.
    pub(in crate::vgpu) fn reset_adapter(&mut self, mut case: Case) -> usize {
        let _span = spans::adapter_reset(&self.vm.config.name, case.reason.name()).entered();
        self.reset_from_timeout(&case.text);
        case.reset_is_done();
        let lost = self.lose_all_devices(&mut case);
        // With the engines gone what waited for them is done, and no device waits any more; engines start when they are used
        // (TDR-80).
        self.purge_memory();
        count(&self.vm.counters.adapters_reset);
        self.vm.journal.line(
            Level::Warn,
            format_args!(
                "adapter is reset ({}): {}; {lost} devices are lost (report {})",
                case.reason.name(),
                case.text,
                case.number
            ),
        );
        self.close_case(&case, "adapter reset", true);
        if case.is_fatal {
            self.quarantine(&case.text);
        }
        let standing = &self.vm.config.standing;
        if case.reason != Reason::Forced && !standing.adapter_reset(&self.vm.config.policy, clock::now()) {
            let policy = &self.vm.config.policy;
            let why = format!(
                "more than {} adapter resets within {} s, the last because {}",
                policy.limit_count,
                policy.limit_time.as_secs(),
                case.text
            );
            self.quarantine(&why);
        }
        lost
    }

    /// Every device is lost, for a reason that is no fault here: its guest runs elsewhere, or may.
    pub fn lose_everything(&mut self, why: &str) {
        let case = self.open_case(EngineAddress::new(0, NodeKind::Compute), Reason::Forced, why, None);
        self.reset_adapter(case);
    }

    /// Ends every engine process: when this returns none of them touches memory (TDR-75), and nothing that was given to
    /// them is left (TDR-55).
    fn reset_from_timeout(&mut self, reason: &str) {
        let mut refused = Vec::new();
        for at in self.vm.engines.addresses() {
            let slot = &mut self.vm.engines[at.index()];
            refused.extend(std::mem::take(&mut slot.waiting).into_iter().map(|message| message.origin));
            Lifecycle::of(self.vm).stop_engine(at);
        }
        refused.extend(self.vm.engines.take_compiling(|_| true));
        let text = format!("the GPU was reset: {reason}");
        for origin in refused {
            self.vm.answer(origin, Err(Refused { status: Status::DeviceLost, text: text.clone() }));
        }
    }

    fn lose_all_devices(&mut self, case: &mut Case) -> usize {
        let of_device = |(context, process): (&GuestProcess, &crate::vgpu::objects::process::Process)| {
            process.device.as_ref().filter(|device| device.is_active()).map(|_| *context)
        };
        let contexts: Vec<GuestProcess> = self.vm.objects.processes.iter().filter_map(of_device).collect();
        for context in &contexts {
            let is_collateral = case.guilty.is_none_or(|(guilty, _)| guilty != *context);
            Devices::of(self.vm).lose_device(*context, device_page::DEVICE_RESET, case.loss(is_collateral));
            case.affected.push((*context, is_collateral));
        }
        let engines = self.vm.config.engines;
        for process in self.vm.objects.processes.values_mut() {
            // The next process of an engine has never heard of any of them.
            if let Some(device) = &mut process.device {
                EngineAddress::all(engines).for_each(|at| device.forget_engine(at));
            }
        }
        contexts.len()
    }

    /// From now on this vGPU gets no device, until the operator allows it again.
    pub(in crate::vgpu) fn quarantine(&mut self, why: &str) {
        if self.vm.config.standing.quarantine(why, clock::now()) {
            count(&self.vm.counters.quarantines);
            log::error!(
                "{}: quarantined: {why}; `campanile ctl allow --vgpu {0}` lifts it",
                self.vm.config.name
            );
        }
    }

    /// A process's work was the cause of a reset: past its limit it gets no device any more (TDR-21).
    pub(in crate::vgpu) fn note_offence(&mut self, context: GuestProcess, report: u64) {
        let policy = self.vm.config.policy;
        let Some(process) = self.vm.objects.processes.get_mut(&context) else { return };
        let within = process.offences.note(clock::now(), policy.process_limit(), policy.limit_time);
        if within || !policy.has_limits() || process.blocked.is_some() {
            return;
        }
        process.blocked = Some(report);
        count(&self.vm.counters.processes_blocked);
        self.vm.journal.line(
            Level::Warn,
            format_args!("process {context} is blocked: it hung the GPU too often (report {report})"),
        );
    }

    /// A timeout that is fatal by level (TDR-16): the vGPU is out, the host goes on (TDR-83).
    pub(in crate::vgpu) fn fatal(&mut self, at: EngineAddress, reason: Reason, text: &str) {
        let case = self.open_case(at, reason, text, None);
        self.reset_adapter(case);
        self.quarantine(text);
    }

    /// Forgets the contents of video memory after the reset of the adapter.
    pub(in crate::vgpu) fn purge_memory(&mut self) {
        Deferred::of(self.vm).run_pending();
        self.vm.memory.purge(&mut self.vm.journal);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use campanile_protocol::device_page::DEVICE_HUNG;
    use campanile_protocol::device_page::LOSS;
    use campanile_protocol::device_page::LOSS_COLLATERAL;
    use campanile_protocol::device_page::LOSS_PRIMARY;
    use campanile_protocol::device_page::response;
    use campanile_protocol::handle::Handle;

    use super::Case;
    use super::Reason;
    use super::Status;
    use crate::ids::GuestProcess;
    use crate::vgpu::config::Config;
    use crate::vgpu::control::deferred::Deferred;
    use crate::vgpu::control::devices::admission;
    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::engines::pending_kernel::PendingKernel;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::objects::timeline::Token;
    use crate::vgpu::objects::waits::GpuWait;
    use crate::vgpu::session::Session;
    use crate::vgpu::tdr::policy::DebugMode;
    use crate::vgpu::tdr::policy::Policy;
    use crate::vgpu::tdr::recovery::Recovery;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::counted;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::golden;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::run;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::show_pages;
    use crate::vgpu::testing::startable;

    fn case(session: &mut Session, reason: Reason) -> Case {
        Recovery::of(&mut session.vm).open_case(COPY, reason, "a test", None)
    }

    fn is_quarantined(session: &Session) -> bool {
        session.vm.config.standing.quarantined().is_some()
    }

    #[test]
    fn tdr_19_resets_past_the_limit_quarantine_a_vgpu_and_forced_ones_do_not_count() {
        let mut session = session(&Arc::new(config()));
        for _ in 0..7 {
            let forced = case(&mut session, Reason::Forced);
            Recovery::of(&mut session.vm).reset_adapter(forced);
        }
        for count in 1..=6 {
            assert!(!is_quarantined(&session), "{count}");
            let hang = case(&mut session, Reason::PromotedToAdapter);
            Recovery::of(&mut session.vm).reset_adapter(hang);
        }
        assert!(is_quarantined(&session));
        assert_eq!(counted(&session.vm.counters.quarantines), 1);
    }

    #[test]
    fn tdr_15_a_process_that_cannot_be_ended_is_fatal_to_its_vgpu_at_once() {
        for is_fatal in [false, true] {
            let mut session = session(&Arc::new(config()));
            let mut case = case(&mut session, Reason::PromotedToAdapter);
            case.is_fatal = is_fatal;
            Recovery::of(&mut session.vm).reset_adapter(case);
            assert_eq!(is_quarantined(&session), is_fatal);
        }
    }

    #[test]
    fn tdr_64_an_adapter_reset_says_of_each_device_whether_it_was_the_cause() {
        let mut session = session(&Arc::new(config()));
        session.restore(&golden()).unwrap();
        show_pages(&mut session);
        let mut case = case(&mut session, Reason::EngineTimeout);
        case.guilty = Some((OWNER, None));
        assert_eq!(Recovery::of(&mut session.vm).reset_adapter(case), 2);
        let told = |of: GuestProcess| {
            session
                .vm
                .memory
                .page(&session.vm.objects, of)
                .unwrap()
                .word(LOSS)
                .unwrap()
                .load(Ordering::Acquire)
        };
        assert_eq!(
            (told(OWNER), told(GuestProcess::new(1))),
            (LOSS_PRIMARY << 32 | 6, LOSS_COLLATERAL << 32 | 6)
        );
        for of in [OWNER, GuestProcess::new(1)] {
            let device = device(&mut session, of);
            assert!(!device.is_active() && device.presence.iter().all(Option::is_none));
            assert!(device.contexts.iter().all(|(_, context)| context.entry.is_none()), "engines know none");
        }
    }

    #[test]
    fn kernels_that_no_device_waits_for_any_more_are_no_work_of_the_engines_that_start_after_a_reset() {
        let mut session = session(&Arc::new(config()));
        session.restore(&golden()).unwrap();
        show_pages(&mut session);
        // Its device is in error since before it was asked for.
        device(&mut session, OWNER).status = DEVICE_HUNG;
        let origin = Origin { context: OWNER, slot: 9, sequence: 77, ring: 9, item: None };
        let kernel = PendingKernel::new(origin, Handle(1), 1);
        session.vm.engines[COPY.index()].compiling.insert((1, 1), kernel);
        let forced = case(&mut session, Reason::Forced);
        Recovery::of(&mut session.vm).reset_adapter(forced);
        assert!(session.vm.engines[COPY.index()].compiling.is_empty());
        let page = session.vm.memory.page(&session.vm.objects, OWNER).unwrap();
        assert_eq!(page.word(response(9)).unwrap().load(Ordering::Acquire), 77, "it is answered");
    }

    #[test]
    fn tdr_21_a_process_is_blocked_past_its_limit_and_never_without_limits() {
        for (debug, is_blocked) in [(DebugMode::Recover, true), (DebugMode::RecoverAlways, false)] {
            let policy = Policy { debug, ..Policy::default() };
            let mut session = session(&Arc::new(Config { policy, ..config() }));
            session.restore(&golden()).unwrap();
            for report in 1..=5 {
                assert_eq!(session.vm.objects.processes[&OWNER].blocked, None, "{report}");
                Recovery::of(&mut session.vm).note_offence(OWNER, report);
            }
            assert_eq!(session.vm.objects.processes[&OWNER].blocked, is_blocked.then_some(5));
            assert_eq!(session.vm.objects.processes[&GuestProcess::new(1)].blocked, None);
        }
    }

    #[test]
    fn mcdm_41_a_device_that_is_single_use_is_refused_while_another_process_has_it() {
        let mut session = session(&Arc::new(config()));
        session.restore(&golden()).unwrap();
        session.vm.objects.processes.retain(|of, _| *of == OWNER);
        let status = |session: &Session, of: GuestProcess| {
            admission(&session.vm, of).map_err(|refused| refused.status)
        };
        assert_eq!(status(&session, GuestProcess::new(99)), Ok(()), "many may have it");
        session.vm.config = Arc::new(Config { single_use: true, ..config() });
        assert_eq!(
            (status(&session, OWNER), status(&session, GuestProcess::new(99))),
            (Ok(()), Err(Status::Busy))
        );
        session.vm.objects.processes.get_mut(&OWNER).unwrap().device = None;
        assert_eq!(status(&session, GuestProcess::new(99)), Ok(()), "it is free again");
    }

    #[test]
    fn tdr_21_neither_a_blocked_process_nor_any_of_a_quarantined_vgpu_gets_a_device() {
        let mut session = session(&Arc::new(config()));
        session.restore(&golden()).unwrap();
        session.vm.objects.processes.get_mut(&OWNER).unwrap().blocked = Some(31);
        let refused = |session: &Session, of: GuestProcess| {
            admission(&session.vm, of).map_err(|it| (it.status, it.text))
        };
        let (status, text) = refused(&session, OWNER).unwrap_err();
        assert!(status == Status::Blocked && text.contains("(report 31)"), "{text}");
        assert_eq!(refused(&session, GuestProcess::new(1)), Ok(()));
        Recovery::of(&mut session.vm).quarantine("a test");
        let (status, text) = refused(&session, GuestProcess::new(1)).unwrap_err();
        assert!(status == Status::Blocked && text.contains("quarantined: a test"), "{text}");
    }

    #[test]
    fn tdr_80_after_a_reset_of_the_adapter_nothing_waits_for_an_engine_or_in_a_device() {
        let mut session = restored(startable());
        let wait = GpuWait { context: CONTEXT, index: 0, value: u64::MAX };
        device(&mut session, OWNER).gpu_waits.push(wait);
        let barrier = Barrier::raise(&mut session.vm.engines);
        Deferred::of(&mut session.vm).after(barrier, Action::Answer(Token(5)));
        let waits = |session: &Session| {
            let devices = session.vm.objects.processes.values().filter_map(|process| process.device.as_ref());
            let all = devices.map(|it| [it.waits.len(), it.native_waits.len(), it.gpu_waits.len()]);
            all.fold([0; 3], |sum, of| [sum[0] + of[0], sum[1] + of[1], sum[2] + of[2]])
        };
        assert!(waits(&session).iter().all(|count| *count > 0) && !session.vm.engines.pending.is_empty());
        let hang = case(&mut session, Reason::PromotedToAdapter);
        Recovery::of(&mut session.vm).reset_adapter(hang);
        assert_eq!((waits(&session), session.vm.engines.pending.len()), ([0; 3], 0));
        assert!(session.take_due().contains(&(Token(5), Ok(()))), "what waited for engines is done");
        run(&mut session, COPY);
        session.vm.engines.admit(COPY, &session.vm.config).unwrap();
        assert!(session.vm.engines[COPY.index()].supervised.is_some(), "an engine starts when it is used");
    }

    #[test]
    fn tdr_16_tdr_83_a_timeout_that_is_fatal_by_level_resets_its_vgpu_and_quarantines_it() {
        let mut session = session(&Arc::new(config()));
        Recovery::of(&mut session.vm).fatal(COPY, Reason::EngineTimeout, "a test");
        assert_eq!(counted(&session.vm.counters.adapters_reset), 1);
        assert_eq!(session.vm.config.standing.quarantined().unwrap().why, "a test");
    }
}

//! An engine that hung or died is replaced, and who was in its way pays: nobody else notices (TDR-03, TDR-70).
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

use campanile_host_gpu::engine::address::node_index;
use std::time::Instant;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::error::AdapterError;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::control::message;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_HUNG;
use campanile_protocol::page_table::SegmentId;
use log::Level;

use super::case::Case;
use super::counters::count;
use super::engine_slot::WaitingMessage;
use super::reply::Refused;
use super::state::Session;
use crate::recovery::group::DependentGroup;
use crate::recovery::reason::Reason;
use crate::supervisor::alarm::Sighting;

impl Session {
    /// An engine is no good any more: it is replaced, or everything of this vGPU is reset.
    pub(super) fn lose_engine(&mut self, at: EngineAddress, text: &str) {
        self.recover_engine(at, Reason::EngineTimeout, text, None);
    }

    /// As [`Self::lose_engine`], for any reason. The number of the report, where there was one.
    pub(super) fn recover_engine(
        &mut self,
        at: EngineAddress,
        reason: Reason,
        text: &str,
        sighting: Option<Sighting>,
    ) -> u64 {
        let index = at.index();
        if !self.engines[index].has_devices() {
            self.give_up_engine(at, text);
            return 0;
        }
        // What was done until now counts; what comes from here on is not listened to (TDR-37, TDR-43).
        self.collect_completions(at);
        if self.engines[index].process().is_none() {
            return 0;
        }
        self.unwatch_engine(at);
        let mut case = self.open_case(at, reason, text, sighting);
        let number = case.number;
        if let Err(why) = self.reset_engine(at, &mut case) {
            count(&self.counters.engines_lost);
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
        self.stop_engine(at);
        let text = format!("the {at} engine is lost: {reason}");
        self.refuse_waiting_for(at, &Refused { status: Status::NotSupported, text });
        self.run_pending();
    }

    /// Answers what waits for an engine that does not come.
    pub(super) fn refuse_waiting_for(&mut self, at: EngineAddress, refused: &Refused) {
        for WaitingMessage { origin, opcode, body } in std::mem::take(&mut self.engines[at.index()].waiting) {
            if opcode == message::DESTROY_KERNEL {
                // Who is not there knows no kernel.
                self.handle(origin, opcode, &body);
            } else {
                self.answer(origin, Err(refused.clone()));
            }
        }
    }

    /// Replaces the process of a running engine; why not, where that cannot be.
    fn reset_engine(&mut self, at: EngineAddress, case: &mut Case) -> Result<(), String> {
        let (index, node) = (at.index(), node_index(at.node));
        let policy = self.config.policy;
        let slot = &mut self.engines[index];
        if !slot.has_begun() {
            return Err("it had not come up".to_owned());
        }
        let within = slot.resets.note(Instant::now(), policy.limit_count, policy.limit_time);
        if case.reason == Reason::InvalidFence {
            return Err("it cannot be believed".to_owned());
        }
        if !within && policy.has_limits() && case.reason != Reason::Forced {
            return Err(format!("it was reset {} times in {:?}", policy.limit_count, policy.limit_time));
        }
        let process = slot.process_mut().ok_or_else(|| "it has no process".to_owned())?;
        // Every node is a process, and takes no other down; else everything is reset.
        let group = DependentGroup::new(process.query_dependent_engine_group(), node);
        if group.map_err(|error| error.to_string())?.nodes().any(|other| other != node) {
            return Err("other nodes depend on it".to_owned());
        }
        let last_aborted = process.reset_engine().map_err(|error| {
            case.is_fatal = matches!(error, AdapterError::Stuck { .. });
            error.to_string()
        })?;
        process.forget_signalled();
        slot.fences.check(last_aborted).map_err(|error| error.to_string())?;
        case.last_aborted = Some(last_aborted);
        if let Some(id) = slot.supervised.take() {
            self.config.supervisor.remove(id);
        }
        case.reset_is_done();
        // First, so that nothing of it is told to the next process.
        self.convict(case);
        self.start_next_process(at).map_err(|error| error.to_string())?;
        count(&self.counters.engines_reset);
        // The aborted buffer is among these.
        self.collect_reports(at);
        let guilty =
            case.guilty.map_or_else(String::new, |(context, _)| format!("; context {context} is lost"));
        self.journal.line(
            Level::Warn,
            format_args!("{at} engine is reset: {}{guilty} (report {})", case.text, case.number),
        );
        self.close_case(case, "engine reset", false);
        self.release_all_waiters();
        self.run_pending();
        Ok(())
    }

    /// Starts the next process, and puts into its outbox what it has to know before it may run.
    pub(super) fn start_next_process(&mut self, at: EngineAddress) -> std::io::Result<()> {
        self.refuse_compiling(at, "the engine ended while it compiled this kernel");
        self.start_process_again(at)
    }

    /// As [`Self::start_next_process`], where no kernel was the reason that there is none: those that were compiled are
    /// compiled again.
    pub(super) fn start_process_again(&mut self, at: EngineAddress) -> std::io::Result<()> {
        let start = self.config.start_message(at.node, self.tables.mapping().len());
        let memory = Self::engine_memory(&self.config, &self.allocations, &self.tables, &self.fences);
        let slot = &mut self.engines[at.index()];
        slot.revive(&self.config.program, &start, memory)?;
        self.watch_engine(at)?;
        let segments: Vec<SegmentId> = self.segments.ids().collect();
        for segment in segments {
            self.announce_segment(at, segment);
        }
        self.look_again(at);
        if at.node == NodeKind::Compute {
            self.compile_again(at);
        }
        Ok(())
    }

    /// Has a compute engine compile every kernel that there is. It runs nothing before it has those that were compiled.
    pub(super) fn compile_again(&mut self, at: EngineAddress) {
        let devices = self.processes.values().filter_map(|process| process.device.as_ref());
        let devices = devices.filter(|device| device.is_active());
        let kernels: Vec<_> = devices
            .flat_map(|device| {
                let root = device.root.0;
                device
                    .kernels
                    .iter()
                    .filter(|(_, source)| !source.is_ending)
                    .map(move |(handle, source)| (Self::kernel_name(root, handle), source.clone()))
            })
            .collect();
        for (kernel, source) in kernels {
            let slot = &mut self.engines[at.index()];
            let name = (kernel.root, kernel.handle);
            if !slot.compiling.contains_key(&name) {
                slot.rebuilding.insert(name);
            }
            let request = Request::CreateKernel { kernel, language: source.language, entry: source.entry };
            self.post(at, request, &source.bytes);
        }
    }

    /// What the last process had seen of rings, and not run, nobody would see otherwise: rings are not rung twice.
    fn look_again(&self, at: EngineAddress) {
        let Some(process) = self.engines[at.index()].process() else { return };
        for device in self.processes.values().filter_map(|process| process.device.as_ref()) {
            let of_node = device.doorbells.iter().filter(|(_, bell)| bell.at == at && bell.was_connected);
            for hw_queue in of_node.filter_map(|(_, doorbell)| doorbell.hw_queue) {
                process.ask_look(hw_queue);
            }
        }
    }

    /// Puts the device in error whose work the engine ran when that was decided, even if it got done (TDR-48, TDR-61).
    fn convict(&mut self, case: &mut Case) {
        let Some((context, _)) = case.guilty else { return };
        self.note_offence(context, case.number);
        self.lose_device(context, DEVICE_HUNG, case.loss(false));
        case.affected.push((context, false));
    }

    /// Answers who waits for the kernel that the compiler is at: it may be what ended the engine. Those behind it are
    /// compiled by the next process.
    pub(super) fn refuse_compiling(&mut self, at: EngineAddress, text: &str) {
        let slot = &mut self.engines[at.index()];
        let first = slot.compiling.iter().min_by_key(|(_, kernel)| kernel.number).map(|(name, _)| *name);
        let Some((root, handle)) = first else { return };
        let Some(kernel) = slot.compiling.remove(&(root, handle)) else { return };
        let name = KernelName { root, handle };
        self.refuse_kernel(at, name, kernel, text.to_owned());
    }

    /// Lets an engine that knows all it must take part in turns.
    pub(super) fn admit_engine(&mut self, at: EngineAddress) {
        let timeout = self.config.watched_timeout(at.node);
        let slot = &mut self.engines[at.index()];
        if !slot.is_running() || slot.supervised.is_some() {
            return;
        }
        let Some(handle) = slot.process().map(|process| process.grant_handle()) else { return };
        // An alarm about the process before this one says nothing about this one.
        let _stale = slot.alarm().take();
        let alarm = std::sync::Arc::clone(slot.alarm());
        slot.supervised = Some(self.config.supervisor.add(at, handle, alarm, timeout, self.config.share));
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use campanile_host_gpu::adapter::process::EngineProcess;
    use campanile_host_gpu::adapter::program::Program;
    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::scheduling::parameters::Settings;
    use serde_json::Value;

    use super::Reason;
    use super::Session;
    use crate::recovery::fences::Fences;
    use crate::recovery::reports::ReportFolder;
    use crate::recovery::reports::Reports;
    use crate::session::config::Config;
    use crate::session::testing::bands_of;
    use crate::session::testing::config;
    use crate::session::testing::session;

    const COPY: EngineAddress = EngineAddress::new(0, NodeKind::Copy);

    /// A program that never answers, and ends when it is killed, stands for engines: only the daemon's side is looked at.
    fn startable() -> Config {
        let program = Program { path: PathBuf::from("/usr/bin/yes"), environment: Vec::new() };
        Config { program, bands: Settings { normal_share: 37, ..Settings::default() }, ..config() }
    }

    /// The report of the reset of an engine whose fence ids go up to 7, where the session expects others.
    fn reset_with(expected: Fences) -> (Session, Value) {
        let folder = tempfile::tempdir().unwrap();
        let reports = ReportFolder::open(folder.path()).unwrap();
        let path = reports.path().to_owned();
        let config = Arc::new(Config { reports: Arc::new(Reports::new(Some(reports))), ..startable() });
        let mut session = session(&config);
        let slot = &mut session.engines[COPY.index()];
        slot.fences = Fences::after(7, 7);
        slot.begin(EngineProcess::unstarted(NodeKind::Copy).unwrap());
        slot.came_up();
        slot.fences = expected;
        session.recover_engine(COPY, Reason::EngineTimeout, "a test", None);
        let mut files = std::fs::read_dir(path).unwrap();
        let report = std::fs::read(files.next().unwrap().unwrap().path()).unwrap();
        (session, serde_json::from_slice(&report).unwrap())
    }

    #[test]
    fn tdr_41_tdr_42_tdr_83_a_reset_whose_last_aborted_id_cannot_be_becomes_one_of_the_adapter() {
        let (session, report) = reset_with(Fences::after(7, 7));
        let count = |session: &Session| {
            let counters = &session.counters;
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

    #[test]
    fn pre_68_pre_69_every_process_of_an_engine_finds_the_bands_of_the_operator() {
        let mut session = session(&Arc::new(startable()));
        let bands = |session: &Session| bands_of(session.engines[COPY.index()].process().unwrap());
        assert!(!session.ensure_engine(COPY).unwrap_or_else(|refused| panic!("{}", refused.text)));
        assert_eq!(bands(&session).normal_share, 37, "the first");
        let first = session.engines[COPY.index()].process().unwrap().pid();
        session.engines[COPY.index()].came_up();
        session.recover_engine(COPY, Reason::EngineTimeout, "a test", None);
        assert_ne!(session.engines[COPY.index()].process().unwrap().pid(), first);
        assert_eq!(bands(&session).normal_share, 37, "its successor");
        session.engines[COPY.index()].came_up();
        session.recover_engine(COPY, Reason::InvalidFence, "a test", None);
        assert!(session.engines[COPY.index()].process().is_none(), "the adapter is reset");
        assert!(!session.ensure_engine(COPY).unwrap_or_else(|refused| panic!("{}", refused.text)));
        assert_eq!(bands(&session).normal_share, 37, "after a reset of the adapter");
    }
}

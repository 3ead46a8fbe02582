//! The engines of a session: started when first used, one process a node of each physical adapter.

use super::device_moves::mover;
use super::kept_code::KeptCode;
use super::room::Engines;
use super::wakeup::Wakeup;
use crate::ids::GuestProcess;
use crate::sched::schedule::Participant;
use crate::sched::schedule::Schedule;
use crate::vgpu::config::Config;
use crate::vgpu::journal::Journal;
use crate::vgpu::objects::processes::Objects;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::code_log::CodeLog;
use campanile_host_gpu::adapter::launcher::Memory;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::channel::ChannelError;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_protocol::control::status::Status;
use campanile_protocol::page_table::SegmentId;
use epoll::Events;
use log::Level;

use crate::sched::alarm::Hang;
use crate::sched::alarm::Sighting;
use crate::vgpu::config::Compute;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::guest_pages::GuestPages;
use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::fences::table::FenceTable;
use crate::vgpu::memory::vidmm::allocations::Allocations;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::submission::waits::Waits;
use crate::vgpu::vm::Vm;

/// The files that an engine works on.
pub(in crate::vgpu) fn engine_memory<'a>(
    allocations: &'a Allocations,
    tables: &'a PageTables,
    fences: &'a FenceTable,
    code: Option<&'a CodeLog>,
) -> Memory<'a> {
    Memory {
        code,
        vram: allocations.memory().file(),
        local: allocations
            .memory()
            .device()
            .map(|device| [device.descriptor(), allocations.memory().evicted_file().as_fd()]),
        tables: tables.file(),
        fences: fences.file(),
        tracker: Some(allocations.memory().tracker()),
    }
}

impl Engines {
    /// Listens to a process that was just started.
    pub(in crate::vgpu) fn watch(&self, at: EngineAddress, journal: &mut Journal) -> io::Result<()> {
        let Some(process) = self[at.index()].process() else { return Ok(()) };
        journal.line(Level::Info, format_args!("{at} engine is process {}", process.pid()));
        for (descriptor, wakeup) in
            [(process.event_fd(), Wakeup::Event(at)), (process.channel_fd(), Wakeup::Channel(at))]
        {
            self.poller.add(descriptor, wakeup.data(), Events::EPOLLIN)?;
        }
        Ok(())
    }

    /// No longer listens to a process.
    pub(in crate::vgpu) fn unwatch(&self, at: EngineAddress) {
        let Some(process) = self[at.index()].process() else { return };
        for descriptor in [process.event_fd(), process.channel_fd()] {
            if let Err(error) = self.poller.delete(descriptor) {
                log::debug!("engine descriptor was not watched: {error}");
            }
        }
    }

    /// Whether what was seen of an engine holds no more.
    pub(in crate::vgpu) fn has_gone_on(
        &self,
        at: EngineAddress,
        sighting: &Sighting,
        schedule: &dyn Schedule,
    ) -> bool {
        let slot = &self[at.index()];
        let Some(process) = slot.process() else { return true };
        let keeps_node = || slot.supervised.is_some_and(|id| schedule.keeps_node(id));
        match sighting.hang {
            Hang::NotSuspended => process.contexts.has_reported_suspends(),
            Hang::NotYielded | Hang::NoProgress | Hang::BrokenProtocol(_) => {
                sighting.is_over(process.collect_debug_info().progress, keeps_node())
            }
        }
    }

    /// Lets an engine that knows all it must take part in turns.
    ///
    /// # Errors
    /// It cannot, and is lost.
    pub(in crate::vgpu) fn admit(&mut self, at: EngineAddress, config: &Config) -> Result<(), String> {
        let slot = &mut self[at.index()];
        if !slot.is_running() || slot.supervised.is_some() {
            return Ok(());
        }
        let Some(handle) = slot.process().map(|process| process.grant_handle()) else { return Ok(()) };
        // An alarm about the process before this one says nothing about this one.
        let _stale = slot.alarm().take();
        let alarm = Arc::clone(slot.alarm());
        let timeout = config.watched_timeout(at.node);
        let participant = Participant { at, handle, alarm, timeout, share: config.share };
        let added = config.schedule.add(participant, &config.meters);
        let id = added.map_err(|error| format!("it cannot take part in turns: {error}"))?;
        slot.supervised = Some(id);
        Ok(())
    }

    /// What the last process had seen of rings, and not run, would be missed otherwise: rings are not rung twice.
    pub(in crate::vgpu) fn look_again(&self, at: EngineAddress, objects: &Objects) {
        let Some(process) = self[at.index()].process() else { return };
        for device in objects.processes.values().filter_map(|process| process.device.as_ref()) {
            let of_node = device.doorbells.iter().filter(|(_, bell)| bell.at == at && bell.was_connected);
            for hw_queue in of_node.filter_map(|(_, doorbell)| doorbell.hw_queue) {
                process.ask_look(hw_queue);
            }
        }
    }

    /// The device of these buffers is in error or has ended: what its engine says of them concerns no device, least of
    /// all the next device of the same process.
    pub(in crate::vgpu) fn disown_buffers(&mut self, objects: &mut Objects, context: GuestProcess) {
        let mut ended = Vec::new();
        for slot in self.iter_mut() {
            let of_it =
                slot.in_flight.iter_mut().filter(|flight| flight.owner.is_some_and(|(of, _)| of == context));
            ended.extend(of_it.filter_map(|flight| flight.owner.take()));
        }
        for (context, buffer) in ended {
            objects.end_item(context, buffer.ring, buffer.item);
        }
    }

    /// Whether an engine is awake, or owes something.
    pub(in crate::vgpu) fn is_to_be_looked_at(&self, at: EngineAddress) -> bool {
        let slot = &self[at.index()];
        let Some(process) = slot.process().filter(|_| slot.hears()) else { return false };
        !slot.has_begun()
            || slot.owes_kernels()
            || !process.power.is_asleep()
            || !slot.in_flight.is_empty()
            || process.watch_acknowledged() < process.watch_sequence()
    }
}

/// Engine processes, started and ended, and what needs one that runs.
#[derive(Debug)]
pub struct Lifecycle<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> Lifecycle<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl Lifecycle<'_> {
    /// Whether an engine runs; starts it where it does not. `Ok(false)`: try again when it does.
    pub(in crate::vgpu) fn ensure_engine(&mut self, at: EngineAddress) -> Result<bool, Refused> {
        let index = at.index();
        if self.vm.engines[index].is_running() {
            return Ok(true);
        }
        if let (NodeKind::Compute, Compute::Refused(reason)) = (at.node, &self.vm.config.compute) {
            return Err(Refused { status: Status::NotSupported, text: reason.clone() });
        }
        if self.vm.engines[index].process().is_none() {
            self.start_engine(at).map_err(|error| {
                self.vm.journal.line(Level::Error, format_args!("{error}"));
                Refused { status: Status::OutOfResources, text: error.to_string() }
            })?;
        }
        Ok(false)
    }

    fn start_engine(&mut self, at: EngineAddress) -> io::Result<()> {
        let start = self.vm.config.start_message(at, self.vm.memory.tables.mapping().len());
        let code = self.vm.engines[at.index()].kept.as_ref().map(KeptCode::log);
        let memory = engine_memory(
            &self.vm.memory.allocations,
            &self.vm.memory.tables,
            &self.vm.fences,
            code.as_deref(),
        );
        let process = EngineProcess::spawn(&*self.vm.config.launcher, &start, memory)?;
        self.vm.engines[at.index()].begin(process);
        Waits::of(self.vm).announce_native_fences(at);
        let is_logged = self.vm.memory.dirty.has_log();
        // Before the first work (PRE-69).
        if let Some(process) = self.vm.engines[at.index()].process_mut() {
            process.tracking.log_guest_writes(is_logged);
            process.setup_priority_bands(&self.vm.config.bands);
        }
        if let Err(error) = self.vm.engines.watch(at, &mut self.vm.journal) {
            self.stop_engine(at);
            return Err(error);
        }
        let segments: Vec<SegmentId> = self.vm.memory.segments.ids().collect();
        for segment in segments {
            self.vm.engines.push_segment(at, segment);
            Kernels::of(self.vm).flush_outbox(at);
        }
        if at.node == NodeKind::Compute {
            Kernels::of(self.vm).compile_again(at);
        }
        Ok(())
    }

    /// An engine wrote on its channel, or has read from it.
    pub(in crate::vgpu) fn engine_responses(&mut self, at: EngineAddress) {
        Kernels::of(self.vm).flush_outbox(at);
        while !self.vm.engines.is_condemned(at) {
            let Some(process) = self.vm.engines[at.index()].process_mut() else { return };
            match process.receive() {
                Ok(None) => return,
                Ok(Some(response)) => self.engine_response(at, response),
                Err(error) => {
                    let text = match error {
                        ChannelError::Closed => process.ending(),
                        other => other.to_string(),
                    };
                    self.vm.journal.line(Level::Warn, format_args!("{at} engine: {text}"));
                    self.vm.engines.condemn(at, &text);
                    return;
                }
            }
        }
    }

    fn engine_response(&mut self, at: EngineAddress, response: Response) {
        let slot = &mut self.vm.engines[at.index()];
        match response {
            Response::Started { device, .. } => {
                self.vm.journal.line(Level::Info, format_args!("{at} engine: {device}"));
                self.vm.engines[at.index()].came_up();
                if at == mover() {
                    self.vm.engines.moves.set_available(true);
                }
                // It may have no room to be told that it may begin.
                Kernels::of(self.vm).flush_outbox(at);
                if self.vm.config.spares {
                    self.start_spare(at);
                }
                Kernels::of(self.vm).retry_waiting(at);
            }
            Response::Refused { reason } => {
                self.vm.journal.line(Level::Error, format_args!("{at} engine refused to start: {reason}"));
                self.vm.engines.condemn(at, &reason);
            }
            Response::SegmentAdded { serial, .. } => {
                slot.segments_outstanding.remove(&serial);
                Kernels::of(self.vm).retry_waiting(at);
                Deferred::of(self.vm).run_pending();
            }
            Response::SegmentRefused { segment, reason } => {
                self.vm.journal.line(
                    Level::Error,
                    format_args!("{at} engine could not map segment {segment}: {reason}"),
                );
                self.vm.engines.condemn(at, &reason);
            }
            Response::KernelCreated { kernel, workgroup, binding_count, constant_bytes } => {
                Kernels::of(self.vm).kernel_created(at, kernel, workgroup, binding_count, constant_bytes);
            }
            Response::KernelRefused { kernel, reason } => {
                Kernels::of(self.vm).kernel_refused(at, kernel, reason)
            }
            Response::KernelDestroyed { kernel } => Kernels::of(self.vm).kernel_forgotten(at, kernel),
            Response::Moved { serial } => self.has_moved(serial),
            Response::MoveRefused { reason, .. } => {
                let text = format!("it could not move memory: {reason}");
                self.vm.journal.line(Level::Error, format_args!("{at} engine: {text}"));
                self.vm.engines.condemn(at, &text);
            }
            Response::Allocated { .. } => {
                self.vm.engines.condemn(at, "it has allocated memory, and was not asked to");
            }
            Response::Opened => {
                self.vm.engines.condemn(at, "it says that its driver is open, and was not asked");
            }
        }
    }

    /// Starts a process ahead: its driver is open when it is told to begin, and until then it touches nothing.
    pub(in crate::vgpu) fn start_spare(&mut self, at: EngineAddress) {
        let start = self.vm.config.start_message(at, self.vm.memory.tables.mapping().len());
        let code = self.vm.engines[at.index()].kept.as_ref().map(KeptCode::log);
        let memory = engine_memory(
            &self.vm.memory.allocations,
            &self.vm.memory.tables,
            &self.vm.fences,
            code.as_deref(),
        );
        let Some(process) = self.vm.engines[at.index()].process_mut() else { return };
        if let Err(error) = process.prepare_spare(&*self.vm.config.launcher, &start, memory) {
            self.vm.journal.line(Level::Warn, format_args!("{at} engine has no spare: {error}"));
        }
    }

    /// Kills and reaps an engine process, if there is one.
    pub(in crate::vgpu) fn stop_engine(&mut self, at: EngineAddress) {
        self.vm.engines.unwatch(at);
        GuestPages::of(self.vm).sweep_for_the_last_time(at);
        let slot = &mut self.vm.engines[at.index()];
        let ended = slot.clear(self.vm.config.doorbells);
        if let Some(id) = slot.supervised.take() {
            self.vm.config.schedule.remove(id);
        }
        for (context, buffer) in ended {
            self.vm.objects.end_item(context, buffer.ring, buffer.item);
        }
    }

    /// All engines.
    pub(in crate::vgpu) fn stop_engines(&mut self) {
        for at in self.vm.engines.addresses() {
            self.stop_engine(at);
        }
    }

    /// Starts the next process, and puts into its outbox what it has to know before it may run. Kernels that were compiled are compiled
    /// again; those that were the reason for the end of the last one are refused before.
    pub(in crate::vgpu) fn start_next_process(&mut self, at: EngineAddress) -> std::io::Result<()> {
        let start = self.vm.config.start_message(at, self.vm.memory.tables.mapping().len());
        let code = self.vm.engines[at.index()].kept.as_ref().map(KeptCode::log);
        let memory = engine_memory(
            &self.vm.memory.allocations,
            &self.vm.memory.tables,
            &self.vm.fences,
            code.as_deref(),
        );
        let slot = &mut self.vm.engines[at.index()];
        slot.revive(&*self.vm.config.launcher, &start, memory)?;
        self.vm.engines.watch(at, &mut self.vm.journal)?;
        let segments: Vec<SegmentId> = self.vm.memory.segments.ids().collect();
        for segment in segments {
            self.vm.engines.push_segment(at, segment);
            Kernels::of(self.vm).flush_outbox(at);
        }
        self.vm.engines.look_again(at, &self.vm.objects);
        if at.node == NodeKind::Compute {
            Kernels::of(self.vm).compile_again(at);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::Instant;

    use campanile_host_gpu::adapter::stand_in::StandIn;
    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::address::MAX_PLACES;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::engine::message::Response;
    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::page_table::SegmentId;

    use super::Lifecycle;
    use super::Wakeup;
    use crate::sched::alarm::Hang;
    use crate::sched::alarm::Sighting;
    use crate::vgpu::config::Config;
    use crate::vgpu::engines::kernels::Kernels;
    use crate::vgpu::engines::slot::WaitingMessage;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::tdr::policy::DebugMode;
    use crate::vgpu::tdr::policy::Policy;
    use crate::vgpu::tdr::recovery::Recovery;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::bands_of;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store_progress;

    const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);

    #[test]
    fn each_wakeup_is_known_by_its_data_and_no_other_data_is_one() {
        let places = (0..MAX_PLACES).map(|place| EngineAddress::from_index(place).unwrap());
        let mut all: Vec<Wakeup> =
            places.flat_map(|at| [Wakeup::Event(at), Wakeup::Channel(at), Wakeup::Alarm(at)]).collect();
        all.extend([Wakeup::Timer, Wakeup::Orders, Wakeup::Switch]);
        let data: BTreeSet<u64> = all.iter().map(|wakeup| wakeup.data()).collect();
        assert_eq!(data.len(), all.len());
        for wakeup in all {
            assert_eq!(Wakeup::from_data(wakeup.data()), Some(wakeup));
        }
        for other in [MAX_PLACES as u64, 6 << 8, u64::MAX] {
            assert_eq!(Wakeup::from_data(other), None, "{other:#x}");
        }
    }

    #[test]
    fn pre_68_pre_69_an_engine_that_starts_has_the_bands_of_the_operator_before_it_begins() {
        let mut session = session(&Arc::new(startable()));
        for at in [COMPUTE, COPY] {
            assert!(
                !Lifecycle::of(&mut session.vm)
                    .ensure_engine(at)
                    .unwrap_or_else(|refused| panic!("{}", refused.text))
            );
            let process = session.vm.engines[at.index()].process().unwrap();
            assert_eq!(bands_of(process).normal_share, 37, "{at}");
        }
    }

    #[test]
    fn the_compute_engine_that_starts_compiles_the_kernels_that_there_are_and_no_other_engine_does() {
        let mut session = restored(startable());
        for (at, kernels) in [(COMPUTE, 1), (COPY, 0)] {
            Lifecycle::of(&mut session.vm).stop_engine(at);
            Lifecycle::of(&mut session.vm)
                .ensure_engine(at)
                .unwrap_or_else(|refused| panic!("{}", refused.text));
            assert_eq!(session.vm.engines[at.index()].rebuilding.len(), kernels, "{at}");
        }
    }

    #[test]
    fn tdr_38_an_engine_that_has_gone_on_since_it_was_seen_does_not_hang() {
        let session = restored(startable());
        store_progress(&session, Work::HwQueue);
        let progress = Progress { steps: 1, is_exempt: false, work: Work::HwQueue };
        let sighting = Sighting { hang: Hang::NoProgress, progress, at: Instant::now() };
        assert!(!session.vm.engines.has_gone_on(COPY, &sighting, &*session.vm.config.schedule));
        assert!(session.vm.engines.has_gone_on(
            COMPUTE,
            &Sighting { hang: Hang::NotYielded, ..sighting },
            &*session.vm.config.schedule
        ));
        store_progress(&session, Work::Nothing);
        assert!(session.vm.engines.has_gone_on(COPY, &sighting, &*session.vm.config.schedule));
    }

    #[test]
    fn tdr_17_an_engine_that_hangs_is_held_for_a_debugger_where_the_operator_wants_that() {
        let policy = Policy { debug: DebugMode::Break, ..Policy::default() };
        let mut session = restored(Config { policy, ..startable() });
        Recovery::of(&mut session.vm).engine_timeout(COPY, "it hangs", None);
        let slot = &session.vm.engines[COPY.index()];
        assert!(slot.is_held && slot.has_begun());
    }

    #[test]
    fn a_process_that_comes_up_has_a_spare_where_the_operator_wants_one() {
        for spares in [false, true] {
            let (stand_in, starts) = mpsc::channel();
            let config = Config { spares, launcher: Arc::new(StandIn(stand_in)), ..config() };
            let mut session = session(&Arc::new(config));
            Lifecycle::of(&mut session.vm)
                .ensure_engine(COPY)
                .unwrap_or_else(|refused| panic!("{}", refused.text));
            let engine = starts.recv().unwrap();
            assert!(starts.try_recv().is_err());
            let started =
                Response::Started { device: "a device".to_owned(), is_cpu: true, vram: 0, profile: None };
            engine.send(&started, &[], &[], false).unwrap();
            Lifecycle::of(&mut session.vm).engine_responses(COPY);
            assert!(session.vm.engines[COPY.index()].has_begun());
            assert_eq!(starts.try_recv().is_ok(), spares);
        }
    }

    #[test]
    fn messages_wait_for_their_engine_until_it_runs() {
        let mut session = restored(startable());
        let origin = Origin { context: OWNER, slot: 9, sequence: 77, ring: 9, item: None };
        let waiting = WaitingMessage { origin, opcode: u32::MAX, body: Vec::new(), charge: None };
        session.vm.engines[COPY.index()].waiting.push(waiting);
        session.vm.engines[COPY.index()].segments_outstanding.insert(1, SegmentId(3));
        Kernels::of(&mut session.vm).retry_waiting(COPY);
        assert_eq!(session.vm.engines[COPY.index()].waiting.len(), 1);
        session.vm.engines[COPY.index()].segments_outstanding.clear();
        Kernels::of(&mut session.vm).retry_waiting(COPY);
        assert_eq!(session.vm.engines[COPY.index()].waiting.len(), 0);
    }
}

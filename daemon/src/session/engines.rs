//! The engines of a session: started when first used, one process a node.
//!
//! ```text
//!   Off ──first use──▶ Starting ──Started──▶ Running ──gone, hung──▶ Lost ──next first use──▶ Starting
//!                          └──Refused──▶ Off (who waited is told why)
//! ```

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::adapter::process::Memory;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use campanile_protocol::page_table::SegmentId;
use log::Level;
use rustix::event::epoll;

use super::config::Compute;
use super::counters::count;
use super::kernels::PendingKernel;
use super::objects::Buffer;
use super::objects::NODES;
use super::objects::node_index;
use super::outbox::Outbox;
use super::reply::Origin;
use super::reply::Refused;
use super::state::Session;
use crate::doorbell::slots::Slots;
use crate::supervisor::alarm::Alarm;
use crate::supervisor::alarm::Hang;
use crate::supervisor::turns::EngineId;

/// A message that waits for an engine to start; it is handled anew then.
#[derive(Debug)]
pub struct WaitingMessage {
    /// Where its answer goes.
    pub origin: Origin,
    /// Its code.
    pub opcode: u32,
    /// Its body.
    pub body: Vec<u8>,
}

/// A buffer in the hardware queue.
#[derive(Debug, Clone, Copy)]
pub struct InFlight {
    /// The engine's fence id.
    pub fence_id: u64,
    /// The virtio-gpu context that it belongs to, and the buffer; none once its device has ended.
    pub owner: Option<(u32, Buffer)>,
}

#[derive(Debug)]
enum Life {
    Off,
    Starting(EngineProcess),
    Running(EngineProcess),
}

/// One node's engine, or its place.
#[derive(Debug)]
pub struct EngineSlot {
    life: Life,
    supervised: Option<EngineId>,
    alarm: Arc<Alarm>,
    /// Physical doorbells.
    pub slots: Slots,
    /// Contexts with kernel-mode work, in turn.
    pub run_list: VecDeque<(u32, Handle)>,
    /// The hardware queue, oldest first.
    pub in_flight: VecDeque<InFlight>,
    /// Last fence id given.
    pub last_fence_id: u64,
    /// Segments that it was told of and has not mapped yet.
    pub segments_outstanding: BTreeSet<SegmentId>,
    /// Requests that it has not read yet.
    pub outbox: Outbox,
    /// Messages that wait for it.
    pub waiting: Vec<WaitingMessage>,
    /// Kernels that it compiles.
    pub compiling: BTreeMap<(u64, u64), PendingKernel>,
}

impl EngineSlot {
    /// No process yet.
    pub fn new(doorbells: u32) -> io::Result<Self> {
        Ok(Self {
            life: Life::Off,
            supervised: None,
            alarm: Arc::new(Alarm::new()?),
            slots: Slots::new(doorbells),
            run_list: VecDeque::new(),
            in_flight: VecDeque::new(),
            last_fence_id: 0,
            segments_outstanding: BTreeSet::new(),
            outbox: Outbox::default(),
            waiting: Vec::new(),
            compiling: BTreeMap::new(),
        })
    }

    /// The process, starting or running.
    pub fn process(&self) -> Option<&EngineProcess> {
        match &self.life {
            Life::Off => None,
            Life::Starting(process) | Life::Running(process) => Some(process),
        }
    }

    /// The process, to change.
    pub fn process_mut(&mut self) -> Option<&mut EngineProcess> {
        match &mut self.life {
            Life::Off => None,
            Life::Starting(process) | Life::Running(process) => Some(process),
        }
    }

    /// Whether work can be given to it.
    pub fn is_running(&self) -> bool {
        matches!(self.life, Life::Running(_)) && self.segments_outstanding.is_empty()
    }

    /// What tells that it hung.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }
}

/// What a session's epoll descriptor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// The engine's eventfd.
    Event(NodeKind),
    /// The engine's channel.
    Channel(NodeKind),
    /// The supervisor's alarm.
    Alarm(NodeKind),
}

impl Wakeup {
    /// As epoll data.
    pub fn data(self) -> u64 {
        match self {
            Self::Event(node) => node_index(node) as u64,
            Self::Channel(node) => 2 + node_index(node) as u64,
            Self::Alarm(node) => 4 + node_index(node) as u64,
        }
    }

    /// From epoll data.
    pub fn from_data(data: u64) -> Option<Self> {
        let node = if data.is_multiple_of(2) { NodeKind::Compute } else { NodeKind::Copy };
        match data / 2 {
            0 => Some(Self::Event(node)),
            1 => Some(Self::Channel(node)),
            2 => Some(Self::Alarm(node)),
            _ => None,
        }
    }
}

impl Session {
    /// Whether the engine of `node` runs; starts it where it does not. `Ok(false)`: try again when it does.
    pub(super) fn ensure_engine(&mut self, node: NodeKind) -> Result<bool, Refused> {
        let index = node_index(node);
        if self.engines[index].is_running() {
            return Ok(true);
        }
        if let (NodeKind::Compute, Compute::Refused(reason)) = (node, &self.config.compute) {
            return Err(Refused { status: Status::NotSupported, text: reason.clone() });
        }
        if self.engines[index].process().is_none() {
            self.start_engine(node).map_err(|error| {
                self.journal.line(Level::Error, format_args!("{error}"));
                Refused { status: Status::OutOfResources, text: error.to_string() }
            })?;
        }
        Ok(false)
    }

    fn start_engine(&mut self, node: NodeKind) -> io::Result<()> {
        let table_bytes = self.tables.mapping().len();
        let start = self.config.start_message(node, table_bytes);
        let memory = Memory {
            vram: self.allocations.memory().file(),
            tables: self.tables.file(),
            grant: self.config.supervisor.grant_event(),
        };
        let process = EngineProcess::spawn(&self.config.program, &start, memory)?;
        self.journal.line(Level::Info, format_args!("{node:?} engine is process {}", process.pid()));
        let flags = epoll::EventFlags::IN;
        epoll::add(
            &self.epoll,
            process.event_fd(),
            epoll::EventData::new_u64(Wakeup::Event(node).data()),
            flags,
        )?;
        epoll::add(
            &self.epoll,
            process.channel_fd(),
            epoll::EventData::new_u64(Wakeup::Channel(node).data()),
            flags,
        )?;
        let slot = &mut self.engines[node_index(node)];
        // An alarm about the process before this one says nothing about this one.
        let _stale = slot.alarm.take();
        slot.supervised =
            Some(self.config.supervisor.add(node, process.grant_handle(), Arc::clone(&slot.alarm)));
        slot.life = Life::Starting(process);
        let segments: Vec<SegmentId> = self.segments.ids().collect();
        for segment in segments {
            self.announce_segment(node, segment);
        }
        Ok(())
    }

    /// An engine wrote on its channel, or has read from it.
    pub(super) fn engine_responses(&mut self, node: NodeKind) {
        self.flush_outbox(node);
        loop {
            let Some(process) = self.engines[node_index(node)].process() else { return };
            match process.receive() {
                Ok(None) => return,
                Ok(Some(response)) => self.engine_response(node, response),
                Err(error) => {
                    self.journal.line(Level::Warn, format_args!("{node:?} engine: {error}"));
                    self.lose_engine(node, "the engine process ended");
                    return;
                }
            }
        }
    }

    fn engine_response(&mut self, node: NodeKind, response: Response) {
        let slot = &mut self.engines[node_index(node)];
        match response {
            Response::Started { device } => {
                self.journal.line(Level::Info, format_args!("{node:?} node: {device}"));
                slot.life = match std::mem::replace(&mut slot.life, Life::Off) {
                    Life::Starting(process) => Life::Running(process),
                    other => other,
                };
                self.retry_waiting(node);
            }
            Response::Refused { reason } => {
                self.journal.line(Level::Error, format_args!("{node:?} engine refused to start: {reason}"));
                self.lose_engine(node, &reason);
            }
            Response::SegmentAdded { segment } => {
                slot.segments_outstanding.remove(&SegmentId(segment));
                self.retry_waiting(node);
                self.run_pending();
            }
            Response::SegmentRefused { segment, reason } => {
                self.journal.line(
                    Level::Error,
                    format_args!("{node:?} engine could not map segment {segment}: {reason}"),
                );
                self.lose_engine(node, &reason);
            }
            Response::KernelCreated { kernel, workgroup, binding_count, constant_bytes } => {
                self.kernel_created(kernel, workgroup, binding_count, constant_bytes);
            }
            Response::KernelRefused { kernel, reason } => self.kernel_refused(kernel, reason),
        }
    }

    fn retry_waiting(&mut self, node: NodeKind) {
        if !self.engines[node_index(node)].is_running() {
            return;
        }
        for message in std::mem::take(&mut self.engines[node_index(node)].waiting) {
            self.handle(message.origin, message.opcode, &message.body);
        }
    }

    /// The supervisor says that an engine did not yield.
    pub(super) fn engine_alarm(&mut self, node: NodeKind) {
        let slot = &self.engines[node_index(node)];
        let reason = match slot.alarm.take() {
            Some(Hang::NotYielded) => "it did not yield its node in time",
            Some(Hang::NoProgress) => "it made no progress in time",
            None => return,
        };
        if slot.process().is_some() {
            self.lose_engine(node, reason);
        }
    }

    /// Ends an engine process, and every device that had work on its node.
    pub(super) fn lose_engine(&mut self, node: NodeKind, reason: &str) {
        let index = node_index(node);
        let was_running = matches!(self.engines[index].life, Life::Running(_));
        self.stop_engine(node);
        let slot = &mut self.engines[index];
        let waiting = std::mem::take(&mut slot.waiting);
        let compiling = std::mem::take(&mut slot.compiling);
        let text = format!("the {node:?} engine is lost: {reason}");
        for origin in waiting.iter().map(|m| m.origin).chain(compiling.values().map(|k| k.origin)) {
            let status = if was_running { Status::DeviceLost } else { Status::NotSupported };
            self.answer(origin, Err(Refused { status, text: text.clone() }));
        }
        if was_running {
            count(&self.counters.engines_lost);
            self.journal.line(Level::Warn, format_args!("{text}"));
            self.lose_devices_of_node(node);
        }
        self.run_pending();
    }

    /// Kills and reaps an engine process, if there is one.
    pub(super) fn stop_engine(&mut self, node: NodeKind) {
        let slot = &mut self.engines[node_index(node)];
        let (Life::Starting(process) | Life::Running(process)) = std::mem::replace(&mut slot.life, Life::Off)
        else {
            return;
        };
        for descriptor in [process.event_fd(), process.channel_fd()] {
            if let Err(error) = epoll::delete(&self.epoll, descriptor) {
                log::debug!("engine descriptor was not watched: {error}");
            }
        }
        // Reaped when dropped: from here on nothing of it touches memory (TDR-46).
        drop(process);
        if let Some(id) = slot.supervised.take() {
            self.config.supervisor.remove(id);
        }
        let doorbells = self.config.doorbells;
        let slot = &mut self.engines[node_index(node)];
        slot.slots = Slots::new(doorbells);
        slot.segments_outstanding.clear();
        slot.outbox = Outbox::default();
        slot.run_list.clear();
        // What it ran has ended.
        for (context, buffer) in std::mem::take(&mut slot.in_flight).into_iter().filter_map(|f| f.owner) {
            self.end_item(context, buffer.ring, buffer.item);
        }
    }

    /// All engines.
    pub(super) fn stop_engines(&mut self) {
        for node in NODES {
            self.stop_engine(node);
        }
    }

    /// The name of a kernel for an engine.
    pub(super) fn kernel_name(root: u64, handle: Handle) -> KernelName {
        KernelName { root, handle: handle.0 }
    }
}

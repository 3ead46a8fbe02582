//! Contexts: one software queue for one node of one physical adapter (MCDM-02, MCDM-04, TDR-09).

use campanile_host_gpu::engine::address::NODES;
use campanile_host_gpu::engine::address::node_ordinal;
use std::collections::VecDeque;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::ids::ProcessIndex;
use campanile_protocol::control::message::CREATE_CONTEXT;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::engine::block::ProcessEntry;
use zerocopy::IntoBytes;

use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::engines::slot::WaitingMessage;
use crate::vgpu::engines::suspends::Resumed;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::holds::Holds;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::Context;
use crate::vgpu::objects::save_area::SaveArea;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::waits::Waits;

/// Bytes of a context: itself, its save area, its place on the run list.
pub(in crate::vgpu) const CONTEXT_BYTES: u64 = 1024;

impl Lifecycle<'_> {
    /// CREATE_CONTEXT; waits for its engine to start.
    pub(in crate::vgpu) fn new_context(&mut self, origin: Origin, message: &CreateContext) -> Outcome {
        let node = usize::try_from(message.node).ok().and_then(|node| NODES.get(node).copied());
        let node = node.ok_or(Status::NotSupported)?;
        (message.flags == 0 && message.reserved == 0).or(Status::InvalidParameter)?;
        // TDR-09, TDR-10: exactly one engine, which there is.
        let at = EngineAddress::from_affinity(message.engine_affinity, node, self.vm.config.engines);
        let at = at.ok_or(Status::InvalidParameter)?;
        self.vm.objects.device(origin.context)?.contexts.has_room().or(Status::OutOfResources)?;
        if !self.ensure_engine(at)? {
            return self.wait_for_engine(origin, at, CREATE_CONTEXT, message.as_bytes());
        }
        let charge = self.vm.objects.charge(origin.context, Kind::Objects, CONTEXT_BYTES)?;
        let area = self.vm.memory.make_areas(&mut self.vm.objects, origin.context)?;
        let entry = match self.introduce_areas(origin.context, at, area) {
            Ok(entry) => entry,
            Err(refused) => {
                Deferred::of(self.vm).free_areas(vec![area]);
                return Err(refused);
            }
        };
        let context = Context {
            at,
            software_queue: VecDeque::new(),
            listed: false,
            is_parked: false,
            entry: Some(entry),
            area,
            held: Holds::default(),
            queues: 0,
            scheduling: None,
        };
        // There is room: it was looked for above.
        let contexts = &mut self.vm.objects.device_mut(origin.context)?.contexts;
        let handle = contexts.insert(context, charge).ok_or(Status::OutOfResources)?;
        self.vm.memory.areas.name(area, handle);
        Submission::of(self.vm).introduce_context(at, entry, (origin.context, handle));
        Ok(Handled::with(&Created { handle: handle.get() }))
    }

    /// Makes a context with this save area, and its process, known to an engine; the context's entry there.
    fn introduce_areas(
        &mut self,
        of: GuestProcess,
        at: EngineAddress,
        area: SaveArea,
    ) -> Result<ContextIndex, Refused> {
        Submission::of(self.vm).ensure_presence(of, at)?;
        let engine = self.vm.engines[at.index()].process_mut().ok_or(Status::DeviceLost)?;
        engine
            .create_context(area.va)
            .map_err(|error| Refused { status: Status::OutOfResources, text: error.to_string() })
    }

    /// Parks a message until an engine runs; one that ends something was paid for with that.
    pub(in crate::vgpu) fn wait_for_engine(
        &mut self,
        origin: Origin,
        at: EngineAddress,
        opcode: u32,
        bytes: &[u8],
    ) -> Outcome {
        let mut message = WaitingMessage { origin, opcode, body: bytes.to_vec(), charge: None };
        if message.ended_kernel().is_none() {
            message.charge = Some(self.vm.objects.charge(origin.context, Kind::Messages, message.price())?);
        }
        message.origin = match (origin.item, &message.charge) {
            (Some(_), _) => origin,
            (None, Some(_)) => self.vm.objects.park(origin)?,
            (None, None) => self.vm.objects.park_end(origin),
        };
        self.vm.engines[at.index()].waiting.push(message);
        Ok(Handled::Parked)
    }

    /// DESTROY_CONTEXT; its queues must be gone.
    pub(in crate::vgpu) fn drop_context(&mut self, origin: Origin, message: &Named) -> Outcome {
        let handle = ContextHandle::new(message.handle);
        let device = self.vm.objects.device_mut(origin.context)?;
        let context = device.contexts.get(handle).ok_or(Status::InvalidHandle)?;
        (context.queues == 0).or(Status::Busy)?;
        let (at, entry, area) = (context.at, context.entry, context.area);
        device.contexts.remove(handle);
        Waits::of(self.vm)
            .refuse_suspends(Status::InvalidHandle, |of| of.context == origin.context && of.handle == handle);
        if let Some((engine, entry)) = self.vm.engines[at.index()].process_mut().zip(entry) {
            engine.destroy_context(entry);
            self.vm.engines[at.index()].run_list.remove(entry);
        }
        Deferred::of(self.vm).free_areas(vec![area]);
        Ok(Handled::done())
    }
}

impl Submission<'_> {
    /// Makes the process known to an engine.
    pub(in crate::vgpu) fn ensure_presence(
        &mut self,
        context: GuestProcess,
        at: EngineAddress,
    ) -> Result<ProcessIndex, Refused> {
        let device = self.vm.objects.device(context)?;
        if let Some(entry) = device.presence[at.index()] {
            return Ok(entry);
        }
        let entry = ProcessEntry {
            generation: 0,
            root: device.root.0,
            page_va: device.page.va,
            global_cell: self.vm.config.doorbell_modes.global_cell(at).unwrap_or(0),
            summary: device_page::summary(u32::from(at.engine), node_ordinal(at.node)),
            area_root: self.vm.memory.areas.root().0,
            area_va: device.area.map_or(0, |area| area.va),
        };
        let process = self.vm.engines[at.index()].process_mut().ok_or(Status::DeviceLost)?;
        let entry = process
            .create_process(entry)
            .map_err(|error| Refused { status: Status::OutOfResources, text: error.to_string() })?;
        self.vm.objects.device_mut(context)?.presence[at.index()] = Some(entry);
        Ok(entry)
    }

    /// Takes one reason to hold a context back; with the last one gone, it runs again.
    pub(in crate::vgpu) fn unhold(
        &mut self,
        context: GuestProcess,
        handle: ContextHandle,
        reason: impl Fn(&mut Holds),
    ) {
        let resumed = self.vm.engines.unhold(&mut self.vm.objects, context, handle, reason);
        if let Some(Resumed { context, handle, at }) = resumed {
            self.list_context(context, handle);
            self.fill_hw_queue(at);
        }
    }
}

//! Contexts, queues, doorbells, kernels and kernel-mode buffers.

use std::collections::VecDeque;
use std::time::Duration;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::node_ordinal;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::MAX_LEVEL;
use campanile_host_gpu::sched::parameters::MAX_PRIORITY;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_protocol::control::message::LANGUAGES;
use campanile_protocol::device_page;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QUEUE_EXEMPT;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::message::MAX_SOURCE_BYTES;
use campanile_protocol::engine::suspension::Suspension;
use campanile_protocol::handle::Handle;
use campanile_protocol::packet::MAX_DMA_BUFFER;
use campanile_protocol::queue::ring;

use super::builder::Builder;
use super::invalid::Invalid;
use super::invalid::ensure;
use crate::ids::GuestProcess;
use crate::vgpu::config::Compute;
use crate::vgpu::config::Config;
use crate::vgpu::doorbells::requests::DOORBELL_BYTES;
use crate::vgpu::doorbells::room::LINE;
use crate::vgpu::engines::kernels::KERNEL_OBJECT_BYTES;
use crate::vgpu::engines::kernels::MAX_KERNEL_BYTES;
use crate::vgpu::engines::kernels::is_entry_name;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::doorbell_state::DoorbellState;
use crate::vgpu::objects::holds::Holds;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::ids::Name;
use crate::vgpu::objects::kernel_source::KernelSource;
use crate::vgpu::objects::kernel_source::SourceBytes;
use crate::vgpu::objects::process::Buffer;
use crate::vgpu::objects::process::Context;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::process::Doorbell;
use crate::vgpu::objects::process::MAX_CONTEXTS;
use crate::vgpu::objects::process::MAX_KERNELS;
use crate::vgpu::objects::process::MAX_SOFTWARE_QUEUE;
use crate::vgpu::objects::process::Queue;
use crate::vgpu::objects::process::QueueKind;
use crate::vgpu::objects::process::RingShape;
use crate::vgpu::objects::table::Table;
use crate::vgpu::state::saved::process::SavedBuffer;
use crate::vgpu::state::saved::process::SavedContext;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::process::SavedDoorbell;
use crate::vgpu::state::saved::process::SavedScheduling;
use crate::vgpu::state::saved::row::SavedProgress;
use crate::vgpu::state::saved::row::SavedTable;
use crate::vgpu::submission::contexts::CONTEXT_BYTES;
use crate::vgpu::submission::queues::QUEUE_BYTES;
use campanile_host_gpu::engine::message::NodeKind;

/// Longest quantum or grace period that a message could have set.
const LONGEST: u64 = 100 * campanile_protocol::control::scheduling::MAX_TIME as u64;

/// Builds a table by its places.
fn table<S, T, N: Name>(
    limit: u32,
    saved: &SavedTable<S>,
    what: &str,
    charges: Vec<Charge>,
    mut build: impl FnMut(N, &S) -> Result<T, Invalid>,
) -> Result<Table<T, N>, Invalid> {
    let fits = saved.0.len() <= limit as usize;
    ensure(fits, || format!("more than {limit} {what}s"))?;
    let mut charges = charges.into_iter();
    let mut places = Vec::with_capacity(saved.0.len());
    for (index, (generation, object)) in (0u32..).zip(&saved.0) {
        let handle = Handle::new(index, *generation);
        let built = match object {
            Some(object) => {
                let built = build(N::of(handle), object).map_err(|why| format!("{what} {index}: {why}"))?;
                Some((built, charges.next().ok_or_else(|| format!("{what} {index}: nothing was charged"))?))
            }
            None => None,
        };
        places.push((*generation, built));
    }
    Table::from_places(limit, places).ok_or_else(|| format!("the generation of a {what}"))
}

/// Whether a node of this machine can be used.
fn has_node(config: &Config, node: NodeKind) -> bool {
    node == NodeKind::Copy || matches!(config.compute, Compute::Available(_))
}

impl Builder<'_> {
    /// Charges for all objects of a table.
    fn charges<S>(&self, saved: &SavedTable<S>, each: u64) -> Result<Vec<Charge>, Invalid> {
        let objects = saved.0.iter().filter(|(_, object)| object.is_some());
        objects.map(|_| self.charge(Kind::Objects, each)).collect()
    }

    pub(super) fn build_kernels(&mut self, device: &mut Device, saved: &SavedDevice) -> Result<(), Invalid> {
        let sources = &self.saved.sources;
        let mut bytes = self.kernel_bytes;
        let charges = self.charges(&saved.kernels, KERNEL_OBJECT_BYTES)?;
        device.kernels = table(MAX_KERNELS, &saved.kernels, "kernel", charges, |_, place| {
            let source = usize::try_from(*place).ok().and_then(|place| sources.get(place));
            let source = source.ok_or_else(|| format!("no source {place}"))?;
            let is_known = LANGUAGES.contains(&source.language);
            let length = source.bytes.0.len();
            let fits = length > 0 && length <= MAX_SOURCE_BYTES as usize;
            ensure(is_known && fits, || "its source".to_owned())?;
            let has_name = source.entry.as_deref().is_none_or(is_entry_name);
            ensure(has_name, || "the name of its entry point".to_owned())?;
            bytes += source.bytes.0.len();
            ensure(bytes <= MAX_KERNEL_BYTES, || "more sources than are kept".to_owned())?;
            let price = SourceBytes::price(length, source.entry.as_deref());
            let kept = SourceBytes::new(&source.bytes.0, self.charge(Kind::Kernels, price)?);
            Ok(KernelSource {
                language: source.language,
                entry: source.entry.clone(),
                bytes: kept,
                is_ending: false,
            })
        })?;
        self.kernel_bytes = bytes;
        Ok(())
    }

    fn scheduling(saved: &SavedScheduling) -> Result<Parameters, Invalid> {
        let band = Band::from_number(saved.band);
        let times = [saved.quantum, saved.grace_same, saved.grace_lower];
        let fits = saved.level <= MAX_LEVEL
            && (-MAX_PRIORITY..=MAX_PRIORITY).contains(&saved.priority)
            && saved.quantum > 0
            && times.into_iter().all(|time| time <= LONGEST);
        let band = band.filter(|_| fits).ok_or_else(|| "how it is scheduled".to_owned())?;
        let [quantum, grace_same, grace_lower] = times.map(Duration::from_nanos);
        let (level, priority) = (saved.level, saved.priority);
        Ok(Parameters { band, level, priority, quantum, grace_same, grace_lower, ..Parameters::default() })
    }

    pub(super) fn build_contexts(
        &mut self,
        of: GuestProcess,
        device: &mut Device,
        saved: &SavedDevice,
    ) -> Result<(), Invalid> {
        let highest = self.session.vm.config.share.highest_band;
        ensure(device.class.band() <= highest, || "its class was not granted".to_owned())?;
        let charges = self.charges(&saved.contexts, CONTEXT_BYTES)?;
        let contexts = table(MAX_CONTEXTS, &saved.contexts, "context", charges, |handle, context| {
            self.build_context(of, device, handle, context)
        })?;
        device.contexts = contexts;
        Ok(())
    }

    fn build_context(
        &mut self,
        of: GuestProcess,
        device: &mut Device,
        handle: ContextHandle,
        saved: &SavedContext,
    ) -> Result<Context, Invalid> {
        let at = self.engine(saved.engine)?;
        ensure(has_node(self.session.config(), at.node), || format!("there is no {at} engine"))?;
        let scheduling = saved.scheduling.as_ref().map(Self::scheduling).transpose()?;
        let highest = self.session.vm.config.share.highest_band;
        let granted = scheduling.is_none_or(|parameters| parameters.band <= highest);
        ensure(granted, || "its band was not granted".to_owned())?;
        let area = self.memory.build_area(of, false, handle, saved.area)?;
        let entry = match saved.suspends {
            None => None,
            Some(fence) => {
                ensure(fence < u64::MAX / 4, || format!("suspend fence {fence}"))?;
                let global_cell = self.session.vm.config.doorbell_modes.global_cell(at).unwrap_or(0);
                let process = ProcessEntry {
                    generation: 0,
                    root: device.root.0,
                    page_va: device.page.va,
                    global_cell,
                    summary: device_page::summary(u32::from(at.engine), node_ordinal(at.node)),
                    area_root: self.memory.areas.root().0,
                    area_va: device.area.map_or(0, |area| area.va),
                };
                let bands = self.session.vm.config.bands;
                let engine = self.engines.get_mut(at.index()).ok_or_else(|| format!("no {at} engine"))?;
                let block = engine.block(&bands)?;
                if device.presence[at.index()].is_none() {
                    let entry = block.create_process(process).map_err(|error| error.to_string())?;
                    device.presence[at.index()] = Some(entry);
                }
                // As it was when everything stood still: resumed by the thaw, unless its guest had suspended it.
                let request = Suspension { fence, is_suspended: true };
                Some(block.contexts.take_over(request, area.va).map_err(|error| error.to_string())?)
            }
        };
        let held = Holds { by_guest: saved.is_suspended, by_freeze: true, ..Holds::default() };
        Ok(Context {
            at,
            software_queue: VecDeque::new(),
            listed: false,
            is_parked: false,
            entry,
            area,
            held,
            queues: 0,
            scheduling,
        })
    }

    pub(super) fn build_queues(&mut self, device: &mut Device, saved: &SavedDevice) -> Result<(), Invalid> {
        let charges = self.charges(&saved.queues, QUEUE_BYTES)?;
        let contexts = &mut device.contexts;
        device.queues = table(device_page::MAX_QUEUES, &saved.queues, "queue", charges, |_, queue| {
            let handle = ContextHandle::new(Handle(queue.context));
            let context = contexts.get_mut(handle).ok_or_else(|| "its context".to_owned())?;
            context.queues += 1;
            let doorbell = queue.doorbell.map(Handle);
            ensure(queue.is_user_mode || doorbell.is_none(), || "its doorbell".to_owned())?;
            ensure(queue.value < u64::MAX / 2 || queue.is_user_mode, || "its fence value".to_owned())?;
            let kind = if queue.is_user_mode {
                QueueKind::UserMode { doorbell, completed: queue.value }
            } else {
                QueueKind::Ordinary { issued: queue.value }
            };
            Ok(Queue { context: handle, at: context.at, kind, is_exempt: queue.is_exempt })
        })?;
        Ok(())
    }

    pub(super) fn build_doorbells(
        &mut self,
        device: &mut Device,
        saved: &SavedDevice,
    ) -> Result<(), Invalid> {
        let charges = self.charges(&saved.doorbells, DOORBELL_BYTES)?;
        let doorbells =
            table(device_page::MAX_QUEUES, &saved.doorbells, "doorbell", charges, |handle, doorbell| {
                self.build_doorbell(device, handle, doorbell)
            })?;
        let named = device
            .queues
            .iter()
            .filter(|(_, queue)| matches!(queue.kind, QueueKind::UserMode { doorbell: Some(_), .. }));
        let fits = named.count() == doorbells.iter().count();
        device.doorbells = doorbells;
        ensure(fits, || "a queue whose doorbell is not there".to_owned())
    }

    fn build_doorbell(
        &mut self,
        device: &Device,
        handle: Handle,
        saved: &SavedDoorbell,
    ) -> Result<Doorbell, Invalid> {
        let name = Handle(saved.queue);
        // Each names the other, so that no queue has two.
        let is_its = |queue: &&Queue| matches!(queue.kind, QueueKind::UserMode { doorbell: Some(doorbell), .. } if doorbell == handle);
        let queue = device.queues.get(name).filter(is_its).ok_or_else(|| "its queue".to_owned())?;
        let at = queue.at;
        let sizes = ring::MIN_RING_ENTRIES..=ring::MAX_RING_ENTRIES;
        let sized = saved.entries.is_power_of_two() && sizes.contains(&saved.entries);
        let aligned = saved.ring_va.is_multiple_of(LINE) && saved.control_va.is_multiple_of(LINE);
        ensure(sized && aligned, || format!("its ring of {} entries", saved.entries))?;
        let ring = self.memory.refer(saved.ring, || "its ring".to_owned())?;
        let control = self.memory.refer(saved.control, || "its ring control".to_owned())?;
        let entry = device.contexts.get(queue.context).and_then(|context| context.entry);
        self.memory.keep_queue_progress(device, queue.context, name.index(), saved);
        let hw_queue = match (saved.place, entry.zip(device.presence[at.index()])) {
            (None, _) => None,
            (Some(_), None) => return Err("how far it is, on an engine that is gone".to_owned()),
            (Some(place), Some((context, process))) => {
                let entry = QueueEntry {
                    generation: 0,
                    ring_va: saved.ring_va,
                    control_va: saved.control_va,
                    consumed: place.consumed,
                    completed: place.completed,
                    ring_entries: saved.entries,
                    process: process.get(),
                    fence_index: name.index(),
                    flags: if queue.is_exempt { QUEUE_EXEMPT } else { 0 },
                    context: context.get(),
                    reserved: 0,
                };
                let bands = self.session.vm.config.bands;
                let engine = self.engines.get_mut(at.index()).ok_or_else(|| format!("no {at} engine"))?;
                let is_saved = place.is_saved || place.progress.is_some();
                let taken = engine.block(&bands)?.tables.put_queue(entry, is_saved);
                Some(taken.map_err(|error| error.to_string())?)
            }
        };
        let is_dead = saved.is_aborted || device.status != device_page::DEVICE_ACTIVE;
        Ok(Doorbell {
            queue: name,
            at,
            // LM-50: connected is none.
            state: if is_dead { DoorbellState::Abort } else { DoorbellState::Retry },
            is_draining: saved.is_draining,
            was_connected: saved.was_connected,
            notify: saved.notify,
            hw_queue: hw_queue.filter(|_| !is_dead),
            ring,
            control,
            shape: RingShape { ring_va: saved.ring_va, control_va: saved.control_va, entries: saved.entries },
        })
    }

    pub(super) fn build_buffers(
        &mut self,
        of: GuestProcess,
        device: &mut Device,
        saved: &SavedDevice,
    ) -> Result<(), Invalid> {
        for (index, (generation, context)) in (0u32..).zip(&saved.contexts.0) {
            let Some(context) = context else { continue };
            let handle = ContextHandle::new(Handle::new(index, *generation));
            let what = |why: &str| format!("context {index}: {why}");
            ensure(context.buffers.len() <= MAX_SOFTWARE_QUEUE, || what("too many buffers"))?;
            let taken = self.engines.get(context.engine as usize).map_or(0, |engine| engine.taken);
            let mut order = 0;
            let mut queue = VecDeque::new();
            for saved in &context.buffers {
                let rises = saved.order > order && saved.order <= taken;
                ensure(rises, || what("the order of its buffers"))?;
                order = saved.order;
                let buffer = self.build_buffer(of, device, handle, saved).map_err(|why| what(&why))?;
                queue.push_back(buffer);
            }
            if let Some(context) = device.contexts.get_mut(handle) {
                context.software_queue = queue;
            }
        }
        Ok(())
    }

    fn build_buffer(
        &mut self,
        of: GuestProcess,
        device: &Device,
        context: ContextHandle,
        saved: &SavedBuffer,
    ) -> Result<Buffer, Invalid> {
        let queue = Handle(saved.queue);
        let issued =
            device.queues.get(queue).filter(|it| it.context == context).and_then(|it| match it.kind {
                QueueKind::Ordinary { issued } => Some(issued),
                QueueKind::UserMode { .. } => None,
            });
        let issued = issued.ok_or_else(|| "the queue of a buffer".to_owned())?;
        self.memory.keep_buffer_progress(device, context, saved);
        let aligned = saved.va.is_multiple_of(8) && saved.length.is_multiple_of(8);
        let fits = aligned
            && saved.length <= MAX_DMA_BUFFER
            && saved.fence_value <= issued
            && saved.paging <= device.paging.issued();
        ensure(fits, || format!("a buffer of {} bytes at {:#x}", saved.length, saved.va))?;
        Ok(Buffer {
            queue,
            context,
            is_saved: saved.is_saved || saved.progress != SavedProgress::default(),
            va: saved.va,
            length: saved.length,
            fence_value: saved.fence_value,
            is_exempt: saved.is_exempt,
            is_resubmitted: saved.is_resubmitted,
            paging: saved.paging,
            order: saved.order,
            submitted: Duration::ZERO,
            ring: saved.ring,
            item: self.claims.claim(of, saved.ring, saved.item)?,
        })
    }
}

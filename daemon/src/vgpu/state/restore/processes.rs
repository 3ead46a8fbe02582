//! Guest processes, their devices and address spaces.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::VecDeque;

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::MAX_PLACES;
use campanile_protocol::control::away::Parked;
use campanile_protocol::control::message::DESTROY_KERNEL;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::engine::block::MAX_PROCESSES;
use campanile_protocol::handle::Handle;
use campanile_protocol::page_table::SegmentId;

use super::builder::Builder;
use super::claims::MAX_RING;
use super::invalid::Invalid;
use super::invalid::ages;
use super::invalid::ensure;
use crate::ids::GuestProcess;
use crate::vgpu::hotplug::absences::KeptBlob;
use crate::vgpu::memory::blobs::ATTACHED_BYTES;
use crate::vgpu::memory::blobs::BLOB_BYTES;
use crate::vgpu::memory::blobs::Blob;
use crate::vgpu::memory::blobs::MAX_BLOBS;
use crate::vgpu::memory::blobs::Shown;
use crate::vgpu::memory::residency_requests::HOLD_BYTES;
use crate::vgpu::memory::vidmm::allocations::Backing;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::class::ProcessClass;
use crate::vgpu::objects::device_page::DevicePage;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::WORK_BYTES;
use crate::vgpu::objects::paging_queue::Paging;
use crate::vgpu::objects::process::Away;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::process::Hold;
use crate::vgpu::objects::process::MAX_CONTEXTS;
use crate::vgpu::objects::process::MAX_KERNELS;
use crate::vgpu::objects::process::MAX_OPEN_FENCES;
use crate::vgpu::objects::process::MAX_WAITS;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::recent::Recent;
use crate::vgpu::objects::table::Table;
use crate::vgpu::objects::timeline::Timeline;
use crate::vgpu::objects::waits::GpuWait;
use crate::vgpu::objects::waits::NativeWait;
use crate::vgpu::objects::waits::Wait;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::memory::SavedKeptBlob;
use crate::vgpu::state::saved::process::SavedAway;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::process::SavedProcess;
use crate::vgpu::state::saved::process::SavedTimeline;
use crate::vgpu::state::saved::row::SavedGpuWait;

/// Work that ends something, with which it was paid for.
fn ends(saved: &SavedSession) -> BTreeSet<(GuestProcess, u8, u64)> {
    let drains = saved.drains.iter().map(|drain| &drain.2);
    let messages = saved.engines.iter().flat_map(|engine| &engine.waiting);
    let kernels = messages.filter(|message| message.1 == DESTROY_KERNEL).map(|message| &message.0);
    drains.chain(kernels).filter_map(|origin| Some((origin.0, origin.3, origin.4?))).collect()
}

impl Builder<'_> {
    pub(super) fn build_processes(&mut self) -> Result<(), Invalid> {
        let saved = self.saved;
        self.claims.ends = ends(saved);
        let count = saved.processes.len();
        ensure(count <= MAX_PROCESSES as usize, || format!("{count} processes"))?;
        for process in &saved.processes {
            let context = process.context;
            let purse = self.session.vm.config.budget.process();
            self.purse = Some(purse.map_err(|over| format!("process {context}: {over}"))?);
            let is_new = context != GuestProcess::new(0) && !self.processes.contains_key(&context);
            ensure(is_new, || format!("process {context}: its number"))?;
            let built = self.build_process(process).map_err(|why| format!("process {context}: {why}"))?;
            self.processes.insert(context, built);
        }
        Ok(())
    }

    fn build_process(&mut self, saved: &SavedProcess) -> Result<Process, Invalid> {
        let mut attached = BTreeMap::new();
        for resource in &saved.attached {
            attached.insert(*resource, self.charge(Kind::Blobs, ATTACHED_BYTES)?);
        }
        let is_known = attached.keys().all(|resource| self.memory.blobs.contains_key(resource));
        ensure(is_known, || "a resource that is attached and does not exist".to_owned())?;
        let mut timelines = BTreeMap::new();
        for timeline in &saved.timelines {
            let built = self.build_timeline(saved.context, timeline)?;
            let before = timelines.insert(timeline.ring, built);
            ensure(before.is_none(), || format!("timeline {} is there twice", timeline.ring))?;
        }
        let device = match &saved.device {
            Some(device) => Some(self.build_device(saved.context, device)?),
            None => None,
        };
        let offences = Recent::from_ages(&ages(&saved.offences), clock::now());
        let away = saved.away.as_ref().map(|away| self.build_away(saved.context, away)).transpose()?;
        let purse = self.purse.take().ok_or_else(|| "nothing to pay with".to_owned())?;
        let blocked = saved.blocked;
        let new = Process::new(purse).map_err(|over| over.to_string())?;
        let mut process = Process { attached, device, timelines, offences, blocked, away, ..new };
        if process.is_away() {
            let contexts = process.device.iter_mut().flat_map(|device| device.contexts.iter_mut());
            contexts.for_each(|(_, context)| context.held.by_absence = true);
        }
        Ok(process)
    }

    /// What a process that is away will ask for.
    fn build_away(&mut self, own: GuestProcess, saved: &SavedAway) -> Result<Away, Invalid> {
        let parked = Parked { token: saved.token, names: saved.names };
        let is_new = |process: &Process| process.away.is_none_or(|away| away.parked.token != parked.token);
        ensure(parked.token != 0 && self.processes.values().all(is_new), || "its token".to_owned())?;
        for &SavedKeptBlob(name, id, mappable) in &saved.blobs {
            let allocation = self.memory.refer(id, || format!("the blob that it calls {name:#x}"))?;
            let is_vram =
                self.memory.allocations.get(&id).is_some_and(|it| matches!(it.backing, Backing::Vram(_)));
            let is_its = name.wrapping_sub(parked.names) <= u64::from(u32::MAX);
            ensure(is_its && (is_vram || !mappable), || format!("the blob that it calls {name:#x}"))?;
            let charge =
                self.session.vm.purse.charge(Kind::Blobs, BLOB_BYTES).map_err(|over| over.to_string())?;
            let blob = Blob { allocation, is_vram, mappable, shown: Shown::No, name: Some(name), charge };
            let before = self.memory.kept.insert(name, KeptBlob { blob, owner: own });
            let bound = self.memory.kept.len() + self.memory.blobs.len() <= MAX_BLOBS;
            ensure(before.is_none() && bound, || format!("the blob that it calls {name:#x}: there twice"))?;
        }
        Ok(Away { parked, is_gone: saved.is_gone })
    }

    fn build_timeline(&mut self, context: GuestProcess, saved: &SavedTimeline) -> Result<Timeline, Invalid> {
        let (ring, next) = (saved.ring, saved.next);
        let what = |what: &str| format!("timeline {ring}: {what}");
        ensure(ring <= MAX_RING && next < u64::MAX / 2, || what("its number"))?;
        let mut open = BTreeMap::new();
        for &item in &saved.open {
            let last = open.last_key_value().map_or(0, |(last, _)| *last);
            ensure(item > last && item <= next, || what("its open work"))?;
            let is_end = self.claims.ends.contains(&(context, ring, item));
            let charge = if is_end { None } else { Some(self.charge(Kind::Work, WORK_BYTES)?) };
            open.insert(item, charge);
            self.claims.unclaimed.insert((context, ring, item));
        }
        let mut fences = VecDeque::new();
        for &(behind, token) in &saved.fences {
            let fits = behind <= next && fences.back().is_none_or(|(before, _)| *before <= behind);
            ensure(fits, || what("the order of its fences"))?;
            fences.push_back((behind, self.claims.token(token)?));
        }
        Ok(Timeline { next, open, fences })
    }

    fn build_device(&mut self, context: GuestProcess, saved: &SavedDevice) -> Result<Device, Invalid> {
        let states = device_page::DEVICE_ACTIVE..=device_page::DEVICE_PAGE_FAULT;
        ensure(states.contains(&saved.status), || format!("its device is in state {}", saved.status))?;
        let class = ProcessClass::from_number(saved.class).ok_or_else(|| format!("class {}", saved.class))?;
        let root = self.memory.tables.create_root().map_err(|error| error.to_string())?;
        let page = self.memory.refer(saved.page_allocation, || "its device page".to_owned())?;
        if let Some(moved) = self.memory.allocations.get_mut(&page.0) {
            moved.pins += 1;
        }
        let mut device = Device {
            page: DevicePage { allocation: page, offset: saved.page_offset, va: saved.page_va, guest: None },
            root,
            mappings: BTreeMap::new(),
            contexts: Table::new(MAX_CONTEXTS),
            queues: Table::new(device_page::MAX_QUEUES),
            doorbells: Table::new(device_page::MAX_QUEUES),
            kernels: Table::new(MAX_KERNELS),
            area: None,
            presence: [None; MAX_PLACES],
            status: saved.status,
            paging: Paging::default(),
            holds: BTreeMap::new(),
            waits: Vec::new(),
            fences: Table::new(MAX_OPEN_FENCES),
            native_waits: Vec::new(),
            gpu_waits: Vec::new(),
            class,
        };
        self.build_space(&mut device, saved)?;
        let shown = device.find_mapping(saved.page_va, DEVICE_PAGE_BYTES);
        let is_shown = shown.is_some_and(|(mapping, offset)| {
            mapping.allocation == page && offset == saved.page_offset && mapping.writable
        });
        let is_whole = saved.page_offset.is_multiple_of(campanile_protocol::PAGE_SIZE);
        ensure(is_shown && is_whole, || "its device page is not where it must be".to_owned())?;
        let is_hidden = matches!(self.memory.spot(page), Spot::Segment(SegmentId::LOCAL, _));
        ensure(!is_hidden, || {
            "its device page would lie where no CPU sees it (--local-memory device)".to_owned()
        })?;
        for &(id, count) in &saved.holds {
            let moved = self.memory.allocations.get_mut(&id).filter(|_| count > 0 && count < u64::MAX / 2);
            let moved = moved.ok_or_else(|| format!("it holds allocation {id} {count} times"))?;
            moved.holds = moved.holds.saturating_add(count);
            let charge = self.charge(Kind::Paging, HOLD_BYTES)?;
            let before = device.holds.insert(AllocationId(id), Hold { count, charge });
            ensure(before.is_none(), || format!("it holds allocation {id} twice"))?;
        }
        self.build_kernels(&mut device, saved)?;
        self.memory.build_device_area(context, &mut device, saved)?;
        self.build_contexts(context, &mut device, saved)?;
        self.build_queues(&mut device, saved)?;
        self.build_doorbells(&mut device, saved)?;
        self.build_buffers(context, &mut device, saved)?;
        self.build_waits(context, &mut device, saved)?;
        Ok(device)
    }

    fn build_waits(
        &mut self,
        context: GuestProcess,
        device: &mut Device,
        saved: &SavedDevice,
    ) -> Result<(), Invalid> {
        let count = saved.waits.len() + saved.native_waits.len();
        ensure(count <= MAX_WAITS, || format!("{count} waits"))?;
        let own = |origin: GuestProcess| ensure(origin == context, || "a wait of another process".to_owned());
        for wait in &saved.waits {
            own(wait.0.0)?;
            let queue = Handle(wait.1);
            ensure(device.queues.get(queue).is_some(), || "a wait for a queue that is none".to_owned())?;
            device.waits.push(Wait { origin: self.origin(&wait.0)?, queue, value: wait.2 });
        }
        for wait in &saved.native_waits {
            own(wait.0.0)?;
            let fence = Handle(wait.1);
            let index = device.fences.get(fence).map(|open| open.index);
            let index = index.ok_or_else(|| "a wait for a native fence that is not open".to_owned())?;
            let origin = self.origin(&wait.0)?;
            device.native_waits.push(NativeWait { origin, fence, index, value: wait.2 });
        }
        for &SavedGpuWait(handle, index, value) in &saved.gpu_waits {
            let handle = ContextHandle::new(Handle(handle));
            let is_open = device.fences.iter().any(|(_, open)| open.index == index);
            let context = device.contexts.get_mut(handle).filter(|it| is_open && !it.is_parked);
            let context = context.ok_or_else(|| "a context that waits for a native fence".to_owned())?;
            // Nothing but the fence brings it back.
            (context.is_parked, context.listed) = (true, true);
            device.gpu_waits.push(GpuWait { context: handle, index, value });
        }
        Ok(())
    }
}

//! Memory, and what whole messages say.

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::frame::MAX_CONTROL_BYTES;
use campanile_protocol::control::memory::PRIORITY_MAXIMUM;
use campanile_protocol::device_page::RESPONSE_SLOTS;
use campanile_protocol::handle::Handle;
use campanile_protocol::page_table::SegmentId;
use std::collections::BTreeSet;

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::engine::message::NodeKind;

use super::builder::Builder;
use super::invalid::Invalid;
use super::invalid::ensure;
use crate::ids::GuestProcess;
use crate::vgpu::doorbells::drain::Drain;
use crate::vgpu::doorbells::line::MAX_WAITING;
use crate::vgpu::doorbells::line::WaitingConnect;
use crate::vgpu::doorbells::slots::Holder;
use crate::vgpu::engines::pending_kernel::PendingKernel;
use crate::vgpu::engines::slot::WaitingMessage;
use crate::vgpu::memory::blobs::BLOB_BYTES;
use crate::vgpu::memory::blobs::Blob;
use crate::vgpu::memory::blobs::MAX_BLOBS;
use crate::vgpu::memory::blobs::Shown;
use crate::vgpu::memory::residency_faults::Waiter;
use crate::vgpu::memory::residency_requests::PAGING_BYTES;
use crate::vgpu::memory::segments;
use crate::vgpu::memory::segments::MAX_RUNS_OF_VM;
use crate::vgpu::memory::vidmm::allocations::Backing;
use crate::vgpu::memory::vidmm::allocations::MovedAllocation;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::budget::list_bytes;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::process::MAX_WAITS;
use crate::vgpu::state::saved::bytes::Bytes;
use crate::vgpu::state::saved::engine::SavedMessage;
use crate::vgpu::state::saved::memory::SavedAllocation;
use crate::vgpu::state::saved::memory::SavedBlob;
use crate::vgpu::state::saved::memory::SavedPlace;
use crate::vgpu::state::saved::row::SavedMap;
use crate::vgpu::state::saved::row::SavedOrigin;

impl Builder<'_> {
    pub(super) fn build_memory(&mut self) -> Result<(), Invalid> {
        let saved = self.saved;
        let mut pieces = 0;
        for segment in &saved.segments {
            let what = || format!("guest RAM segment {}", segment.id);
            pieces += segment.pieces.len();
            ensure((1..SegmentId::END.0).contains(&segment.id), || format!("{}: its number", what()))?;
            ensure(pieces <= MAX_RUNS_OF_VM, || "pieces of guest RAM: too many".to_owned())?;
            for &(address, bytes) in &segment.pieces {
                let whole = address.is_multiple_of(PAGE_SIZE) && bytes.is_multiple_of(PAGE_SIZE) && bytes > 0;
                let fits = whole && address.checked_add(bytes).is_some();
                ensure(fits, || format!("{}: {bytes:#x} bytes at {address:#x}", what()))?;
            }
            let charge = self.charge(Kind::Blobs, segments::price(segment.pieces.len()))?;
            self.memory.segment_charges.insert(segment.id, charge);
            let before = self.memory.segments.insert(segment.id, segment.pieces.clone());
            ensure(before.is_none(), || format!("{}: there twice", what()))?;
        }
        let mut of_segments = BTreeSet::new();
        for &SavedAllocation(id, size, place, priority) in &saved.allocations {
            let what = || format!("allocation {id}");
            let whole = size > 0 && size.is_multiple_of(PAGE_SIZE);
            ensure(whole && priority <= PRIORITY_MAXIMUM, || format!("{}: its size or priority", what()))?;
            let backing = match place {
                SavedPlace::Nowhere => Backing::Vram(None),
                SavedPlace::Aperture(offset) => Backing::Vram(Some(Place::Aperture(offset))),
                SavedPlace::Local(offset) => Backing::Vram(Some(Place::Local(offset))),
                SavedPlace::Area(offset) => Backing::Vram(Some(Place::Area(offset))),
                SavedPlace::Host(offset) => Backing::Vram(Some(Place::Host(offset))),
                SavedPlace::Guest(segment) => {
                    let pieces =
                        self.memory.segments.get(&segment).map(|pieces| pieces.iter().map(|piece| piece.1));
                    let bytes = pieces.map(|bytes| bytes.fold(0, u64::saturating_add));
                    let fits = bytes == Some(size) && of_segments.insert(segment);
                    ensure(fits, || format!("{}: guest RAM segment {segment}", what()))?;
                    Backing::Guest(SegmentId(segment))
                }
            };
            if let Backing::Vram(Some(place)) = backing {
                let fits = self.session.video_memory().has_place(place, size);
                ensure(fits, || format!("{}: it lies outside of its memory", what()))?;
            }
            let (references, holds, pins) = (0, 0, 0);
            let is_area = false;
            let moved = MovedAllocation { size, backing, references, holds, pins, priority, is_area };
            let before = self.memory.allocations.insert(id, moved);
            ensure(before.is_none(), || format!("{}: there twice", what()))?;
        }
        ensure(of_segments.len() == self.memory.segments.len(), || {
            "a guest RAM segment of nobody".to_owned()
        })?;
        ensure(saved.blobs.len() <= MAX_BLOBS, || "blobs: too many".to_owned())?;
        for &SavedBlob(resource, id, is_vram, mappable, is_shown) in &saved.blobs {
            let what = || format!("blob {resource}");
            let allocation = self.memory.refer(id, what)?;
            let backing = self.memory.allocations.get(&id).map(|moved| moved.backing);
            let fits = match backing {
                Some(Backing::Guest(_)) => !is_vram && !is_shown && !mappable,
                Some(Backing::Vram(place)) => {
                    is_vram && (!is_shown || (mappable && matches!(place, Some(Place::Aperture(_)))))
                }
                None => false,
            };
            ensure(fits && resource != 0, || format!("{}: its kind", what()))?;
            let shown = if is_shown { Shown::Yes } else { Shown::No };
            let charge = self.charge(Kind::Blobs, BLOB_BYTES)?;
            let blob = Blob { allocation, is_vram, mappable, shown, name: None, charge };
            let before = self.memory.blobs.insert(resource, blob);
            ensure(before.is_none(), || format!("{}: there twice", what()))?;
        }
        Ok(())
    }

    /// An engine by its place, if this vGPU has it.
    pub(super) fn engine(&self, place: u32) -> Result<EngineAddress, Invalid> {
        let at = usize::try_from(place).ok().and_then(EngineAddress::from_index);
        let at = at.filter(|at| at.engine < self.session.vm.config.engines);
        at.ok_or_else(|| format!("engine {place}, which this vGPU does not have"))
    }

    /// Where a message came from, of a process that has a device.
    pub(super) fn origin(&mut self, saved: &SavedOrigin) -> Result<Origin, Invalid> {
        let SavedOrigin(context, slot, sequence, ring, item) = *saved;
        let has_device = self.saved.processes.iter().any(|it| it.context == context && it.device.is_some());
        ensure(has_device && slot < RESPONSE_SLOTS, || {
            format!("a message of process {context}, slot {slot}")
        })?;
        let item = self.claims.claim(context, ring, item)?;
        Ok(Origin { context, slot, sequence, ring, item })
    }

    fn doorbell_at(&self, context: GuestProcess, doorbell: Handle) -> Option<EngineAddress> {
        let device = self.processes.get(&context)?.device.as_ref()?;
        device.doorbells.get(doorbell).map(|doorbell| doorbell.at)
    }

    /// Messages that wait for something.
    pub(super) fn build_messages(&mut self) -> Result<(), Invalid> {
        let saved = self.saved;
        for (place, engine) in saved.engines.iter().enumerate() {
            let what = |kind: &str| format!("engine {place}: {kind}");
            for (origin, doorbell) in &engine.connects {
                let (context, doorbell) = (origin.0, Handle(*doorbell));
                let at = self.doorbell_at(context, doorbell);
                ensure(at.map(EngineAddress::index) == Some(place), || what("a connect"))?;
                let room =
                    self.engines.get(place).is_some_and(|engine| engine.connects_of(context) < MAX_WAITING);
                ensure(room, || what("more connects than can wait"))?;
                let origin = self.origin(origin)?;
                if let Some(engine) = self.engines.get_mut(place) {
                    engine.connects.push(WaitingConnect { origin, doorbell });
                }
            }
            for message in &engine.waiting {
                let SavedMessage(origin, opcode, Bytes(body)) = message;
                let fits = u32::try_from(body.len()).is_ok_and(|bytes| bytes <= MAX_CONTROL_BYTES);
                ensure(fits, || what("a message that is too long"))?;
                let origin = self.origin(origin)?;
                let mut message =
                    WaitingMessage { origin, opcode: *opcode, body: body.clone(), charge: None };
                if message.ended_kernel().is_none() {
                    message.charge = Some(self.charge_of(origin.context, Kind::Messages, message.price())?);
                }
                if let Some(engine) = self.engines.get_mut(place) {
                    engine.waiting.push(message);
                }
            }
        }
        self.build_compiling()?;
        self.build_drains()?;
        for resident in &saved.residents {
            let device = |it: &Self, context| Some(it.processes.get(&context)?.device.as_ref()?.root);
            let context = resident.0.0;
            let origin = self.origin(&resident.0)?;
            let root = device(self, context).ok_or_else(|| format!("process {context}: no device"))?;
            let before =
                self.waits.residents.iter().filter(|waiter| waiter.origin.context == context).count();
            let known = resident.1.iter().all(|id| self.memory.allocations.contains_key(id));
            let fits = before < MAX_WAITS && known && !resident.1.is_empty();
            ensure(fits, || format!("process {context}: what is to be made resident"))?;
            let allocations = resident.1.iter().copied().map(AllocationId).collect();
            let bytes = list_bytes(resident.1.len(), size_of::<AllocationId>());
            let charge = self.charge_of(context, Kind::Paging, bytes.saturating_add(PAGING_BYTES))?;
            self.waits.residents.push(Waiter { origin, root, allocations, charge });
        }
        ensure(saved.maps.len() <= MAX_BLOBS, || "more MAP_BLOB commands than can wait".to_owned())?;
        for &SavedMap(resource, offset, token) in &saved.maps {
            let token = self.claims.token(token)?;
            self.waits.maps.push((resource, offset, token));
        }
        Ok(())
    }

    fn build_compiling(&mut self) -> Result<(), Invalid> {
        let saved = self.saved;
        // The engines of several physical adapters compile the same kernel for one message.
        let mut asked: Vec<(SavedOrigin, u64, Origin)> = Vec::new();
        for (place, engine) in saved.engines.iter().enumerate() {
            for (number, (origin, handle)) in (1..).zip(&engine.compiling) {
                let what = || format!("engine {place}: a kernel that is compiled");
                let is_compute =
                    EngineAddress::from_index(place).is_some_and(|at| at.node == NodeKind::Compute);
                let handle = Handle(*handle);
                let device = self.processes.get(&origin.0).and_then(|process| process.device.as_ref());
                let root = device.filter(|device| device.kernels.get(handle).is_some());
                let root = root.map(|device| device.root.0).filter(|_| is_compute).ok_or_else(what)?;
                let known = asked.iter().find(|known| known.1 == handle.0 && known.0.0 == origin.0);
                let origin = match known {
                    Some(known) if known.0 == *origin => known.2,
                    Some(_) => return Err(what()),
                    None => {
                        let checked = self.origin(origin)?;
                        asked.push((*origin, handle.0, checked));
                        checked
                    }
                };
                let bands = self.session.vm.config.bands;
                if let Some(engine) = self.engines.get_mut(place) {
                    // It is to be there after the standstill, to go on with it.
                    engine.block(&bands)?;
                    let pending = PendingKernel::new(origin, handle, number);
                    let before = engine.compiling.insert((root, handle.0), pending);
                    ensure(before.is_none(), what)?;
                }
            }
        }
        Ok(())
    }

    fn build_drains(&mut self) -> Result<(), Invalid> {
        let saved = self.saved;
        let now = clock::now();
        let mut drained = BTreeSet::new();
        for drain in &saved.drains {
            let (context, doorbell) = (drain.0, Handle(drain.1));
            let what = || format!("process {context}: the end of a doorbell");
            let device = self.processes.get(&context).and_then(|process| process.device.as_ref());
            let found = device.and_then(|device| device.doorbells.get(doorbell));
            let at = found.filter(|doorbell| doorbell.is_draining).map(|doorbell| doorbell.at);
            let at = at.filter(|_| drain.2.0 == context && drained.insert((context, doorbell)));
            let at = at.ok_or_else(what)?;
            let origin = self.origin(&drain.2)?;
            let holder = Holder { context, doorbell };
            let timeout = self.session.vm.config.timeouts[node_index(at.node)];
            let (last_queued, completed, since) = (drain.3, 0, now);
            self.waits.drains.push(Drain { holder, origin, last_queued, completed, since, timeout });
        }
        for (context, process) in &self.processes {
            let doorbells = process.device.iter().flat_map(|device| device.doorbells.iter());
            for (handle, doorbell) in doorbells {
                let fits = doorbell.is_draining == drained.contains(&(*context, handle));
                ensure(fits, || format!("process {context}: a doorbell that ends for nobody"))?;
            }
        }
        Ok(())
    }
}

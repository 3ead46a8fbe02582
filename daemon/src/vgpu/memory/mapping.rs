//! Address spaces.

use std::collections::BTreeSet;
use std::sync::Arc;

use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_host_gpu::memory::page_table::writer::TableError;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::page_table::SegmentId;

use super::vidmm::allocations::Freed;
use crate::guest_ram::memory::fault_domain;
use crate::vgpu::control::request::Entries;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::device_page::GuestPage;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::process::GpuMapping;
use crate::vgpu::objects::process::MAX_MAPPINGS;
use crate::vgpu::objects::process::Mapped;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::session::Session;

/// Bytes of a mapping: itself, where its allocation is shown, the changes that map and unmap it, and what waits then until
/// engines have let go.
pub(in crate::vgpu) const MAPPING_BYTES: u64 = 768;

impl From<TableError> for Refused {
    fn from(error: TableError) -> Self {
        let status = match error {
            TableError::Range { .. } | TableError::Overlap(_) => Status::InvalidAddress,
            TableError::Exhausted => Status::OutOfResources,
        };
        Self { status, text: error.to_string() }
    }
}

impl Session {
    /// Tells every engine to map a segment.
    pub(in crate::vgpu) fn announce_segment_to_all(&mut self, id: SegmentId) {
        for at in self.addresses() {
            self.announce_segment(at, id);
        }
    }

    /// Tells every engine to map the segment of an allocation that is guest RAM. Page tables show it as on the move until all
    /// of them have it: a guest need not wait before it maps the blob and submits work, and an engine whose page tables are
    /// newer than its segments would find no memory there, or that of the segment that had the number before.
    pub(in crate::vgpu) fn introduce_segment(&mut self, allocation: AllocationId) {
        let Some(segment) = self.allocations.guest_segment(allocation) else { return };
        self.announce_segment_to_all(segment);
        self.show_when_announced(allocation);
    }

    /// As far as it goes for engines that were told of the segment: see [`Self::introduce_segment`].
    pub(in crate::vgpu) fn show_when_announced(&mut self, allocation: AllocationId) {
        let Some(segment) = self.allocations.guest_segment(allocation) else { return };
        if let Some(allocation) = self.allocations.get_mut(allocation) {
            allocation.is_moving = true;
        }
        self.remap(allocation);
        // Held until then: the number is not given to another segment while it is under way to an engine.
        self.allocations.retain(allocation);
        let barrier = Barrier::announced(&self.engines);
        self.after(barrier, Action::ShowSegment(allocation, segment));
    }

    /// Every engine has a segment that an allocation had, and has still, unless its process has come back with other pages
    /// meanwhile: then engines may not know these yet.
    pub(in crate::vgpu) fn segment_is_there(&mut self, allocation: AllocationId, segment: SegmentId) {
        let is_still_its = self.allocations.guest_segment(allocation) == Some(segment);
        if let Some(allocation) = self.allocations.get_mut(allocation).filter(|_| is_still_its) {
            allocation.is_moving = false;
        }
        self.remap(allocation);
        self.poke_all();
        self.residency.look_again();
        self.release_allocation(allocation);
    }

    /// Drops a reference to an allocation, and what hung on the last one.
    pub(in crate::vgpu) fn release_allocation(&mut self, allocation: AllocationId) {
        match self.allocations.release(allocation) {
            Freed::Kept => {}
            Freed::Vram => self.residency.look_again(),
            Freed::Segment(segment) => {
                self.sweep_segment(segment);
                self.segments.remove(segment);
                self.renounce_segment(segment);
                self.objects.due.extend(self.retired.remove(&segment.0).map(|token| (token, Ok(()))));
            }
        }
    }

    /// The daemon's own view of a device page at `offset` of an allocation; none for video memory.
    pub(in crate::vgpu) fn map_guest_page(
        &self,
        allocation: AllocationId,
        offset: u64,
    ) -> Result<Option<GuestPage>, Refusal> {
        let Some(id) = self.allocations.guest_segment(allocation) else { return Ok(None) };
        let segment = self.segments.get(id).ok_or(Refusal::Resource)?;
        let domain = self.guest_memory.as_deref().and_then(fault_domain);
        let mapping = segment.map(offset, DEVICE_PAGE_BYTES, domain).map_err(|_| Refusal::OutOfMemory)?;
        let pages = 0..DEVICE_PAGE_BYTES / campanile_protocol::PAGE_SIZE;
        let mut addresses = Vec::new();
        for page in pages {
            let at = offset + page * campanile_protocol::PAGE_SIZE;
            segment.pieces_of(at, campanile_protocol::PAGE_SIZE, |address, _| addresses.push(address));
        }
        Ok(Some(GuestPage { mapping: Arc::new(mapping), addresses: addresses.into() }))
    }

    /// MAP_MEMORY.
    pub(in crate::vgpu) fn map_memory(&mut self, origin: Origin, message: &MapMemory) -> Outcome {
        self.map_all(origin, std::slice::from_ref(message))
    }

    /// MAP_LIST.
    pub(in crate::vgpu) fn map_list(&mut self, origin: Origin, list: &Entries<MapMemory>) -> Outcome {
        (list.argument == 0).or(Status::InvalidParameter)?;
        self.map_all(origin, &list.entries)
    }

    /// Maps all of them, or none.
    fn map_all(&mut self, origin: Origin, entries: &[MapMemory]) -> Outcome {
        (!self.has_too_much_pending()).or(Status::OutOfResources)?;
        let (mut late, mut mapped) = (Vec::new(), Vec::new());
        for message in entries {
            match self.map_one(origin.context, message) {
                Ok(change) => {
                    late.extend(change);
                    mapped.push(message.va);
                }
                Err(refused) => {
                    self.unmap_again(origin.context, &mapped)?;
                    return Err(refused);
                }
            }
        }
        // What does not wait needs no fence of its own.
        let fence = if late.is_empty() {
            self.objects.device(origin.context)?.paging.done()
        } else {
            self.issue_paging(origin.context, late, None)?
        };
        Ok(Handled::with(&Paging { fence }))
    }

    fn map_one(&mut self, context: u32, message: &MapMemory) -> Result<Option<Change>, Refused> {
        (message.flags & !MAP_WRITABLE == 0).or(Status::InvalidParameter)?;
        let allocation = self.attached_allocation(context, message.resource)?;
        let length = self.allocations.size(allocation);
        let inside = message.offset.checked_add(message.size).is_some_and(|end| end <= length);
        inside.or(Status::InvalidResource)?;
        message.offset.is_multiple_of(campanile_protocol::PAGE_SIZE).or(Status::InvalidAddress)?;
        let writable = message.flags & MAP_WRITABLE != 0;
        let mapping = GpuMapping { size: message.size, allocation, offset: message.offset, writable };
        self.map_range(context, message.va, mapping)
    }

    /// The first entries of a list whose next one was refused: nothing was answered, so they are not in use.
    fn unmap_again(&mut self, context: u32, mapped: &[u64]) -> Result<(), Refused> {
        let device = self.objects.device_mut(context)?;
        let undone: Vec<Change> =
            mapped.iter().filter_map(|va| Some(Change::Unmap(*va, device.mappings.remove(va)?))).collect();
        if !undone.is_empty() {
            self.issue_paging(context, undone, None)?;
        }
        Ok(())
    }

    /// Maps a range of an allocation, now where nothing else is about to leave that range, and else as a change that is
    /// returned; the mapping takes a reference.
    pub(in crate::vgpu) fn map_range(
        &mut self,
        context: u32,
        va: u64,
        mapping: GpuMapping,
    ) -> Result<Option<Change>, Refused> {
        let GpuMapping { size, allocation, .. } = mapping;
        PageTables::check(va, size)?;
        let device = self.objects.device(context)?;
        (device.mappings.len() < MAX_MAPPINGS).or(Status::OutOfResources)?;
        (!device.is_taken(va, size)).or(Status::InvalidAddress)?;
        let (root, must_wait) = (device.root, device.paging.waits_for(va, size));
        let charge = self.objects.charge(context, Kind::Mappings, MAPPING_BYTES)?;
        if must_wait {
            self.tables.prepare(root, va, size)?;
        } else {
            self.show_to_gpu(root, va, mapping)?;
        }
        self.objects.device_mut(context)?.mappings.insert(va, Mapped { mapping, charge });
        self.allocations.retain(allocation);
        Ok(must_wait.then_some(Change::Map(va, mapping)))
    }

    /// UNMAP_MEMORY: one earlier mapping, whole.
    pub(in crate::vgpu) fn unmap_memory(&mut self, origin: Origin, message: &UnmapMemory) -> Outcome {
        self.unmap_all(origin, std::slice::from_ref(message))
    }

    /// UNMAP_LIST.
    pub(in crate::vgpu) fn unmap_list(&mut self, origin: Origin, list: &Entries<UnmapMemory>) -> Outcome {
        (list.argument == 0).or(Status::InvalidParameter)?;
        self.unmap_all(origin, &list.entries)
    }

    /// Unmaps all of them, or none.
    fn unmap_all(&mut self, origin: Origin, entries: &[UnmapMemory]) -> Outcome {
        let device = self.objects.device_mut(origin.context)?;
        let mut names = BTreeSet::new();
        for message in entries {
            let found = device.mappings.get(&message.va).filter(|mapping| mapping.size == message.size);
            (found.is_some() && names.insert(message.va)).or(Status::InvalidAddress)?;
            let covers = |va: u64| va >= message.va && va - message.va < message.size;
            (!covers(device.page.va)).or(Status::Busy)?;
        }
        let changes: Vec<Change> = entries
            .iter()
            .filter_map(|message| Some(Change::Unmap(message.va, device.mappings.remove(&message.va)?)))
            .collect();
        let fence = self.issue_paging(origin.context, changes, None)?;
        Ok(Handled::with(&Paging { fence }))
    }
}

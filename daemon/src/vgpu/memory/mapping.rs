//! Address spaces.

use std::sync::Arc;

use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_host_gpu::memory::page_table::writer::TableError;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::page_table::SegmentId;

use super::room::Memory;
use super::room::Released;
use crate::guest_ram::memory::fault_domain;
use crate::ids::GuestProcess;
use crate::vgpu::journal::Journal;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::device_page::GuestPage;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::mapping::GpuMapping;
use crate::vgpu::objects::mapping::Mapped;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::process::MAX_MAPPINGS;
use crate::vgpu::objects::processes::Objects;
use crate::vgpu::objects::refusal::Refusal;

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

impl Memory {
    /// Page tables show an allocation that is guest RAM as on the move, until engines know its segment, which is returned.
    /// It is held until then: the number is not given to another segment while it is under way to an engine.
    pub(in crate::vgpu) fn hide_until_announced(
        &mut self,
        allocation: AllocationId,
        journal: &mut Journal,
    ) -> Option<SegmentId> {
        let segment = self.allocations.guest_segment(allocation)?;
        if let Some(allocation) = self.allocations.get_mut(allocation) {
            allocation.is_moving = true;
        }
        self.remap(allocation, journal);
        self.allocations.retain(allocation);
        Some(segment)
    }

    /// Every engine has a segment that an allocation had, and has still, unless its process has come back with other pages
    /// meanwhile: then engines may not know these yet.
    pub(in crate::vgpu) fn segment_is_there(
        &mut self,
        allocation: AllocationId,
        segment: SegmentId,
        journal: &mut Journal,
    ) -> Released {
        let is_still_its = self.allocations.guest_segment(allocation) == Some(segment);
        if let Some(allocation) = self.allocations.get_mut(allocation).filter(|_| is_still_its) {
            allocation.is_moving = false;
        }
        self.remap(allocation, journal);
        self.residency.look_again();
        self.release(allocation)
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

    /// Maps what one entry of a list says: see [`Self::map_range`].
    pub(in crate::vgpu) fn map_one(
        &mut self,
        objects: &mut Objects,
        context: GuestProcess,
        message: &MapMemory,
        charge: Charge,
    ) -> Result<Option<Change>, Refused> {
        (message.flags & !MAP_WRITABLE == 0).or(Status::InvalidParameter)?;
        let allocation = self.attached_allocation(objects, context, message.resource)?;
        let length = self.allocations.size(allocation);
        let inside = message.offset.checked_add(message.size).is_some_and(|end| end <= length);
        inside.or(Status::InvalidResource)?;
        message.offset.is_multiple_of(campanile_protocol::PAGE_SIZE).or(Status::InvalidAddress)?;
        let writable = message.flags & MAP_WRITABLE != 0;
        let mapping = GpuMapping { size: message.size, allocation, offset: message.offset, writable };
        self.map_range(objects, context, message.va, Mapped { mapping, charge })
    }

    /// Maps a range of an allocation, which was charged, now where nothing else is about to leave that range, and else as a change that is
    /// returned; the mapping takes a reference.
    pub(in crate::vgpu) fn map_range(
        &mut self,
        objects: &mut Objects,
        context: GuestProcess,
        va: u64,
        mapped: Mapped,
    ) -> Result<Option<Change>, Refused> {
        let mapping = mapped.mapping;
        let GpuMapping { size, allocation, .. } = mapping;
        PageTables::check(va, size)?;
        let device = objects.device(context)?;
        (device.mappings.len() < MAX_MAPPINGS).or(Status::OutOfResources)?;
        (!device.is_taken(va, size)).or(Status::InvalidAddress)?;
        let (root, must_wait) = (device.root, device.paging.waits_for(va, size));
        if must_wait {
            self.tables.prepare(root, va, size)?;
        } else {
            self.show_to_gpu(root, va, mapping)?;
        }
        objects.device_mut(context)?.mappings.insert(va, mapped);
        self.allocations.retain(allocation);
        Ok(must_wait.then_some(Change::Map(va, mapping)))
    }
}

//! Address spaces.

use std::sync::Arc;

use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::page_table::writer::TableError;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::page_table::SegmentId;

use super::barrier::Barrier;
use super::control::Checked;
use super::objects::GpuMapping;
use super::objects::MAX_MAPPINGS;
use super::pending::Action;
use super::reply::Handled;
use super::reply::Origin;
use super::reply::Outcome;
use super::reply::Refused;
use super::state::Refusal;
use super::state::Session;
use crate::vidmm::allocations::AllocationId;
use crate::vidmm::allocations::Freed;

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
    pub(super) fn announce_segment_to_all(&mut self, id: SegmentId) {
        for at in self.addresses() {
            self.announce_segment(at, id);
        }
    }

    /// Drops a reference to an allocation, and what hung on the last one.
    pub(super) fn release_allocation(&mut self, allocation: AllocationId) {
        if let Freed::Segment(segment) = self.allocations.release(allocation) {
            self.segments.remove(segment);
            self.post_to_all(&Request::RemoveSegment { segment: segment.0 });
        }
    }

    /// The daemon's own view of a device page at `offset` of an allocation; none for video memory.
    pub(super) fn map_guest_page(
        &self,
        allocation: AllocationId,
        offset: u64,
    ) -> Result<Option<Arc<Mapping>>, Refusal> {
        let Some(id) = self.allocations.guest_segment(allocation) else { return Ok(None) };
        let segment = self.segments.get(id).ok_or(Refusal::Resource)?;
        let mapping = segment.map(offset, DEVICE_PAGE_BYTES).map_err(|_| Refusal::OutOfMemory)?;
        Ok(Some(Arc::new(mapping)))
    }

    /// MAP_MEMORY.
    pub(super) fn map_memory(&mut self, origin: Origin, message: &MapMemory) -> Outcome {
        (message.flags & !MAP_WRITABLE == 0).or(Status::InvalidParameter)?;
        (!self.has_too_much_pending()).or(Status::OutOfResources)?;
        let allocation = self.attached_allocation(origin.context, message.resource)?;
        let length = self.allocations.size(allocation);
        let inside = message.offset.checked_add(message.size).is_some_and(|end| end <= length);
        inside.or(Status::InvalidResource)?;
        message.offset.is_multiple_of(campanile_protocol::PAGE_SIZE).or(Status::InvalidAddress)?;
        self.device(origin.context)?;
        let writable = message.flags & MAP_WRITABLE != 0;
        self.map_range(origin.context, message.va, allocation, message.offset, message.size, writable)?;
        let fence = self.paging_fence(origin.context, Barrier::default())?;
        Ok(Handled::with(&Paging { fence }))
    }

    /// Maps a range of an allocation; the mapping takes a reference.
    pub(super) fn map_range(
        &mut self,
        context: u32,
        va: u64,
        allocation: AllocationId,
        offset: u64,
        size: u64,
        writable: bool,
    ) -> Result<(), Refused> {
        let (segment, start) = self
            .allocations
            .locate(allocation)
            .map_err(|error| Refused { status: Status::OutOfResources, text: error.to_string() })?;
        let moving = self.pending.iter().any(
            |pending| matches!(pending.action, Action::Move { allocation: moved, .. } if moved == allocation),
        );
        (!moving).or(Status::Busy)?;
        let device = self.device_mut(context)?;
        (device.mappings.len() < MAX_MAPPINGS).or(Status::OutOfResources)?;
        let root = device.root;
        self.tables.map(root, va, segment, start + offset, size, writable)?;
        let mapping = GpuMapping { size, allocation, offset, writable };
        self.device_mut(context)?.mappings.insert(va, mapping);
        self.allocations.retain(allocation);
        Ok(())
    }

    /// UNMAP_MEMORY: one earlier mapping, whole.
    pub(super) fn unmap_memory(&mut self, origin: Origin, message: &UnmapMemory) -> Outcome {
        let device = self.device_mut(origin.context)?;
        let found = device.mappings.get(&message.va).filter(|mapping| mapping.size == message.size);
        let allocation = found.ok_or(Status::InvalidAddress)?.allocation;
        let covers = |va: u64| va >= message.va && va - message.va < message.size;
        (!covers(device.page.va)).or(Status::Busy)?;
        device.mappings.remove(&message.va);
        let root = device.root;
        self.tables.unmap(root, message.va, message.size)?;
        let barrier = Barrier::raise(&mut self.engines);
        let fence = self.paging_fence(origin.context, barrier)?;
        self.after(barrier, Action::Release(vec![allocation]));
        Ok(Handled::with(&Paging { fence }))
    }

    /// A new paging operation of a process: its fence rises when `barrier` is passed, and after those before.
    fn paging_fence(&mut self, context: u32, barrier: Barrier) -> Result<u64, Refused> {
        let device = self.device_mut(context)?;
        device.paging_issued += 1;
        let (root, value) = (device.root, device.paging_issued);
        let earlier = self.pending.iter().rev().find_map(|pending| match pending.action {
            Action::PagingFence { root: of, .. } if of == root => Some(pending.barrier),
            _ => None,
        });
        // A later barrier is never passed before an earlier one: both count the same engines up.
        let barrier = if barrier == Barrier::default() { earlier.unwrap_or_default() } else { barrier };
        self.after(barrier, Action::PagingFence { context, root, value });
        Ok(value)
    }
}

//! Blobs: which may be made, and where they are when a move is over.

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::status::Status;
use campanile_protocol::page_table::SegmentId;

use super::Memory;
use super::Released;
use crate::ids::GuestProcess;
use crate::vgpu::journal::Journal;
use crate::vgpu::memory::blobs::MAX_BLOBS;
use crate::vgpu::memory::blobs::Shown;
use crate::vgpu::memory::vidmm::allocations::Freed;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::processes::Objects;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

impl Memory {
    /// Whether a blob of this name and size may be made.
    ///
    /// # Errors
    /// The name is taken or none, the size no whole pages, or there are [`MAX_BLOBS`].
    pub(in crate::vgpu) fn check_new_blob(&self, resource: u32, size: u64) -> Result<(), Refusal> {
        if resource == 0 || self.blobs.contains_key(&resource) {
            return Err(Refusal::Resource);
        }
        if size == 0 || !size.is_multiple_of(PAGE_SIZE) {
            return Err(Refusal::Parameter);
        }
        if self.blobs.len() >= MAX_BLOBS { Err(Refusal::OutOfMemory) } else { Ok(()) }
    }

    /// Engines have let go of a blob that moves: it is where it was to go.
    pub(in crate::vgpu) fn finish_move(
        &mut self,
        allocation: AllocationId,
        target: Place,
        resource: u32,
        journal: &mut Journal,
    ) -> Released {
        self.allocations.finish_move(allocation, target, self.residency.epoch);
        self.remap(allocation, journal);
        self.residency.look_again();
        // Given up meanwhile, and its name perhaps taken by another?
        if let Some(blob) = self.blobs.get_mut(&resource).filter(|blob| blob.allocation == allocation) {
            blob.shown = if matches!(target, Place::Aperture(_)) { Shown::Yes } else { Shown::No };
        }
        self.release(allocation)
    }

    /// Drops a reference to an allocation.
    pub(in crate::vgpu) fn release(&mut self, allocation: AllocationId) -> Released {
        match self.allocations.release(allocation) {
            Freed::Kept => Released::Nothing,
            Freed::Vram => {
                self.residency.look_again();
                Released::Nothing
            }
            Freed::Segment(segment) => Released::Segment(segment),
        }
    }

    /// A segment to which nothing refers is gone; what is due now that its pages are no longer reached.
    pub(in crate::vgpu) fn forget_segment(&mut self, segment: SegmentId) -> Option<Token> {
        self.segments.remove(segment);
        self.retired.remove(&segment.0)
    }

    /// The memory of a resource that this context has attached.
    pub(in crate::vgpu) fn attached_allocation(
        &self,
        objects: &Objects,
        context: GuestProcess,
        resource: u32,
    ) -> Result<AllocationId, Refused> {
        let process = objects.processes.get(&context).ok_or(Status::NoDevice)?;
        process.attached.contains_key(&resource).or(Status::InvalidResource)?;
        Ok(self.blobs.get(&resource).ok_or(Status::InvalidResource)?.allocation)
    }
}

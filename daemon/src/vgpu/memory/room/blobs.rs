//! Blobs: which may be made, and where they are when a move is over.

use campanile_protocol::PAGE_SIZE;

use super::Memory;
use super::Released;
use crate::vgpu::journal::Journal;
use crate::vgpu::memory::blobs::MAX_BLOBS;
use crate::vgpu::memory::blobs::Shown;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::refusal::Refusal;

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
}

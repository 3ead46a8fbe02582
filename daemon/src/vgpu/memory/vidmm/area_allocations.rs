//! Save areas, as allocations: never where the guest's CPU sees them, and with contents from the beginning.

use std::sync::atomic::Ordering;

use super::allocations::Allocation;
use super::allocations::Allocations;
use super::allocations::Backing;
use super::allocations::MemoryError;
use crate::vgpu::objects::ids::AllocationId;

impl Allocations {
    /// As [`Self::create_vram`], for a save area.
    pub fn create_area(&mut self, size: u64) -> Result<AllocationId, MemoryError> {
        let id = self.create_vram(size)?;
        if let Some(allocation) = self.table.get_mut(&id) {
            allocation.is_area = true;
        }
        Ok(id)
    }

    /// It is used in this epoch.
    pub fn note_use(&mut self, id: AllocationId, epoch: u64) {
        if let Some(allocation) = self.table.get_mut(&id) {
            allocation.placed_in = epoch;
        }
    }

    /// The paging operation that writes the initial contents of a save area that never had a place: these words, by byte, and zero for
    /// all others (PRE-37). Where engines cannot reach it for want of room, it is initialised as evicted.
    ///
    /// # Errors
    /// There is no room anywhere, or it has contents already.
    pub fn initialise(
        &mut self,
        id: AllocationId,
        epoch: u64,
        words: &[(u64, u64)],
    ) -> Result<(), MemoryError> {
        let size = self.size(id);
        let is_new =
            |allocation: &&mut Allocation| allocation.is_area && allocation.backing == Backing::Vram(None);
        let allocation = self.table.get_mut(&id).filter(is_new).ok_or(MemoryError::Exhausted(size))?;
        let place = match self.memory.allocate_area(size) {
            Some(place) => place,
            None => self.memory.allocate_host(size).ok_or(MemoryError::Exhausted(size))?,
        };
        allocation.backing = Backing::Vram(Some(place));
        allocation.placed_in = epoch;
        for (at, value) in words {
            let offset = place.offset() + at;
            if let Some(word) = self.memory.mapping_of(place).word(offset) {
                word.store(*value, Ordering::Release);
                self.memory.mark(place, offset, 8);
            }
        }
        Ok(())
    }
}

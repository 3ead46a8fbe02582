//! Allocations: pieces of video memory, or of guest RAM, that live as long as anything refers to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use campanile_host_gpu::memory::mapping::Mapping;
use campanile_protocol::page_table::SegmentId;

use super::vram::Place;
use super::vram::VideoMemory;

/// Number of an allocation within a vGPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(pub u64);

/// What an allocation is made of.
#[derive(Debug)]
enum Backing {
    Vram(Option<Place>),
    Guest(SegmentId),
}

#[derive(Debug)]
struct Allocation {
    size: u64,
    backing: Backing,
    references: u64,
}

/// Why memory could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The quota, or a region of it, is used up.
    #[error("no video memory is left for {0} bytes")]
    Exhausted(u64),
    /// The range of the aperture is taken, or outside.
    #[error("aperture offset {offset:#x} with {length:#x} bytes is taken or outside")]
    Aperture {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
}

/// Memory that was given back: what the caller still has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// Nothing.
    Done,
    /// Tell the engines that a segment is gone.
    Segment(SegmentId),
}

/// All allocations of a vGPU.
#[derive(Debug)]
pub struct Allocations {
    memory: VideoMemory,
    table: BTreeMap<AllocationId, Allocation>,
    next: u64,
    vram_used: u64,
}

impl Allocations {
    /// None yet.
    pub fn new(memory: VideoMemory) -> Self {
        Self { memory, table: BTreeMap::new(), next: 1, vram_used: 0 }
    }

    /// The video memory.
    pub fn memory(&self) -> &VideoMemory {
        &self.memory
    }

    fn insert(&mut self, size: u64, backing: Backing) -> AllocationId {
        let id = AllocationId(self.next);
        self.next += 1;
        self.table.insert(id, Allocation { size, backing, references: 1 });
        id
    }

    /// Promises `size` bytes of video memory, whole pages, without a place yet. One reference.
    pub fn create_vram(&mut self, size: u64) -> Result<AllocationId, MemoryError> {
        let used = self.vram_used.checked_add(size).filter(|used| *used <= self.memory.length());
        self.vram_used = used.ok_or(MemoryError::Exhausted(size))?;
        Ok(self.insert(size, Backing::Vram(None)))
    }

    /// Adds `size` bytes of guest RAM that engines know as `segment`. One reference.
    pub fn create_guest(&mut self, segment: SegmentId, size: u64) -> AllocationId {
        self.insert(size, Backing::Guest(segment))
    }

    /// Bytes of an allocation.
    pub fn size(&self, id: AllocationId) -> u64 {
        self.table.get(&id).map_or(0, |allocation| allocation.size)
    }

    /// One more reference.
    pub fn retain(&mut self, id: AllocationId) {
        if let Some(allocation) = self.table.get_mut(&id) {
            allocation.references += 1;
        }
    }

    /// One reference less; the last frees.
    pub fn release(&mut self, id: AllocationId) -> Freed {
        let Some(allocation) = self.table.get_mut(&id) else { return Freed::Done };
        allocation.references -= 1;
        if allocation.references > 0 {
            return Freed::Done;
        }
        let Some(allocation) = self.table.remove(&id) else { return Freed::Done };
        match allocation.backing {
            Backing::Vram(place) => {
                self.vram_used -= allocation.size;
                if let Some(place) = place {
                    self.memory.release(place, allocation.size);
                }
                Freed::Done
            }
            Backing::Guest(segment) => Freed::Segment(segment),
        }
    }

    /// Where an allocation lies as engines see it, giving it a place if it has none.
    pub fn locate(&mut self, id: AllocationId) -> Result<(SegmentId, u64), MemoryError> {
        let Some(allocation) = self.table.get_mut(&id) else { return Err(MemoryError::Exhausted(0)) };
        match &mut allocation.backing {
            Backing::Guest(segment) => Ok((*segment, 0)),
            Backing::Vram(Some(place)) => Ok((SegmentId::VRAM, place.offset())),
            Backing::Vram(place @ None) => {
                let size = allocation.size;
                let found = self.memory.allocate_local(size).ok_or(MemoryError::Exhausted(size))?;
                *place = Some(found);
                Ok((SegmentId::VRAM, found.offset()))
            }
        }
    }

    /// Where the daemon reaches an allocation of video memory that has a place: mapping and offset. Guest RAM has
    /// no view here: each of its runs would cost the daemon a mapping.
    pub fn view(&self, id: AllocationId) -> Option<(&Arc<Mapping>, u64)> {
        match &self.table.get(&id)?.backing {
            Backing::Vram(place) => Some((self.memory.mapping(), (*place)?.offset())),
            Backing::Guest(_) => None,
        }
    }

    /// The segment of an allocation that is guest RAM.
    pub fn guest_segment(&self, id: AllocationId) -> Option<SegmentId> {
        match &self.table.get(&id)?.backing {
            Backing::Guest(segment) => Some(*segment),
            Backing::Vram(_) => None,
        }
    }

    /// Takes the place in the aperture that an allocation will move to. The contents stay where they are until
    /// [`Self::finish_move`].
    pub fn begin_move_in(&mut self, id: AllocationId, offset: u64) -> Result<Place, MemoryError> {
        let length = self.size(id);
        self.memory.reserve_aperture(offset, length).ok_or(MemoryError::Aperture { offset, length })
    }

    /// Takes the place outside the aperture that an allocation will move to.
    pub fn begin_move_out(&mut self, id: AllocationId) -> Result<Place, MemoryError> {
        let length = self.size(id);
        self.memory.allocate_local(length).ok_or(MemoryError::Exhausted(length))
    }

    /// Copies the contents to `target` and lets the old place go. Nothing may use the old place any more.
    pub fn finish_move(&mut self, id: AllocationId, target: Place) {
        let Some(allocation) = self.table.get_mut(&id) else {
            return;
        };
        let size = allocation.size;
        if let Backing::Vram(place) = &mut allocation.backing {
            if let Some(old) = place.replace(target) {
                self.memory.copy(old, target, size);
                self.memory.release(old, size);
            }
        } else {
            self.memory.release(target, size);
        }
    }

    /// Gives a place back that a move did not come to.
    pub fn cancel_move(&mut self, id: AllocationId, target: Place) {
        let size = self.size(id);
        self.memory.release(target, size);
    }
}

//! Allocations: pieces of video memory, or of guest RAM, that live as long as anything refers to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_protocol::control::memory::PRIORITY_NORMAL;
use campanile_protocol::page_table::SegmentId;

use super::device_places::keep_rest;
use super::device_places::offer_filled;
use super::device_places::take_device;
use super::quota::Account;
use super::quota::QuotaError;
use super::vram::Place;
use super::vram::VideoMemory;

use crate::vgpu::objects::ids::AllocationId;

/// What an allocation is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Video memory, at a place once it was looked at.
    Vram(Option<Place>),
    /// Guest RAM.
    Guest(SegmentId),
}

/// One allocation.
#[derive(Debug)]
pub struct Allocation {
    /// Bytes, whole pages.
    pub size: u64,
    /// What it is made of.
    pub backing: Backing,
    references: u64,
    /// Residency requests that hold it where engines reach it.
    pub holds: u64,
    /// Device pages in it: those never leave.
    pub pins: u64,
    /// A hint: what has less is evicted first (PRE-41).
    pub priority: u32,
    /// The epoch in which it was brought to where it is, or last used as far as the daemon sees that itself.
    pub placed_in: u64,
    /// Whether it is being moved.
    pub is_moving: bool,
    /// Whether it is a save area: the guest's CPU never sees it (PRE-39).
    pub is_area: bool,
}

/// An allocation of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedAllocation {
    /// Bytes, whole pages.
    pub size: u64,
    /// What it is made of.
    pub backing: Backing,
    /// Who refers to it.
    pub references: u64,
    /// Residency requests that hold it.
    pub holds: u64,
    /// Device pages in it.
    pub pins: u64,
    /// See [`Allocation::priority`].
    pub priority: u32,
    /// See [`Allocation::is_area`].
    pub is_area: bool,
}

/// Why allocations could not be taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TakeOverError {
    /// A quota is used up.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// A number that cannot be, is there twice, or that nothing refers to.
    #[error("allocation {0} cannot be, is there twice, or has no owner")]
    Number(u64),
    /// A place that another has, or that is not there.
    #[error("the place of allocation {0} is taken, or outside of its memory")]
    Place(u64),
}

/// Why memory could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// A quota is used up.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// There is no room of that kind, for now.
    #[error("no video memory is left for {0} bytes")]
    Exhausted(u64),
    /// The guest's CPU never sees it.
    #[error("a save area has no address that the CPU sees")]
    Protected,
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
    /// Nothing: others refer to it.
    Kept,
    /// Video memory may be free now.
    Vram,
    /// Tell the engines that a segment is gone.
    Segment(SegmentId),
}

/// Where engines find an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// There, from this offset on.
    Segment(SegmentId, u64),
    /// Nowhere for now: on its way to another place.
    Moving,
    /// Nowhere: it has to be brought back, or has no place yet.
    Evicted,
}

/// All allocations of a vGPU.
#[derive(Debug)]
pub struct Allocations {
    pub(super) memory: VideoMemory,
    account: Arc<Account>,
    pub(super) table: BTreeMap<AllocationId, Allocation>,
    next: u64,
    committed: u64,
}

impl Allocations {
    /// None yet. What is allocated is charged to `account`.
    pub fn new(memory: VideoMemory, account: Arc<Account>) -> Self {
        Self { memory, account, table: BTreeMap::new(), next: 1, committed: 0 }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Puts other memory in the place of that of a vGPU without allocations. Local memory of a device's own stays.
    pub fn adopt(&mut self, mut memory: VideoMemory) {
        take_device(&mut memory, &mut self.memory);
        self.memory = memory;
    }

    /// Takes over the allocations of another host, at the places where they were: number and allocation of each, and the
    /// references to it. There are none yet; where that fails, there are none after it.
    ///
    /// # Errors
    /// A number twice, a place that is taken or outside, a quota that is used up: which number.
    pub fn take_over(&mut self, moved: Vec<(AllocationId, MovedAllocation)>) -> Result<(), TakeOverError> {
        let filled = offer_filled(&mut self.memory);
        let taken = self.try_take_over(moved);
        if taken.is_err() {
            self.account.release(std::mem::take(&mut self.committed));
            self.table.clear();
            self.memory.forget_places();
        }
        keep_rest(&mut self.memory, &filled);
        taken
    }

    fn try_take_over(&mut self, moved: Vec<(AllocationId, MovedAllocation)>) -> Result<(), TakeOverError> {
        for (id, moved) in moved {
            let MovedAllocation { size, backing, references, holds, pins, priority, is_area } = moved;
            if id.0 == 0 || id.0 == u64::MAX || references == 0 || self.table.contains_key(&id) {
                return Err(TakeOverError::Number(id.0));
            }
            if let Backing::Vram(place) = backing {
                self.account.commit(size)?;
                self.committed += size;
                if place.is_some_and(|place| !self.memory.take_place(place, size)) {
                    return Err(TakeOverError::Place(id.0));
                }
            }
            let (placed_in, is_moving) = (0, false);
            let allocation = Allocation {
                size,
                backing,
                references,
                holds,
                pins,
                priority,
                placed_in,
                is_moving,
                is_area,
            };
            self.table.insert(id, allocation);
            self.next = self.next.max(id.0 + 1);
        }
        Ok(())
    }

    /// The video memory.
    pub fn memory(&self) -> &VideoMemory {
        &self.memory
    }

    /// One of them.
    pub fn get(&self, id: AllocationId) -> Option<&Allocation> {
        self.table.get(&id)
    }

    /// One of them.
    pub fn get_mut(&mut self, id: AllocationId) -> Option<&mut Allocation> {
        self.table.get_mut(&id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (AllocationId, &Allocation)> {
        self.table.iter().map(|(id, allocation)| (*id, allocation))
    }

    fn insert(&mut self, size: u64, backing: Backing) -> AllocationId {
        let id = AllocationId(self.next);
        self.next += 1;
        let allocation = Allocation {
            size,
            backing,
            references: 1,
            holds: 0,
            pins: 0,
            priority: PRIORITY_NORMAL,
            placed_in: 0,
            is_moving: false,
            is_area: false,
        };
        self.table.insert(id, allocation);
        id
    }

    /// Promises `size` bytes of video memory, whole pages, without a place yet. One reference.
    pub fn create_vram(&mut self, size: u64) -> Result<AllocationId, MemoryError> {
        self.account.commit(size)?;
        self.committed += size;
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
        let Some(allocation) = self.table.get_mut(&id) else { return Freed::Kept };
        allocation.references -= 1;
        if allocation.references > 0 {
            return Freed::Kept;
        }
        let Some(allocation) = self.table.remove(&id) else { return Freed::Kept };
        match allocation.backing {
            Backing::Vram(place) => {
                self.account.release(allocation.size);
                self.committed -= allocation.size;
                if let Some(place) = place {
                    self.memory.release(place, allocation.size);
                }
                Freed::Vram
            }
            Backing::Guest(segment) => Freed::Segment(segment),
        }
    }

    /// Where engines find an allocation as things are.
    pub fn spot(&self, id: AllocationId) -> Spot {
        match self.table.get(&id) {
            Some(allocation) if allocation.is_moving => Spot::Moving,
            Some(allocation) => match allocation.backing {
                Backing::Guest(segment) => Spot::Segment(segment, 0),
                Backing::Vram(Some(place)) if place.is_hidden(&self.memory) => {
                    Spot::Segment(SegmentId::LOCAL, place.offset())
                }
                Backing::Vram(Some(place @ (Place::Aperture(_) | Place::Local(_) | Place::Area(_)))) => {
                    Spot::Segment(SegmentId::VRAM, place.offset())
                }
                Backing::Vram(Some(Place::Host(_)) | None) => Spot::Evicted,
            },
            None => Spot::Evicted,
        }
    }

    /// As [`Self::spot`], after giving the allocation a place if it never had one and there is room: zeroed memory.
    pub fn locate(&mut self, id: AllocationId, epoch: u64) -> Spot {
        if let Some(allocation) = self.table.get_mut(&id)
            && allocation.backing == Backing::Vram(None)
            && !(allocation.is_moving || allocation.is_area)
            && let Some(found) = self.memory.allocate_local(allocation.size)
        {
            allocation.backing = Backing::Vram(Some(found));
            allocation.placed_in = epoch;
        }
        self.spot(id)
    }

    /// Where the daemon reaches an allocation of video memory that has a place: mapping and offset. Guest RAM has
    /// no view here: each of its runs would cost the daemon a mapping. A device's own memory has none anywhere.
    pub fn view(&self, id: AllocationId) -> Option<(&Arc<Mapping>, u64)> {
        match self.table.get(&id)?.backing {
            Backing::Vram(place) => {
                let place = place.filter(|place| !place.is_hidden(&self.memory))?;
                Some((self.memory.mapping_of(place), place.offset()))
            }
            Backing::Guest(_) => None,
        }
    }

    /// Who hears what is written to what an allocation of video memory is in.
    pub fn tracker_of(&self, id: AllocationId) -> Option<&Arc<Tracker>> {
        match self.table.get(&id)?.backing {
            Backing::Vram(Some(Place::Host(_))) => Some(self.memory.evicted_tracker()),
            Backing::Vram(_) => Some(self.memory.tracker()),
            Backing::Guest(_) => None,
        }
    }

    /// The segment of an allocation that is guest RAM.
    pub fn guest_segment(&self, id: AllocationId) -> Option<SegmentId> {
        match self.table.get(&id)?.backing {
            Backing::Guest(segment) => Some(segment),
            Backing::Vram(_) => None,
        }
    }

    /// Forgets the contents of what the guest's CPU does not see: it reads zero when it is used next (TDR-79). No engine
    /// may be running.
    pub fn purge(&mut self) -> Vec<AllocationId> {
        let mut purged = Vec::new();
        for (id, allocation) in &mut self.table {
            let Backing::Vram(Some(place)) = allocation.backing else { continue };
            if matches!(place, Place::Aperture(_)) {
                continue;
            }
            if !allocation.is_moving && allocation.pins == 0 {
                allocation.backing = Backing::Vram(None);
                self.memory.release(place, allocation.size);
                purged.push(*id);
            }
        }
        purged
    }
}

impl Drop for Allocations {
    fn drop(&mut self) {
        self.account.release(self.committed);
    }
}

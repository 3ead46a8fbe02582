//! The memory of a state: allocations and what refers to them, page tables, and save areas.

use std::collections::BTreeMap;

use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::page_table::SegmentId;

use super::invalid::Invalid;
use super::invalid::ensure;
use crate::vgpu::hotplug::absences::KeptBlob;
use crate::vgpu::memory::blobs::Blob;
use crate::vgpu::memory::save_areas::Areas;
use crate::vgpu::memory::shown::Shown;
use crate::vgpu::memory::vidmm::allocations::Backing;
use crate::vgpu::memory::vidmm::allocations::MovedAllocation;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::mapping::GpuMapping;
use crate::vgpu::state::saved::row::SavedMapping;

/// Memory that is built beside a session.
pub(super) struct RestoredMemory {
    pub(super) allocations: BTreeMap<u64, MovedAllocation>,
    pub(super) blobs: BTreeMap<u32, Blob>,
    /// Blobs of processes that are away.
    pub(super) kept: BTreeMap<u64, KeptBlob>,
    pub(super) segments: BTreeMap<u16, Vec<(u64, u64)>>,
    /// What was charged for segments.
    pub(super) segment_charges: BTreeMap<u16, Charge>,
    pub(super) tables: PageTables,
    pub(super) areas: Areas,
    /// Words by which areas are initialised that the state does not have: version 1.
    pub(super) new_areas: BTreeMap<AllocationId, Vec<(u64, u64)>>,
    pub(super) shown: Shown,
    /// Local memory is a device's own here, wherever it was before.
    is_local_hidden: bool,
}

impl RestoredMemory {
    pub(super) fn new(tables: PageTables, areas: Areas, is_local_hidden: bool) -> Self {
        Self {
            allocations: BTreeMap::new(),
            blobs: BTreeMap::new(),
            kept: BTreeMap::new(),
            segments: BTreeMap::new(),
            segment_charges: BTreeMap::new(),
            tables,
            areas,
            new_areas: BTreeMap::new(),
            shown: Shown::default(),
            is_local_hidden,
        }
    }

    /// One more reference to an allocation that is there.
    pub(super) fn refer(&mut self, id: u64, what: impl FnOnce() -> String) -> Result<AllocationId, Invalid> {
        let Some(moved) = self.allocations.get_mut(&id) else {
            return Err(format!("{}: no allocation {id}", what()));
        };
        moved.references += 1;
        Ok(AllocationId(id))
    }

    /// Where engines will find an allocation.
    pub(super) fn spot(&self, id: AllocationId) -> Spot {
        match self.allocations.get(&id.0).map(|moved| moved.backing) {
            Some(Backing::Guest(segment)) => Spot::Segment(segment, 0),
            Some(Backing::Vram(Some(Place::Local(offset)))) if self.is_local_hidden => {
                Spot::Segment(SegmentId::LOCAL, offset)
            }
            Some(Backing::Vram(Some(place @ (Place::Aperture(_) | Place::Local(_) | Place::Area(_))))) => {
                Spot::Segment(SegmentId::VRAM, place.offset())
            }
            Some(Backing::Vram(Some(Place::Host(_)) | None)) | None => Spot::Evicted,
        }
    }

    /// A mapping that is sound by itself.
    pub(super) fn mapping(&self, saved: &SavedMapping) -> Result<(u64, GpuMapping), Invalid> {
        let SavedMapping(va, size, id, offset, writable) = *saved;
        let bytes = self.allocations.get(&id).map_or(0, |moved| moved.size);
        let inside = offset.checked_add(size).is_some_and(|end| end <= bytes);
        let fits = inside && offset.is_multiple_of(PAGE_SIZE) && PageTables::check(va, size).is_ok();
        ensure(fits, || format!("a mapping of {size:#x} bytes of allocation {id} at {va:#x}"))?;
        Ok((va, GpuMapping { size, allocation: AllocationId(id), offset, writable }))
    }

    /// Shows a mapping to engines, as things are with its memory.
    pub(super) fn show(&mut self, root: Root, va: u64, mapping: GpuMapping) -> Result<(), Invalid> {
        let shown = match self.spot(mapping.allocation) {
            Spot::Segment(segment, start) => {
                let offset = start.saturating_add(mapping.offset);
                self.tables.map(root, va, segment, offset, mapping.size, mapping.writable)
            }
            Spot::Moving | Spot::Evicted => self.tables.map_evicted(root, va, mapping.size),
        };
        shown.map_err(|error| error.to_string())?;
        self.shown.insert(root, va, mapping);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(place: Place, is_local_hidden: bool) -> Spot {
        let mut tables = PageTables::new().unwrap();
        let areas = Areas::new(&mut tables).unwrap();
        let mut memory = RestoredMemory::new(tables, areas, is_local_hidden);
        let moved = MovedAllocation {
            size: PAGE_SIZE,
            backing: Backing::Vram(Some(place)),
            references: 1,
            holds: 0,
            pins: 0,
            priority: 0,
            is_area: false,
        };
        memory.allocations.insert(1, moved);
        memory.spot(AllocationId(1))
    }

    #[test]
    fn local_memory_is_a_segment_of_its_own_where_it_is_a_devices_own() {
        let at = 3 * PAGE_SIZE;
        assert_eq!(spot(Place::Local(at), true), Spot::Segment(SegmentId::LOCAL, at));
        assert_eq!(spot(Place::Local(at), false), Spot::Segment(SegmentId::VRAM, at));
        assert_eq!(spot(Place::Aperture(at), true), Spot::Segment(SegmentId::VRAM, at));
    }
}

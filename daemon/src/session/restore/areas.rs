//! Save areas: those of the state, and those that a state of version 1 does not have yet.
//!
//! ```text
//!   version 2   area: an allocation, with its contents in the memory that came along
//!   version 1   no area, progress in the state ──▶ a new allocation, initialised with that when all is installed
//! ```

use campanile_protocol::engine::save_area;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::engine::save_area::KERNEL_MODE_SLOT;
use campanile_protocol::engine::saved::Saved;
use campanile_protocol::handle::Handle;

use super::builder::Builder;
use super::builder::Invalid;
use super::builder::ensure;
use crate::session::areas::AreaOwner;
use crate::session::areas::SaveArea;
use crate::session::objects::Device;
use crate::session::objects::GpuMapping;
use crate::session::saved::process::SavedBuffer;
use crate::session::saved::process::SavedDevice;
use crate::session::saved::process::SavedDoorbell;
use crate::session::saved::row::SavedProgress;
use crate::vidmm::allocations::AllocationId;
use crate::vidmm::allocations::Backing;
use crate::vidmm::allocations::MovedAllocation;
use crate::vidmm::vram::Place;
use campanile_protocol::control::memory::PRIORITY_NORMAL;

const fn saved_progress(saved: SavedProgress) -> Saved {
    Saved { at: saved.0, done_in_packet: saved.1, grid: saved.2 }
}

impl Builder<'_> {
    pub(super) fn build_device_area(
        &mut self,
        of: u32,
        device: &mut Device,
        saved: &SavedDevice,
    ) -> Result<(), Invalid> {
        if saved.area.is_some() || saved.contexts.living().next().is_some() {
            device.area = Some(self.build_area(of, true, Handle::NONE, saved.area)?);
        }
        Ok(())
    }

    /// An area of a guest process, shared by its contexts or of one of them.
    pub(super) fn build_area(
        &mut self,
        of: u32,
        is_shared: bool,
        context: Handle,
        saved: Option<u64>,
    ) -> Result<SaveArea, Invalid> {
        let owner = AreaOwner::new(is_shared, context).ok_or_else(|| "whose its save area is".to_owned())?;
        let id = match saved {
            Some(id) => self.refer(id, || "its save area".to_owned())?,
            None => self.new_area(owner.kind())?,
        };
        let size = owner.kind().bytes();
        let moved = self.allocations.get_mut(&id.0);
        let moved = moved.filter(|moved| moved.size == size && !moved.is_area);
        let moved = moved.ok_or_else(|| format!("its save area, allocation {}", id.0))?;
        // PRE-39: nowhere that the CPU could see it.
        let is_hidden = matches!(moved.backing, Backing::Vram(None | Some(Place::Area(_) | Place::Host(_))));
        ensure(is_hidden, || format!("its save area, allocation {}: where it lies", id.0))?;
        moved.is_area = true;
        let area =
            self.areas.admit(id, of, owner).ok_or_else(|| "no address for its save area".to_owned())?;
        let mapping = GpuMapping { size, allocation: id, offset: 0, writable: true };
        self.show(self.areas.root(), area.va, mapping)?;
        Ok(area)
    }

    /// For a state without save areas.
    fn new_area(&mut self, kind: AreaKind) -> Result<AllocationId, Invalid> {
        let last = self.allocations.last_key_value().map_or(0, |(id, _)| *id);
        let id = last.checked_add(1).ok_or_else(|| "the number of an allocation".to_owned())?;
        let moved = MovedAllocation {
            size: kind.bytes(),
            backing: Backing::Vram(None),
            references: 1,
            holds: 0,
            pins: 0,
            priority: PRIORITY_NORMAL,
            is_area: false,
        };
        self.allocations.insert(id, moved);
        self.new_areas.insert(AllocationId(id), vec![(0, kind.header())]);
        Ok(AllocationId(id))
    }

    fn keep(&mut self, area: Option<SaveArea>, offset: u64, name: u64, saved: SavedProgress) {
        let Some(words) = area.and_then(|area| self.new_areas.get_mut(&area.allocation)) else { return };
        let slot = save_area::slot_words(name, saved_progress(saved));
        words.extend((offset..).step_by(8).zip(slot));
    }

    /// How far a user-mode queue is, in a state without save areas.
    pub(super) fn keep_queue_progress(
        &mut self,
        device: &Device,
        context: Handle,
        index: u32,
        saved: &SavedDoorbell,
    ) {
        let Some((place, progress)) = saved.place.and_then(|place| Some((place, place.progress?))) else {
            return;
        };
        let (kind, offset) = save_area::queue_slot(index);
        let area = match kind {
            AreaKind::Device => device.area,
            AreaKind::Context => device.contexts.get(context).map(|context| context.area),
        };
        self.keep(area, offset, place.consumed, progress);
    }

    /// How far a kernel-mode buffer is, in a state without save areas.
    pub(super) fn keep_buffer_progress(&mut self, device: &Device, context: Handle, saved: &SavedBuffer) {
        if saved.progress != SavedProgress::default() {
            let area = device.contexts.get(context).map(|context| context.area);
            self.keep(area, KERNEL_MODE_SLOT, saved.order, saved.progress);
        }
    }

    /// Nobody but its context, or its device, has anything to do with a save area.
    pub(super) fn check_areas(&self) -> Result<(), Invalid> {
        for area in self.areas.iter() {
            let id = area.allocation.0;
            let moved = self.allocations.get(&id);
            let is_alone =
                moved.is_some_and(|moved| moved.references == 1 && moved.holds == 0 && moved.pins == 0);
            ensure(is_alone, || format!("allocation {id}: a save area, and something else"))?;
        }
        Ok(())
    }
}

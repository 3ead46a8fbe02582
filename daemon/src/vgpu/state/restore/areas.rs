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

use super::invalid::Invalid;
use super::invalid::ensure;
use super::memory::RestoredMemory;
use crate::ids::GuestProcess;
use crate::vgpu::memory::save_areas::AreaOwner;
use crate::vgpu::memory::vidmm::allocations::Backing;
use crate::vgpu::memory::vidmm::allocations::MovedAllocation;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::mapping::GpuMapping;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::save_area::SaveArea;
use crate::vgpu::state::saved::process::SavedBuffer;
use crate::vgpu::state::saved::process::SavedDevice;
use crate::vgpu::state::saved::process::SavedDoorbell;
use crate::vgpu::state::saved::row::SavedProgress;
use campanile_protocol::control::memory::PRIORITY_NORMAL;

const fn saved_progress(saved: SavedProgress) -> Saved {
    Saved { at: saved.0, done_in_packet: saved.1, grid: saved.2 }
}

impl RestoredMemory {
    pub(super) fn build_device_area(
        &mut self,
        of: GuestProcess,
        device: &mut Device,
        saved: &SavedDevice,
    ) -> Result<(), Invalid> {
        if saved.area.is_some() || saved.contexts.living().next().is_some() {
            device.area = Some(self.build_area(of, true, ContextHandle::new(Handle::NONE), saved.area)?);
        }
        Ok(())
    }

    /// An area of a guest process, shared by its contexts or of one of them.
    pub(super) fn build_area(
        &mut self,
        of: GuestProcess,
        is_shared: bool,
        context: ContextHandle,
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
        let root = self.areas.root();
        self.show(root, area.va, mapping)?;
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
        context: ContextHandle,
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
    pub(super) fn keep_buffer_progress(
        &mut self,
        device: &Device,
        context: ContextHandle,
        saved: &SavedBuffer,
    ) {
        if saved.progress != SavedProgress::default() {
            let area = device.contexts.get(context).map(|context| context.area);
            self.keep(area, KERNEL_MODE_SLOT, saved.order, saved.progress);
        }
    }

    /// A save area is of its context, or its device, alone.
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use campanile_host_gpu::memory::page_table::reader::Intent;
    use campanile_host_gpu::memory::page_table::reader::resolve_one;
    use campanile_protocol::engine::save_area;
    use campanile_protocol::engine::save_area::AreaKind;
    use campanile_protocol::engine::save_area::KERNEL_MODE_SLOT;
    use campanile_protocol::engine::save_area::SLOT_WORDS;
    use campanile_protocol::engine::saved::Saved;

    use crate::ids::GuestProcess;
    use crate::vgpu::objects::save_area::SaveArea;
    use crate::vgpu::session::Session;
    use crate::vgpu::state::saved::SavedSession;
    use crate::vgpu::state::saved::row::SavedProgress;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::golden;
    use crate::vgpu::testing::session;

    /// The golden state as version 1 would have it: how far work is stands beside it, and there are no save areas.
    fn without_areas() -> SavedSession {
        let mut state = golden();
        let mut areas = Vec::new();
        for device in state.processes.iter_mut().filter_map(|process| process.device.as_mut()) {
            areas.extend(device.area.take());
            let contexts = device.contexts.0.iter_mut().filter_map(|(_, context)| context.as_mut());
            areas.extend(contexts.filter_map(|context| context.area.take()));
        }
        assert_eq!(areas, [4, 5, 9, 10, 24]);
        state.allocations.retain(|allocation| !areas.contains(&allocation.0));
        let owner = state.processes[1].device.as_mut().unwrap();
        let place = owner.doorbells.0[2].1.as_mut().unwrap().place.as_mut().unwrap();
        (place.consumed, place.progress) = (3, Some(SavedProgress(40, 5, [6, 7, 8])));
        let buffers = &mut owner.contexts.0[0].1.as_mut().unwrap().buffers;
        (buffers[0].is_saved, buffers[0].progress) = (false, SavedProgress(24, 1, [0; 3]));
        state
    }

    /// Words of a save area, as engines come to them.
    fn words<const N: usize>(session: &Session, area: SaveArea, offset: u64) -> [u64; N] {
        let bytes = 8 * N as u64;
        let (tables, root) = (session.vm.memory.tables.mapping(), session.vm.memory.areas.root().0);
        let run = resolve_one(tables, root, area.va + offset, bytes, Intent::Write).unwrap();
        let file = session.vm.memory.allocations.memory().file();
        std::array::from_fn(|index| {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, run.offset + 8 * index as u64).unwrap();
            u64::from_ne_bytes(word)
        })
    }

    #[test]
    fn lm_26_pre_31_a_state_of_version_1_gets_save_areas_that_say_how_far_its_work_is() {
        let mut session = session(&Arc::new(config()));
        session.restore(&without_areas()).unwrap();
        let shared = device(&mut session, OWNER).area.expect("an area of the device");
        let own = device(&mut session, OWNER).contexts.get(CONTEXT).unwrap().area;
        assert_eq!(words(&session, shared, 0), [AreaKind::Device.header()]);
        assert_eq!(words(&session, own, 0), [AreaKind::Context.header()]);
        let (_, slot) = save_area::queue_slot(2);
        let found = save_area::read_slot(words::<SLOT_WORDS>(&session, own, slot), 3);
        assert_eq!(found, Some(Saved { at: 40, done_in_packet: 5, grid: [6, 7, 8] }));
        let found = save_area::read_slot(words::<SLOT_WORDS>(&session, own, KERNEL_MODE_SLOT), 1);
        assert_eq!(found, Some(Saved { at: 24, done_in_packet: 1, grid: [0; 3] }));
        // The engine is told to look there, and for nothing else.
        let saved = session.save().unwrap();
        let saved = saved.processes[1].device.as_ref().unwrap();
        let buffers = saved.contexts.0[0].1.as_ref().unwrap().buffers.iter();
        assert_eq!(buffers.map(|buffer| buffer.is_saved).collect::<Vec<_>>(), [true, false, false, false]);
    }

    #[test]
    fn lm_26_a_device_without_contexts_gets_no_save_area() {
        let mut state = without_areas();
        let first = state.processes[0].device.as_mut().unwrap();
        (first.contexts.0, first.queues.0, first.doorbells.0) = (Vec::new(), Vec::new(), Vec::new());
        let mut session = session(&Arc::new(config()));
        session.restore(&state).unwrap();
        assert!(
            device(&mut session, GuestProcess::new(1)).area.is_none()
                && device(&mut session, OWNER).area.is_some()
        );
    }
}

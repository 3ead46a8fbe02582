//! Save areas: which are needed on engines, and which end. See [`crate::vgpu::memory::save_areas`].

use campanile_host_gpu::adapter::debug_info::DebugInfo;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::save_area;
use campanile_protocol::engine::save_area::AreaKind;
use campanile_protocol::engine::save_area::KERNEL_MODE_SLOT;
use campanile_protocol::engine::save_area::SLOT_WORDS;
use campanile_protocol::engine::saved::Saved;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::save_area::SaveArea;
use crate::vgpu::session::Session;

impl Session {
    /// Frees areas, whatever became of them, once engines have let go (PRE-36).
    pub(in crate::vgpu) fn free_areas(&mut self, areas: Vec<SaveArea>) {
        if areas.is_empty() {
            return;
        }
        self.rooms.memory.hide_areas(&areas, &mut self.rooms.journal);
        let barrier = Barrier::raise(&mut self.rooms.engines);
        self.after(barrier, Action::FreeAreas(areas));
    }

    /// An allocation is where engines reach it: a context that waited for it as its save area may run.
    pub(in crate::vgpu) fn area_is_there(&mut self, allocation: AllocationId) {
        for (of, handle, at) in self.rooms.memory.contexts_of_area(&self.rooms.objects, allocation) {
            self.list_context(of, handle);
            self.fill_hw_queue(at);
        }
    }

    /// Of a guest process: whether the area of any of its contexts is evicted, and whether the device-wide one is.
    pub fn areas_evicted_of(&self, of: u32) -> (bool, bool) {
        self.rooms.memory.areas_evicted_of(of)
    }

    /// Engines have let go.
    pub(in crate::vgpu) fn areas_are_free(&mut self, areas: Vec<SaveArea>) {
        for area in areas {
            self.rooms.memory.areas.release(area);
            self.release_allocation(area.allocation);
        }
    }

    /// The areas of contexts whose state is on an engine: true where one of their buffers is with it, or runs.
    pub(in crate::vgpu) fn areas_on_engines(&self) -> BTreeMap<AllocationId, bool> {
        let mut found = BTreeMap::new();
        for (place, slot) in self.rooms.engines.iter().enumerate().filter(|(_, slot)| slot.hears()) {
            let flights = slot.in_flight.iter().filter_map(|flight| flight.owner);
            for (of, buffer) in flights {
                found.extend(
                    self.rooms.memory.areas_of(&self.rooms.objects, of, buffer.context).map(|id| (id, true)),
                );
            }
            let last = slot.process().and_then(|process| process.uses.last_context());
            let owner = last.and_then(|(entry, is_running)| {
                Some((
                    self.rooms.objects.owner_of_entry(EngineAddress::from_index(place)?, entry)?,
                    is_running,
                ))
            });
            if let Some(((of, handle), is_running)) = owner {
                for id in self.rooms.memory.areas_of(&self.rooms.objects, of, handle) {
                    *found.entry(id).or_default() |= is_running;
                }
            }
        }
        found
    }

    /// How far the buffer was that an engine runs, when it was last put aside: what its save area says, for a report.
    pub(in crate::vgpu) fn put_aside(&self, at: EngineAddress, info: &DebugInfo) -> Option<Saved> {
        let name = info.saved?;
        let ((of, context), (kind, offset)) = match info.progress.work {
            Work::Nothing => return None,
            Work::HwQueue => {
                let (of, buffer) = self.rooms.engines[at.index()].in_flight.front()?.owner?;
                ((of, buffer.context), (AreaKind::Context, KERNEL_MODE_SLOT))
            }
            Work::UserQueue(hw_queue) => {
                let (of, queue) = self.rooms.objects.owner_of_hw_queue(at, hw_queue)?;
                let context = self.rooms.objects.device(of).ok()?.queues.get(queue)?.context;
                ((of, context), save_area::queue_slot(queue.index()))
            }
        };
        let device = self.rooms.objects.device(of).ok()?;
        let area = match kind {
            AreaKind::Device => device.area?,
            AreaKind::Context => device.contexts.get(context)?.area,
        };
        let (mapping, start) = self.rooms.memory.allocations.view(area.allocation)?;
        let mut words = [0; SLOT_WORDS];
        for (place, word) in (start + offset..).step_by(8).zip(&mut words) {
            *word = mapping.word(place)?.load(Ordering::Acquire);
        }
        save_area::read_slot(words, name)
    }
}

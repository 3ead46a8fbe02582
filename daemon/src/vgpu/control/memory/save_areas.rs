//! Save areas: which are needed on engines, and which end. See [`crate::vgpu::memory::save_areas`].

use campanile_host_gpu::engine::address::EngineAddress;
use std::collections::BTreeMap;

use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::objects::ids::AllocationId;

impl Pager<'_> {
    /// The areas of contexts whose state is on an engine: true where one of their buffers is with it, or runs.
    pub(in crate::vgpu) fn areas_on_engines(&self) -> BTreeMap<AllocationId, bool> {
        let mut found = BTreeMap::new();
        for (place, slot) in self.vm.engines.iter().enumerate().filter(|(_, slot)| slot.hears()) {
            let flights = slot.in_flight.iter().filter_map(|flight| flight.owner);
            for (of, buffer) in flights {
                found.extend(
                    self.vm.memory.areas_of(&self.vm.objects, of, buffer.context).map(|id| (id, true)),
                );
            }
            let last = slot.process().and_then(|process| process.uses.last_context());
            let owner = last.and_then(|(entry, is_running)| {
                Some((self.vm.objects.owner_of_entry(EngineAddress::from_index(place)?, entry)?, is_running))
            });
            if let Some(((of, handle), is_running)) = owner {
                for id in self.vm.memory.areas_of(&self.vm.objects, of, handle) {
                    *found.entry(id).or_default() |= is_running;
                }
            }
        }
        found
    }
}

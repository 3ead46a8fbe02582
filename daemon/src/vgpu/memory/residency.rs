//! Residency: what lies where engines reach it, what is evicted, and what brings it back.
//!
//! ```text
//!            room is needed: least important, least recently used          engines let go, contents copied
//!   RESIDENT ─────────────────────────────────────────────────▶ MOVING ─────────────────────────▶ EVICTED
//!      ▲                                                                                            │
//!      └── a queue came to it (it is blocked meanwhile, and asks through the shared block) ◀────────┤
//!      └── MAKE_RESIDENT (and then it is held, until EVICT) ◀───────────────────────────────────────┘
//! ```
//!
//! What the guest's CPU has in its window, device pages and what is held never leave. What a queue asked for stays for
//! [`MIN_STAY`], or until that queue has got on; and one queue at a time is favoured: what it came to stays until it has
//! all that it needs, so that two queues cannot take it from each other for ever. A queue that
//! needs more at one place than there is puts its device in error: no waiting helps it.

use std::time::Duration;

use campanile_protocol::engine::residency::Wanted;
use log::Level;

use super::residency_faults::Demand;
use super::room::Leaving;
use super::room::LetGo;
use super::room::Memory;
use super::room::Released;
use super::vidmm::allocations::Spot;
use super::vidmm::compaction::Relocation;
use super::vidmm::vram::Place;
use crate::vgpu::journal::Journal;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::processes::Objects;

/// How long what was brought back for one queue stays at least while that queue has not got on.
pub(in crate::vgpu) const MIN_STAY: Duration = Duration::from_millis(20);
/// Queues that an engine can name.
const MAX_NAMES: u64 = 2 * campanile_protocol::engine::block::MAX_QUEUES as u64;

impl Memory {
    /// Where each mapping of an allocation leads changes to where the allocation is now.
    pub(in crate::vgpu) fn remap(&mut self, allocation: AllocationId, journal: &mut Journal) {
        let spot = self.allocations.spot(allocation);
        for (root, va, mapping) in self.residency.shown.of(allocation) {
            let changed = match spot {
                Spot::Segment(segment, start) => {
                    let offset = start + mapping.offset;
                    self.tables.end_move(root, va, segment, offset, mapping.size, mapping.writable)
                }
                Spot::Moving => self.tables.start_move(root, va, mapping.size),
                Spot::Evicted => self.tables.evict(root, va, mapping.size),
            };
            if let Err(error) = changed {
                journal.line(Level::Error, format_args!("a mapping of ours could not be moved: {error}"));
            }
        }
    }

    /// A move begins: page tables show the allocation as on the move, and what engines must let go of before its contents
    /// are copied. It is held until then.
    pub(in crate::vgpu) fn begin_move(&mut self, allocation: AllocationId, journal: &mut Journal) -> LetGo {
        self.allocations.retain(allocation);
        self.remap(allocation, journal);
        // What no page table shows any more, engines may still reach until they have forgotten it.
        if self.residency.shown.contains(allocation) { LetGo::EveryEngine } else { LetGo::WhatWasAsked }
    }

    /// Begins to move an allocation to host memory; none where there is no room for it there: it stays.
    pub(in crate::vgpu) fn begin_eviction(
        &mut self,
        allocation: AllocationId,
        journal: &mut Journal,
    ) -> Option<Leaving> {
        let target = self.allocations.begin_eviction(allocation).ok()?;
        Some(self.leave(allocation, target, journal))
    }

    /// Begins to move an allocation to another place in video memory; none where another request was faster: it stays.
    pub(in crate::vgpu) fn begin_relocation(
        &mut self,
        it: Relocation,
        journal: &mut Journal,
    ) -> Option<Leaving> {
        let target = self.allocations.begin_relocation(it.id, it.target).ok()?;
        Some(self.leave(it.id, target, journal))
    }

    fn leave(&mut self, allocation: AllocationId, target: Place, journal: &mut Journal) -> Leaving {
        self.residency.leaving += 1;
        Leaving { allocation, target, let_go: self.begin_move(allocation, journal) }
    }

    /// Engines have let go of what leaves its place: it is where it was to go.
    pub(in crate::vgpu) fn finish_relocation(
        &mut self,
        allocation: AllocationId,
        target: Place,
        journal: &mut Journal,
    ) -> Released {
        self.allocations.finish_move(allocation, target, self.residency.epoch);
        self.remap(allocation, journal);
        self.residency.leaving -= 1;
        self.residency.look_again();
        self.release(allocation)
    }

    /// A device has brought back what was evicted.
    pub(in crate::vgpu) fn finish_restore(
        &mut self,
        allocation: AllocationId,
        target: Place,
        journal: &mut Journal,
    ) -> Released {
        self.allocations.finish_move(allocation, target, self.residency.epoch);
        self.remap(allocation, journal);
        self.residency.restored.push(allocation);
        self.residency.look_again();
        self.release(allocation)
    }

    /// A queue came to something that is not resident: it is wanted from here on. False where it is there, or is nothing.
    #[must_use]
    pub(in crate::vgpu) fn demand(&mut self, wanted: &Wanted, objects: &Objects) -> bool {
        let found = if wanted.root == self.areas.root().0 {
            // A queue of a context needs a save area with all else that its device's memory is wanted for.
            self.areas.at(wanted.va).and_then(|area| {
                let (of, _) = self.areas.owner(area.allocation)?;
                Some((area.allocation, objects.device(of).ok()?.root.0))
            })
        } else {
            let devices = objects.processes.values().filter_map(|process| process.device.as_ref());
            let device = devices.into_iter().find(|device| device.root.0 == wanted.root);
            let mapping = device.and_then(|device| device.find_mapping(wanted.va, 1));
            mapping.map(|(mapping, _)| (mapping.allocation, wanted.root))
        };
        let Some((allocation, root)) = found.filter(|_| wanted.queue < MAX_NAMES) else { return false };
        let is_evicted = self.allocations.spot(allocation) == Spot::Evicted;
        if is_evicted {
            let demand = Demand { name: (root, wanted.queue), token: wanted.token };
            self.residency.want(allocation, Some(demand));
        }
        is_evicted
    }

    /// Forgets the contents of video memory after the reset of the adapter (TDR-79). What is evicted is unmapped and its
    /// contents are lost (TDR-78): no engine runs, and none is asked for it.
    pub(in crate::vgpu) fn purge(&mut self, journal: &mut Journal) {
        for allocation in self.allocations.purge() {
            self.remap(allocation, journal);
        }
        self.residency.look_again();
    }
}

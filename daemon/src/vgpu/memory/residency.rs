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

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::device_page;
use campanile_protocol::engine::residency::Wanted;
use log::Level;

use super::residency_faults::Demand;
use super::residency_faults::Served;
use super::residency_faults::Want;
use super::vidmm::allocations::Backing;
use super::vidmm::allocations::Spot;
use super::vidmm::compaction::Movable;
use super::vidmm::compaction::Relocation;
use super::vidmm::eviction::Candidate;
use super::vidmm::eviction::Plan;
use super::vidmm::vram::Place;
use crate::vgpu::counters::count;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::session::Session;

/// How long what was brought back for one queue stays at least while that queue has not got on.
const MIN_STAY: Duration = Duration::from_millis(20);
/// Queues that an engine can name.
const MAX_NAMES: u64 = 2 * campanile_protocol::engine::block::MAX_QUEUES as u64;

impl Session {
    /// Where each mapping of an allocation leads changes to where the allocation is now.
    pub(in crate::vgpu) fn remap(&mut self, allocation: AllocationId) {
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
                self.journal
                    .line(Level::Error, format_args!("a mapping of ours could not be moved: {error}"));
            }
        }
    }

    /// A move has begun: what engines must let go of.
    pub(in crate::vgpu) fn begin_move(&mut self, allocation: AllocationId) -> Barrier {
        self.allocations.retain(allocation);
        self.remap(allocation);
        if self.residency.shown.contains(allocation) {
            Barrier::raise(&mut self.engines)
        } else {
            // What was mapped until now, and is in no page table any more, engines may still reach.
            Barrier::raised(&self.engines)
        }
    }

    /// Forgets the contents of video memory after the reset of the adapter (TDR-79). What is evicted is unmapped and its
    /// contents are lost (TDR-78): no engine runs, and none is asked for it.
    pub(in crate::vgpu) fn purge_memory(&mut self) {
        self.run_pending();
        for allocation in self.allocations.purge() {
            self.remap(allocation);
        }
        self.residency.look_again();
    }

    /// Whether an allocation may be moved to host memory.
    pub(in crate::vgpu) fn can_leave(&self, id: AllocationId) -> bool {
        self.can_move(id) && self.allocations.get(id).is_some_and(|allocation| allocation.holds == 0)
    }

    /// Whether an allocation may be moved to another place.
    fn can_move(&self, id: AllocationId) -> bool {
        self.allocations.get(id).is_some_and(|allocation| {
            matches!(allocation.backing, Backing::Vram(Some(Place::Local(_) | Place::Area(_))))
                && !allocation.is_moving
                && allocation.pins == 0
        })
    }

    /// What may move within its region, that of save areas or the other one; what is held, too, since it stays where engines reach it.
    pub(in crate::vgpu) fn movable(&self, is_area: bool) -> Vec<Movable> {
        let all = self.allocations.iter().filter(|(id, it)| it.is_area == is_area && self.can_move(*id));
        let movable = all.filter_map(|(id, allocation)| match allocation.backing {
            Backing::Vram(Some(place)) => Some(Movable { id, offset: place.offset(), size: allocation.size }),
            _ => None,
        });
        movable.collect()
    }

    /// Begins to move an allocation to host memory.
    pub(in crate::vgpu) fn start_eviction(&mut self, allocation: AllocationId) {
        // Without room in host memory it stays.
        let Ok(target) = self.allocations.begin_eviction(allocation) else { return };
        count(&self.counters.evictions);
        self.relocate(allocation, target);
    }

    /// Begins to move an allocation to another place in video memory.
    pub(in crate::vgpu) fn start_relocation(&mut self, it: Relocation) {
        // Where another request was faster it stays.
        let Ok(target) = self.allocations.begin_relocation(it.id, it.target) else { return };
        count(&self.counters.relocations);
        self.relocate(it.id, target);
    }

    fn relocate(&mut self, allocation: AllocationId, target: Place) {
        self.residency.leaving += 1;
        let barrier = self.begin_move(allocation);
        self.after(barrier, Action::Relocate { allocation, target });
    }

    /// Engines have let go of what leaves its place.
    pub(in crate::vgpu) fn finish_relocation(&mut self, allocation: AllocationId, target: Place) {
        self.allocations.finish_move(allocation, target, self.residency.epoch);
        self.remap(allocation);
        if matches!(target, Place::Local(_) | Place::Area(_)) {
            self.poke_all();
        }
        self.residency.leaving -= 1;
        self.residency.look_again();
        self.release_allocation(allocation);
        for (resource, offset, token) in std::mem::take(&mut self.residency.deferred) {
            if let Err(refusal) = self.map_blob(resource, offset, token) {
                self.objects.due.push((token, Err(refusal)));
            }
        }
    }

    /// What queues of an engine came to that is not resident.
    pub(in crate::vgpu) fn read_wanted(&mut self, at: EngineAddress) {
        let wanted = self.engines[at.index()].process().map(|process| process.uses.take_wanted());
        for wanted in wanted.unwrap_or_default() {
            self.demand(&wanted);
        }
    }

    fn demand(&mut self, wanted: &Wanted) {
        if wanted.root == self.areas.root().0 {
            return self.demand_area(wanted);
        }
        let devices = self.objects.processes.values().filter_map(|process| process.device.as_ref());
        let device = devices.into_iter().find(|device| device.root.0 == wanted.root);
        let found = device.and_then(|device| device.find_mapping(wanted.va, 1));
        let Some((mapping, _)) = found.filter(|_| wanted.queue < MAX_NAMES) else { return };
        let allocation = mapping.allocation;
        if self.allocations.spot(allocation) == Spot::Evicted {
            count(&self.counters.residency_faults);
            let demand = Demand { name: (wanted.root, wanted.queue), token: wanted.token };
            self.residency.want(allocation, Some(demand));
        }
    }

    /// A queue of a context came to a save area: it needs that with all else that its device's memory is wanted for.
    fn demand_area(&mut self, wanted: &Wanted) {
        let Some(area) = self.areas.at(wanted.va).filter(|_| wanted.queue < MAX_NAMES) else { return };
        let owner = self.areas.owner(area.allocation).and_then(|(of, _)| self.objects.device(of).ok());
        let Some(root) = owner.map(|device| device.root) else { return };
        if self.allocations.spot(area.allocation) == Spot::Evicted {
            count(&self.counters.residency_faults);
            let demand = Demand { name: (root.0, wanted.queue), token: wanted.token };
            self.residency.want(area.allocation, Some(demand));
        }
    }

    /// Brings back what there is room for, and makes room for the rest.
    pub(in crate::vgpu) fn serve_residency(&mut self) {
        if self.is_stopping() {
            return;
        }
        self.run_all_paging();
        self.publish_budget();
        let now = clock::now();
        if self.residency.retry_at.is_some_and(|at| at <= now) {
            self.residency.retry_at = None;
            self.residency.is_due = true;
        }
        // An eviction that does not wait is over at once, and then there is more to do.
        while std::mem::take(&mut self.residency.is_due) {
            self.residency.recent.retain(|(_, _, at)| now.duration_since(*at) < MIN_STAY);
            for want in std::mem::take(&mut self.residency.wants) {
                if self.allocations.get(want.allocation).is_none() {
                    continue;
                }
                match self.allocations.spot(want.allocation) {
                    Spot::Segment(..) => self.area_is_there(want.allocation),
                    Spot::Evicted if self.allocations.bring_back(want.allocation, self.residency.epoch) => {
                        self.was_brought_back(&want, now);
                    }
                    Spot::Evicted | Spot::Moving => self.residency.wants.push(want),
                }
            }
            if !self.residency.wants.is_empty() && self.residency.leaving == 0 {
                self.begin_epoch();
                // Neither finds room in the other's region.
                self.make_room(now, false);
                self.make_room(now, true);
            }
            self.answer_waiters();
        }
    }

    fn was_brought_back(&mut self, want: &Want, now: Instant) {
        count(&self.counters.restores);
        self.remap(want.allocation);
        if let Some(demand) = want.demand {
            let served = self.residency.served.entry(demand.name).or_default();
            if served.token != demand.token {
                *served = Served { token: demand.token, allocations: Vec::new() };
            }
            if !served.allocations.contains(&want.allocation) {
                served.allocations.push(want.allocation);
            }
            self.residency.recent.push((want.allocation, demand, now));
        }
        self.poke_all();
        self.area_is_there(want.allocation);
    }

    pub(in crate::vgpu) fn poke_all(&self) {
        for process in self.engines.iter().filter_map(|slot| slot.process()) {
            process.poke();
        }
    }

    /// What could leave the region of save areas, or the other one, as a plan.
    pub(in crate::vgpu) fn plan(&self, is_area: bool) -> Plan {
        let memory = self.allocations.memory();
        let bytes = memory.file_bytes();
        let on_engines = if is_area { self.areas_on_engines() } else { BTreeMap::new() };
        let is_needed = |id: AllocationId| on_engines.get(&id) == Some(&true);
        let candidates = self
            .allocations
            .iter()
            .filter(|(id, it)| it.is_area == is_area && self.can_leave(*id) && !is_needed(*id));
        let candidates = candidates.filter_map(|(id, allocation)| {
            let Backing::Vram(Some(place)) = allocation.backing else { return None };
            let (offset, size) = (place.offset(), allocation.size);
            let engines = self.engines.iter().filter_map(|slot| slot.process());
            // Save areas are smaller than what engines tell their uses of.
            let used = if is_area {
                0
            } else {
                engines.map(|engine| engine.uses.last_use(offset, size, bytes)).max().unwrap_or(0)
            };
            let last_use = used.max(allocation.placed_in);
            // State that is on an engine leaves it for nothing else.
            let priority = if on_engines.contains_key(&id) { u32::MAX } else { allocation.priority };
            Some(Candidate { id, offset, size, priority, last_use })
        });
        let free = if is_area { memory.areas() } else { memory.local() };
        Plan::new(free.clone(), candidates.collect())
    }

    /// A decision about what leaves is to come.
    fn begin_epoch(&mut self) {
        self.residency.favour();
        self.residency.epoch += 1;
        for process in self.engines.iter().filter_map(|slot| slot.process()) {
            process.uses.set_epoch(self.residency.epoch);
        }
        self.residency.retry_at = None;
        // Stable: those of the favoured queue come first, and else all in their order.
        let mut wants = std::mem::take(&mut self.residency.wants);
        wants.sort_by_key(|want| !self.residency.is_favoured(want.demand));
        self.residency.wants = wants;
    }

    /// Evicts for what is wanted, as far as that can be: save areas, or all else.
    fn make_room(&mut self, now: Instant, is_area: bool) {
        let is_of_it =
            |want: &Want| self.allocations.get(want.allocation).is_some_and(|it| it.is_area == is_area);
        if !self.residency.wants.iter().any(is_of_it) {
            return;
        }
        let mut plan = self.plan(is_area);
        let memory = self.allocations.memory();
        let local = memory.length() - memory.aperture_bytes();
        let mut movable = self.movable(is_area);
        let (mut victims, mut hopeless, mut moves) = (Vec::new(), Vec::new(), Vec::new());
        let residency = &self.residency;
        let mut is_early = false;
        for want in residency.wants.iter().filter(|want| is_of_it(want)) {
            if self.allocations.spot(want.allocation) != Spot::Evicted {
                continue;
            }
            let size = self.allocations.size(want.allocation);
            let by = want.demand;
            let is_favoured = residency.is_favoured(by);
            let may_leave = |it: &Candidate| {
                !residency.serves(it.id, by)
                    && !residency.is_settling(it.id, by)
                    && (is_favoured || !residency.serves(it.id, residency.favoured))
            };
            // To move costs one copy, to evict two, if what leaves comes back.
            if plan.take(size) {
                continue;
            }
            if let Some(found) = plan.compact(&mut movable, size, size) {
                moves.extend(found);
            } else if let Some(found) = plan.make_room(size, may_leave) {
                victims.extend(found);
            } else if let Some(found) = plan.compact(&mut movable, size, u64::MAX) {
                moves.extend(found);
            } else if plan.clone().make_room(size, |it| !residency.serves(it.id, by)).is_some() {
                is_early = true;
            } else if by.is_some() && !is_area && self.needed_with(want) > local {
                hopeless.extend(by);
            } else if let Some(found) = plan.make_room(size, |_| is_favoured) {
                // It all fits, but not where it lies: once more around.
                victims.extend(found);
            }
        }
        self.residency.retry_at = self.residency.retry_at.or(is_early.then(|| now + MIN_STAY));
        victims.into_iter().for_each(|id| self.start_eviction(id));
        moves.into_iter().for_each(|it| self.start_relocation(it));
        for demand in hopeless {
            self.give_up(demand);
        }
        if self.residency.retry_at.is_some() {
            self.set_timer();
        }
    }

    /// Bytes that a queue needs at the place where it is, as far as it has said so.
    fn needed_with(&self, want: &Want) -> u64 {
        let by = want.demand;
        let served = by.and_then(|by| self.residency.served.get(&by.name).filter(|it| it.token == by.token));
        let others = served.into_iter().flat_map(|served| &served.allocations);
        // Save areas have their own region.
        let is_area = |id: AllocationId| self.allocations.get(id).is_some_and(|it| it.is_area);
        let others = others.filter(|id| **id != want.allocation && !is_area(**id));
        let others = others.map(|id| self.allocations.size(*id));
        others.fold(self.allocations.size(want.allocation), u64::saturating_add)
    }

    /// What a queue needs at one place does not fit into video memory together.
    fn give_up(&mut self, demand: Demand) {
        let mut processes = self.objects.processes.iter();
        let owner = processes.find(|(_, process)| {
            process.device.as_ref().is_some_and(|device| device.root.0 == demand.name.0)
        });
        self.residency.wants.retain(|want| want.demand.is_none_or(|it| it.name != demand.name));
        let Some((&context, _)) = owner else { return };
        self.journal.line(
            Level::Warn,
            format_args!("process {context}: what one packet needs does not fit into video memory"),
        );
        self.put_device_in_error(context, device_page::DEVICE_OUT_OF_MEMORY);
    }

    fn answer_waiters(&mut self) {
        let waiters = std::mem::take(&mut self.residency.waiters);
        for waiter in waiters {
            let is_there =
                |id: &AllocationId| !matches!(self.allocations.spot(*id), Spot::Evicted | Spot::Moving);
            if waiter.allocations.iter().all(|id| self.allocations.get(*id).is_none() || is_there(id)) {
                self.is_resident(&waiter);
            } else {
                self.residency.waiters.push(waiter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::engine::block;

    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::memory::vidmm::allocations::Spot;
    use crate::vgpu::objects::process::GpuMapping;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::load;
    use crate::vgpu::testing::run;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;

    const VA: u64 = 0x10_0000;

    /// The engine has seen all that it was to see.
    fn acknowledge(session: &mut Session) {
        for (asked, acknowledged) in
            [(block::PAGE_TABLE_GENERATION, block::PAGE_TABLE_ACK), (block::WATCH_SEQUENCE, block::WATCH_ACK)]
        {
            store(session, COPY, acknowledged, load(session, COPY, asked));
        }
        session.run_pending();
    }

    #[test]
    fn mcdm_54_what_was_mapped_until_now_moves_when_engines_have_let_go_of_it_and_is_whole_until_then() {
        for is_given_up in [false, true] {
            let mut session = session(&Arc::new(startable()));
            run(&mut session, COPY);
            session.create_vram_blob(5, 2 * PAGE_SIZE, true).unwrap();
            let id = session.blobs[&5].allocation;
            let free = session.allocations.memory().local().free_bytes();
            let root = session.tables.create_root().unwrap();
            let mapping = GpuMapping { size: 2 * PAGE_SIZE, allocation: id, offset: 0, writable: true };
            session.show_to_gpu(root, VA, mapping).unwrap_or_else(|refused| panic!("{}", refused.text));
            session.allocations.retain(id);
            acknowledge(&mut session);
            // As an unmap does it: from here on no page table shows it, and the engine has not looked yet.
            session.hide_from_gpu(root, VA, &mapping);
            let barrier = Barrier::raise(&mut session.engines);
            session.after(barrier, Action::Release(vec![id]));
            session.start_eviction(id);
            assert_eq!(session.allocations.spot(id), Spot::Moving, "what the engine stores is not lost");
            assert_eq!(
                session.allocations.memory().local().free_bytes(),
                free - 2 * PAGE_SIZE,
                "nor given away"
            );
            if is_given_up {
                session.unref_blob(5).unwrap();
            }
            acknowledge(&mut session);
            assert_eq!(session.allocations.memory().local().free_bytes(), free);
            // What is given up on its way has no place, neither where it was nor where it was to go.
            let evicted = session.allocations.memory().evicted_bytes();
            assert_eq!(evicted, if is_given_up { 0 } else { 2 * PAGE_SIZE }, "{is_given_up}");
            assert_eq!(session.allocations.is_empty(), is_given_up);
            assert_eq!(session.residency.leaving, 0);
        }
    }

    #[test]
    fn what_no_engine_has_mapped_moves_at_once_where_engines_have_forgotten_what_they_were_to() {
        let mut session = session(&Arc::new(startable()));
        run(&mut session, COPY);
        session.create_vram_blob(5, 2 * PAGE_SIZE, true).unwrap();
        let id = session.blobs[&5].allocation;
        session.allocations.locate(id, 1);
        acknowledge(&mut session);
        let asked = load(&session, COPY, block::PAGE_TABLE_GENERATION);
        session.start_eviction(id);
        assert_eq!(session.allocations.spot(id), Spot::Evicted);
        assert_eq!(
            load(&session, COPY, block::PAGE_TABLE_GENERATION),
            asked,
            "no engine is asked for anything"
        );
    }
}

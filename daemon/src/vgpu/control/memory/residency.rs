//! Residency, served: what is wanted is brought back, and room is made for it. See [`crate::vgpu::memory::residency`].

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::device_page;
use log::Level;
use std::collections::BTreeMap;
use std::time::Instant;

use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::counters::count;
use crate::vgpu::memory::residency::MIN_STAY;
use crate::vgpu::memory::residency_faults::Demand;
use crate::vgpu::memory::residency_faults::Served;
use crate::vgpu::memory::residency_faults::Want;
use crate::vgpu::memory::vidmm::allocations::Backing;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::memory::vidmm::device_memory::local_soon;
use crate::vgpu::memory::vidmm::eviction::Candidate;
use crate::vgpu::memory::vidmm::eviction::Plan;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::submission::buffers::Submission;

impl Pager<'_> {
    /// What queues of an engine came to that is not resident.
    pub(in crate::vgpu) fn read_wanted(&mut self, at: EngineAddress) {
        let wanted = self.vm.engines[at.index()].process().map(|process| process.uses.take_wanted());
        for wanted in wanted.unwrap_or_default() {
            if self.vm.memory.demand(&wanted, &self.vm.objects) {
                count(&self.vm.counters.residency_faults);
            }
        }
    }

    /// Brings back what there is room for, and makes room for the rest.
    pub(in crate::vgpu) fn serve_residency(&mut self) {
        if self.vm.freeze.is_stopping() {
            return;
        }
        self.run_all_paging();
        self.vm.memory.publish_budget(&self.vm.objects, &self.vm.config.account);
        let now = clock::now();
        if self.vm.memory.residency.retry_at.is_some_and(|at| at <= now) {
            self.vm.memory.residency.retry_at = None;
            self.vm.memory.residency.is_due = true;
        }
        // An eviction that does not wait is over at once, and then there is more to do.
        while std::mem::take(&mut self.vm.memory.residency.is_due) {
            self.vm.memory.residency.recent.retain(|(_, _, at)| now.duration_since(*at) < MIN_STAY);
            let restored = std::mem::take(&mut self.vm.memory.residency.restored);
            for want in std::mem::take(&mut self.vm.memory.residency.wants) {
                if self.vm.memory.allocations.get(want.allocation).is_none() {
                    continue;
                }
                match self.vm.memory.allocations.spot(want.allocation) {
                    Spot::Segment(..) if restored.contains(&want.allocation) => {
                        self.was_brought_back(&want, now);
                    }
                    Spot::Segment(..) => Submission::of(self.vm).area_is_there(want.allocation),
                    Spot::Evicted
                        if self
                            .vm
                            .memory
                            .allocations
                            .bring_back(want.allocation, self.vm.memory.residency.epoch) =>
                    {
                        self.was_brought_back(&want, now);
                    }
                    spot @ (Spot::Evicted | Spot::Moving) => {
                        let id = want.allocation;
                        if spot == Spot::Evicted && self.vm.memory.allocations.is_restored_by_device(id) {
                            let _is_begun = Deferred::of(self.vm).start_restore(id);
                        }
                        self.vm.memory.residency.wants.push(want);
                    }
                }
            }
            if !self.vm.memory.residency.wants.is_empty() && self.vm.memory.residency.leaving == 0 {
                self.begin_epoch();
                // Neither finds room in the other's region.
                self.make_room(now, false);
                self.make_room(now, true);
            }
            self.answer_waiters();
        }
    }

    fn was_brought_back(&mut self, want: &Want, now: Instant) {
        count(&self.vm.counters.restores);
        self.vm.memory.remap(want.allocation, &mut self.vm.journal);
        if let Some(demand) = want.demand {
            let served = self.vm.memory.residency.served.entry(demand.name).or_default();
            if served.token != demand.token {
                *served = Served { token: demand.token, allocations: Vec::new() };
            }
            if !served.allocations.contains(&want.allocation) {
                served.allocations.push(want.allocation);
            }
            self.vm.memory.residency.recent.push((want.allocation, demand, now));
        }
        self.vm.engines.poke_all();
        Submission::of(self.vm).area_is_there(want.allocation);
    }

    /// What could leave the region of save areas, or the other one, as a plan.
    pub(in crate::vgpu) fn plan(&self, is_area: bool) -> Plan {
        let memory = self.vm.memory.allocations.memory();
        let bytes = memory.file_bytes();
        let on_engines = if is_area { self.areas_on_engines() } else { BTreeMap::new() };
        let is_needed = |id: AllocationId| on_engines.get(&id) == Some(&true);
        let candidates = self.vm.memory.allocations.iter().filter(|(id, it)| {
            it.is_area == is_area && self.vm.memory.allocations.can_leave(*id) && !is_needed(*id)
        });
        let candidates = candidates.filter_map(|(id, allocation)| {
            let Backing::Vram(Some(place)) = allocation.backing else { return None };
            let (offset, size) = (place.offset(), allocation.size);
            let engines = self.vm.engines.iter().filter_map(|slot| slot.process());
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
        // What is being zeroed needs no room made, but time.
        let free = if is_area { memory.areas().clone() } else { local_soon(memory) };
        Plan::new(free, candidates.collect())
    }

    /// A decision about what leaves is to come.
    fn begin_epoch(&mut self) {
        self.vm.memory.residency.favour();
        self.vm.memory.residency.epoch += 1;
        for process in self.vm.engines.iter().filter_map(|slot| slot.process()) {
            process.uses.set_epoch(self.vm.memory.residency.epoch);
        }
        self.vm.memory.residency.retry_at = None;
        // Stable: those of the favoured queue come first, and else all in their order.
        let mut wants = std::mem::take(&mut self.vm.memory.residency.wants);
        wants.sort_by_key(|want| !self.vm.memory.residency.is_favoured(want.demand));
        self.vm.memory.residency.wants = wants;
    }

    /// Evicts for what is wanted, as far as that can be: save areas, or all else.
    fn make_room(&mut self, now: Instant, is_area: bool) {
        let is_of_it = |want: &Want| {
            self.vm.memory.allocations.get(want.allocation).is_some_and(|it| it.is_area == is_area)
        };
        if !self.vm.memory.residency.wants.iter().any(is_of_it) {
            return;
        }
        let mut plan = self.plan(is_area);
        let memory = self.vm.memory.allocations.memory();
        let local = memory.length() - memory.aperture_bytes();
        let mut movable = self.vm.memory.allocations.movable(is_area);
        let (mut victims, mut hopeless, mut moves) = (Vec::new(), Vec::new(), Vec::new());
        let residency = &self.vm.memory.residency;
        let mut is_early = false;
        for want in residency.wants.iter().filter(|want| is_of_it(want)) {
            if self.vm.memory.allocations.spot(want.allocation) != Spot::Evicted {
                continue;
            }
            let size = self.vm.memory.allocations.size(want.allocation);
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
            } else if by.is_some()
                && !is_area
                && self.vm.memory.residency.needed_with(&self.vm.memory.allocations, want) > local
            {
                hopeless.extend(by);
            } else if let Some(found) = plan.make_room(size, |_| is_favoured) {
                // It all fits, but not where it lies: once more around.
                victims.extend(found);
            }
        }
        self.vm.memory.residency.retry_at =
            self.vm.memory.residency.retry_at.or(is_early.then(|| now + MIN_STAY));
        victims.into_iter().for_each(|id| Deferred::of(self.vm).start_eviction(id));
        moves.into_iter().for_each(|it| Deferred::of(self.vm).start_relocation(it));
        for demand in hopeless {
            self.give_up(demand);
        }
        if let Some(at) = self.vm.memory.residency.retry_at {
            self.vm.timer.set(at);
        }
    }

    /// What a queue needs at one place does not fit into video memory together.
    fn give_up(&mut self, demand: Demand) {
        let mut processes = self.vm.objects.processes.iter();
        let owner = processes.find(|(_, process)| {
            process.device.as_ref().is_some_and(|device| device.root.0 == demand.name.0)
        });
        self.vm.memory.residency.wants.retain(|want| want.demand.is_none_or(|it| it.name != demand.name));
        let Some((&context, _)) = owner else { return };
        self.vm.journal.line(
            Level::Warn,
            format_args!("process {context}: what one packet needs does not fit into video memory"),
        );
        Devices::of(self.vm).put_device_in_error(context, device_page::DEVICE_OUT_OF_MEMORY);
    }

    fn answer_waiters(&mut self) {
        let waiters = std::mem::take(&mut self.vm.memory.residency.waiters);
        for waiter in waiters {
            let is_there = |id: &AllocationId| {
                !matches!(self.vm.memory.allocations.spot(*id), Spot::Evicted | Spot::Moving)
            };
            if waiter
                .allocations
                .iter()
                .all(|id| self.vm.memory.allocations.get(*id).is_none() || is_there(id))
            {
                self.is_resident(&waiter);
            } else {
                self.vm.memory.residency.waiters.push(waiter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_host_gpu::memory::local::Passport;
    use campanile_host_gpu::memory::vram::create_memfd;
    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::engine::block;

    use super::Pager;
    use super::Want;
    use crate::vgpu::config::Config;
    use crate::vgpu::control::deferred::Deferred;
    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::memory::vidmm::allocations::Spot;
    use crate::vgpu::memory::vidmm::device_local::DeviceLocal;
    use crate::vgpu::memory::vidmm::vram::Place;
    use crate::vgpu::objects::ids::AllocationId;
    use crate::vgpu::objects::mapping::GpuMapping;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::counted;
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
        Deferred::of(&mut session.vm).run_pending();
    }

    #[test]
    fn mcdm_54_what_was_mapped_until_now_moves_when_engines_have_let_go_of_it_and_is_whole_until_then() {
        for is_given_up in [false, true] {
            let mut session = session(&Arc::new(startable()));
            run(&mut session, COPY);
            session.blobs().create_vram_blob(5, 2 * PAGE_SIZE, true).unwrap();
            let id = session.vm.memory.blobs[&5].allocation;
            let free = session.vm.memory.allocations.memory().local().free_bytes();
            let root = session.vm.memory.tables.create_root().unwrap();
            let mapping = GpuMapping { size: 2 * PAGE_SIZE, allocation: id, offset: 0, writable: true };
            session
                .vm
                .memory
                .show_to_gpu(root, VA, mapping)
                .unwrap_or_else(|refused| panic!("{}", refused.text));
            session.vm.memory.allocations.retain(id);
            acknowledge(&mut session);
            // As an unmap does it: from here on no page table shows it, and the engine has not looked yet.
            session.vm.memory.hide_from_gpu(root, VA, &mapping, &mut session.vm.journal);
            let barrier = Barrier::raise(&mut session.vm.engines);
            Deferred::of(&mut session.vm).after(barrier, Action::Release(vec![id]));
            Deferred::of(&mut session.vm).start_eviction(id);
            assert_eq!(
                session.vm.memory.allocations.spot(id),
                Spot::Moving,
                "what the engine stores is not lost"
            );
            assert_eq!(
                session.vm.memory.allocations.memory().local().free_bytes(),
                free - 2 * PAGE_SIZE,
                "nor given away"
            );
            if is_given_up {
                session.blobs().unref_blob(5).unwrap();
            }
            acknowledge(&mut session);
            assert_eq!(session.vm.memory.allocations.memory().local().free_bytes(), free);
            // What is given up on its way has no place, neither where it was nor where it was to go.
            let evicted = session.vm.memory.allocations.memory().evicted_bytes();
            assert_eq!(evicted, if is_given_up { 0 } else { 2 * PAGE_SIZE }, "{is_given_up}");
            assert_eq!(session.vm.memory.allocations.is_empty(), is_given_up);
            assert_eq!(session.vm.memory.residency.leaving, 0);
        }
    }

    #[test]
    fn what_no_engine_has_mapped_moves_at_once_where_engines_have_forgotten_what_they_were_to() {
        let mut session = session(&Arc::new(startable()));
        run(&mut session, COPY);
        session.blobs().create_vram_blob(5, 2 * PAGE_SIZE, true).unwrap();
        let id = session.vm.memory.blobs[&5].allocation;
        session.vm.memory.allocations.locate(id, 1);
        acknowledge(&mut session);
        let asked = load(&session, COPY, block::PAGE_TABLE_GENERATION);
        Deferred::of(&mut session.vm).start_eviction(id);
        assert_eq!(session.vm.memory.allocations.spot(id), Spot::Evicted);
        assert_eq!(
            load(&session, COPY, block::PAGE_TABLE_GENERATION),
            asked,
            "no engine is asked for anything"
        );
    }

    const HALF: u64 = 32 << 20;

    /// Something is wanted, and looked for. How often anything was brought back until then.
    fn want(session: &mut Session, allocation: AllocationId) -> u64 {
        session.vm.memory.residency.wants.push(Want { allocation, demand: None });
        session.vm.memory.residency.is_due = true;
        Pager::of(&mut session.vm).serve_residency();
        counted(&session.vm.counters.restores)
    }

    #[test]
    fn what_a_device_brings_back_is_begun_when_it_is_wanted_and_counted_once_when_it_is_there() {
        let passport = Passport { length: HALF, ..Passport::default() };
        let local = DeviceLocal::new(create_memfd("opaque", HALF).unwrap().into(), passport);
        let config = Config { local: Some(Arc::new(local)), ..config() };
        let mut session = session(&Arc::new(config));
        let all = &mut session.vm.memory.allocations;
        let id = all.create_vram(PAGE_SIZE).unwrap();
        assert!(matches!(all.locate(id, 1), Spot::Segment(..)));
        let target = all.begin_eviction(id).unwrap();
        all.finish_move(id, target, 1);
        assert_eq!(want(&mut session, id), 0);
        assert_eq!(session.vm.memory.allocations.spot(id), Spot::Moving, "the device copies it");
        // The first page of local memory is not zeroed yet.
        Deferred::of(&mut session.vm).finish_restore(id, Place::Local(HALF + PAGE_SIZE));
        Pager::of(&mut session.vm).serve_residency();
        assert_eq!(counted(&session.vm.counters.restores), 1);
        assert_eq!(want(&mut session, id), 1, "it was there");
    }
}

//! Residency requests, priorities, and what a guest is told of its memory.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use campanile_protocol::control::memory;
use campanile_protocol::control::memory::EVICT_NOW;
use campanile_protocol::control::memory::MemoryInfo;
use campanile_protocol::control::memory::RESIDENT_OR_FAIL;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::BUDGET;
use zerocopy::IntoBytes;

use super::residency_faults::Waiter;
use super::vidmm::allocations::Backing;
use super::vidmm::allocations::Spot;
use super::vidmm::vram::Place;
use crate::vgpu::control::request::Entries;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::budget::list_bytes;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::process::Hold;
use crate::vgpu::objects::process::MAX_WAITS;
use crate::vgpu::session::Session;

/// Bytes of an allocation that a process holds resident.
pub(in crate::vgpu) const HOLD_BYTES: u64 = 128;
/// Bytes of a paging operation, or a residency request, besides its list; and of what waits then until engines have let go.
pub(in crate::vgpu) const PAGING_BYTES: u64 = 512;

impl Session {
    fn named(&self, context: u32, resources: &[u32]) -> Result<Vec<AllocationId>, Refused> {
        resources.iter().map(|resource| self.attached_allocation(context, *resource)).collect()
    }

    /// MAKE_RESIDENT: answered when everything is where engines reach it, and held there.
    pub(in crate::vgpu) fn make_resident(&mut self, origin: Origin, list: &Entries<u32>) -> Outcome {
        (list.argument & !RESIDENT_OR_FAIL == 0).or(Status::InvalidParameter)?;
        let allocations = self.named(origin.context, &list.entries)?;
        let root = self.objects.device(origin.context)?.root;
        let listed: BTreeSet<AllocationId> = allocations.iter().copied().collect();
        let is_missing = |id: &AllocationId| {
            !matches!(self.allocations.spot(*id), Spot::Segment(..))
                && self.allocations.guest_segment(*id).is_none()
        };
        let missing: Vec<AllocationId> = listed.iter().copied().filter(is_missing).collect();
        // What the CPU sees, and guest RAM, is where it is.
        let is_local = |id: &&AllocationId| {
            self.allocations.get(**id).is_some_and(|allocation| match allocation.backing {
                Backing::Vram(place) => !matches!(place, Some(Place::Aperture(_))),
                Backing::Guest(_) => false,
            })
        };
        let video = self.allocations.memory();
        let local = video.length() - video.aperture_bytes();
        let wanted: u64 =
            listed.iter().filter(is_local).map(|id| self.allocations.size(*id)).fold(0, u64::saturating_add);
        let refuse = |why: &str| {
            let text = format!("{wanted} bytes are to be made resident: {why}");
            Refused { status: Status::OutOfResources, text }
        };
        if wanted > local {
            return Err(refuse("more than there is outside of the window"));
        }
        if list.argument & RESIDENT_OR_FAIL != 0 {
            let mut plan = self.plan(false);
            let mut movable = self.movable(false);
            let fits = missing.iter().all(|id| {
                let size = self.allocations.size(*id);
                plan.make_room(size, |candidate| !listed.contains(&candidate.id)).is_some()
                    || plan.compact(&mut movable, size, u64::MAX).is_some()
            });
            if !fits {
                return Err(refuse("there is no room, and none can be made"));
            }
        }
        (self.residency.waiter_count(origin.context) < MAX_WAITS).or(Status::OutOfResources)?;
        let charge = self.charge_list(origin.context, &allocations)?;
        let mut holds = BTreeMap::new();
        for id in &listed {
            if !self.objects.device(origin.context)?.holds.contains_key(id) {
                let charge = self.objects.charge(origin.context, Kind::Paging, HOLD_BYTES)?;
                holds.insert(*id, Hold { count: 0, charge });
            }
        }
        let origin = self.objects.park(origin)?;
        self.objects.device_mut(origin.context)?.holds.append(&mut holds);
        for id in &allocations {
            self.hold_resident(origin.context, *id)?;
        }
        self.residency.add_waiter(Waiter { origin, root, allocations, charge });
        self.serve_residency();
        Ok(Handled::Parked)
    }

    /// Charges a process for a list that waits, in one way or another.
    fn charge_list(&self, context: u32, allocations: &[AllocationId]) -> Result<Charge, Refused> {
        let bytes = list_bytes(allocations.len(), size_of::<AllocationId>()).saturating_add(PAGING_BYTES);
        self.objects.charge(context, Kind::Paging, bytes)
    }

    fn hold_resident(&mut self, context: u32, id: AllocationId) -> Result<(), Refused> {
        if let Some(hold) = self.objects.device_mut(context)?.holds.get_mut(&id) {
            hold.count += 1;
        }
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.holds += 1;
        }
        Ok(())
    }

    fn let_go(&mut self, context: u32, id: AllocationId) -> Result<(), Refused> {
        let holds = &mut self.objects.device_mut(context)?.holds;
        let Some(hold) = holds.get_mut(&id) else { return Ok(()) };
        hold.count -= 1;
        if hold.count == 0 {
            holds.remove(&id);
        }
        self.drop_holds(id, 1);
        Ok(())
    }

    /// So many holds of an allocation are no more.
    pub(in crate::vgpu) fn drop_holds(&mut self, id: AllocationId, count: u64) {
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.holds = allocation.holds.saturating_sub(count);
        }
        self.residency.look_again();
    }

    /// A MAKE_RESIDENT message has what it waited for.
    pub(in crate::vgpu) fn is_resident(&mut self, waiter: &Waiter) {
        let origin = waiter.origin;
        let paging = self.objects.device(origin.context).ok().filter(|device| device.root == waiter.root);
        match paging.map(|device| device.paging.done()) {
            Some(fence) => self.answer(origin, Ok(Paging { fence }.as_bytes().to_vec())),
            // A later device of the same process has not asked.
            None => self.objects.end_item(origin.context, origin.ring, origin.item),
        }
    }

    /// EVICT: nothing of it leaves before the kernel-mode buffers submitted before are done.
    pub(in crate::vgpu) fn evict(&mut self, origin: Origin, list: &Entries<u32>) -> Outcome {
        (list.argument & !EVICT_NOW == 0).or(Status::InvalidParameter)?;
        (!self.has_too_much_pending()).or(Status::OutOfResources)?;
        let allocations = self.named(origin.context, &list.entries)?;
        let charge = self.charge_list(origin.context, &allocations)?;
        for id in &allocations {
            self.let_go(origin.context, *id)?;
        }
        let is_now = list.argument & EVICT_NOW != 0;
        let leaving = if is_now { allocations } else { Vec::new() };
        let fence = self.issue_paging(origin.context, vec![Change::Evict(leaving)], Some(charge))?;
        Ok(Handled::with(&Paging { fence }))
    }

    /// SET_PRIORITY.
    pub(in crate::vgpu) fn set_priority(&mut self, origin: Origin, list: &Entries<u32>) -> Outcome {
        let known = memory::PRIORITY_MINIMUM..=memory::PRIORITY_MAXIMUM;
        known.contains(&list.argument).or(Status::InvalidParameter)?;
        for id in self.named(origin.context, &list.entries)? {
            if let Some(allocation) = self.allocations.get_mut(id) {
                allocation.priority = list.argument;
            }
        }
        Ok(Handled::done())
    }

    /// Tells every process how much the VM could have, where that has changed.
    pub(in crate::vgpu) fn publish_budget(&mut self) {
        let budget = self.config.account.budget();
        let could = budget.committed.saturating_add(budget.available);
        if std::mem::replace(&mut self.residency.budget, could) != could {
            for context in self.objects.processes.keys() {
                self.store_page_word(*context, BUDGET, could);
            }
        }
    }

    /// How the memory of this vGPU stands.
    pub(in crate::vgpu) fn memory_info(&self) -> MemoryInfo {
        let (quota, budget) = (self.config.account.quota(), self.config.account.budget());
        let video = self.allocations.memory();
        let is_held = |allocation: &super::vidmm::allocations::Allocation| {
            allocation.holds > 0 && matches!(allocation.backing, Backing::Vram(_))
        };
        let held = self.allocations.iter().filter(|(_, allocation)| is_held(allocation));
        MemoryInfo {
            guaranteed: quota.min,
            limit: quota.max,
            committed: budget.committed,
            available: budget.available,
            local: video.length() - video.aperture_bytes(),
            local_free: video.local().free_bytes(),
            local_longest: video.local().longest(),
            visible: video.aperture_bytes(),
            visible_free: video.aperture_free(),
            evicted: video.evicted_bytes(),
            held: held.map(|(_, allocation)| allocation.size).sum(),
            evictions: self.counters.evictions.load(Ordering::Relaxed),
            restores: self.counters.restores.load(Ordering::Relaxed),
            residency_faults: self.counters.residency_faults.load(Ordering::Relaxed),
        }
    }
}

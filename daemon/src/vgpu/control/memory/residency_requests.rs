//! MAKE_RESIDENT and EVICT.

use campanile_protocol::control::memory::EVICT_NOW;
use campanile_protocol::control::memory::RESIDENT_OR_FAIL;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::status::Status;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use zerocopy::IntoBytes;

use crate::ids::GuestProcess;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::memory::residency_faults::Waiter;
use crate::vgpu::memory::residency_requests::HOLD_BYTES;
use crate::vgpu::memory::residency_requests::PAGING_BYTES;
use crate::vgpu::memory::vidmm::allocations::Backing;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::budget::list_bytes;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Entries;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::process::Hold;
use crate::vgpu::objects::process::MAX_WAITS;

impl Pager<'_> {
    /// MAKE_RESIDENT: answered when everything is where engines reach it, and held there.
    pub(in crate::vgpu) fn make_resident(&mut self, origin: Origin, list: &Entries<u32>) -> Outcome {
        (list.argument & !RESIDENT_OR_FAIL == 0).or(Status::InvalidParameter)?;
        let allocations = self.vm.memory.named(&self.vm.objects, origin.context, &list.entries)?;
        let root = self.vm.objects.device(origin.context)?.root;
        let listed: BTreeSet<AllocationId> = allocations.iter().copied().collect();
        let is_missing = |id: &AllocationId| {
            !matches!(self.vm.memory.allocations.spot(*id), Spot::Segment(..))
                && self.vm.memory.allocations.guest_segment(*id).is_none()
        };
        let missing: Vec<AllocationId> = listed.iter().copied().filter(is_missing).collect();
        // What the CPU sees, and guest RAM, is where it is.
        let is_local = |id: &&AllocationId| {
            self.vm.memory.allocations.get(**id).is_some_and(|allocation| match allocation.backing {
                Backing::Vram(place) => !matches!(place, Some(Place::Aperture(_))),
                Backing::Guest(_) => false,
            })
        };
        let video = self.vm.memory.allocations.memory();
        let local = video.length() - video.aperture_bytes();
        let wanted: u64 = listed
            .iter()
            .filter(is_local)
            .map(|id| self.vm.memory.allocations.size(*id))
            .fold(0, u64::saturating_add);
        let refuse = |why: &str| {
            let text = format!("{wanted} bytes are to be made resident: {why}");
            Refused { status: Status::OutOfResources, text }
        };
        if wanted > local {
            return Err(refuse("more than there is outside of the window"));
        }
        if list.argument & RESIDENT_OR_FAIL != 0 {
            let mut plan = self.plan(false);
            let mut movable = self.vm.memory.allocations.movable(false);
            let fits = missing.iter().all(|id| {
                let size = self.vm.memory.allocations.size(*id);
                plan.make_room(size, |candidate| !listed.contains(&candidate.id)).is_some()
                    || plan.compact(&mut movable, size, u64::MAX).is_some()
            });
            if !fits {
                return Err(refuse("there is no room, and none can be made"));
            }
        }
        (self.vm.memory.residency.waiter_count(origin.context) < MAX_WAITS).or(Status::OutOfResources)?;
        let charge = self.charge_list(origin.context, &allocations)?;
        let mut holds = BTreeMap::new();
        for id in &listed {
            if !self.vm.objects.device(origin.context)?.holds.contains_key(id) {
                let charge = self.vm.objects.charge(origin.context, Kind::Paging, HOLD_BYTES)?;
                holds.insert(*id, Hold { count: 0, charge });
            }
        }
        let origin = self.vm.objects.park(origin)?;
        self.vm.objects.device_mut(origin.context)?.holds.append(&mut holds);
        for id in &allocations {
            self.vm.memory.hold_resident(&mut self.vm.objects, origin.context, *id)?;
        }
        self.vm.memory.residency.add_waiter(Waiter { origin, root, allocations, charge });
        self.serve_residency();
        Ok(Handled::Parked)
    }

    /// Charges a process for a list that waits, in one way or another.
    fn charge_list(&self, context: GuestProcess, allocations: &[AllocationId]) -> Result<Charge, Refused> {
        let bytes = list_bytes(allocations.len(), size_of::<AllocationId>()).saturating_add(PAGING_BYTES);
        self.vm.objects.charge(context, Kind::Paging, bytes)
    }

    /// A MAKE_RESIDENT message has what it waited for.
    pub(in crate::vgpu) fn is_resident(&mut self, waiter: &Waiter) {
        let origin = waiter.origin;
        let paging = self.vm.objects.device(origin.context).ok().filter(|device| device.root == waiter.root);
        match paging.map(|device| device.paging.done()) {
            Some(fence) => self.vm.answer(origin, Ok(Paging { fence }.as_bytes().to_vec())),
            // A later device of the same process has not asked.
            None => self.vm.objects.end_item(origin.context, origin.ring, origin.item),
        }
    }

    /// EVICT: nothing of it leaves before the kernel-mode buffers submitted before are done.
    pub(in crate::vgpu) fn evict(&mut self, origin: Origin, list: &Entries<u32>) -> Outcome {
        (list.argument & !EVICT_NOW == 0).or(Status::InvalidParameter)?;
        (!self.vm.engines.has_too_much_pending()).or(Status::OutOfResources)?;
        let allocations = self.vm.memory.named(&self.vm.objects, origin.context, &list.entries)?;
        let charge = self.charge_list(origin.context, &allocations)?;
        for id in &allocations {
            self.vm.memory.let_go(&mut self.vm.objects, origin.context, *id)?;
        }
        let is_now = list.argument & EVICT_NOW != 0;
        let leaving = if is_now { allocations } else { Vec::new() };
        let fence = self.issue_paging(origin.context, vec![Change::Evict(leaving)], Some(charge))?;
        Ok(Handled::with(&Paging { fence }))
    }
}

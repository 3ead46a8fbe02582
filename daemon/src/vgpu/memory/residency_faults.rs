//! What is wanted resident, for which process, and what was brought back for it: the state of [`super::residency`].

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Instant;

use campanile_host_gpu::memory::page_table::writer::Root;

use super::shown::Shown;
use super::vidmm::allocations::Allocations;
use crate::ids::GuestProcess;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::timeline::Token;

/// Which queue wants something: page index of its root table, and its number.
pub(in crate::vgpu) type Name = (u64, u64);

/// A queue that came to something that is not there.
#[derive(Debug, Clone, Copy)]
pub(in crate::vgpu) struct Demand {
    pub(in crate::vgpu) name: Name,
    pub(in crate::vgpu) token: u64,
}

/// Something that is to be brought back.
#[derive(Debug)]
pub(in crate::vgpu) struct Want {
    pub(in crate::vgpu) allocation: AllocationId,
    pub(in crate::vgpu) demand: Option<Demand>,
}

/// A MAKE_RESIDENT message that waits.
#[derive(Debug)]
pub struct Waiter {
    /// Where its answer goes.
    pub origin: Origin,
    /// The address space of its device.
    pub root: Root,
    /// What is to be there.
    pub allocations: Vec<AllocationId>,
    /// What was charged for it.
    pub charge: Charge,
}

/// What was brought back for a queue at one place of one buffer.
#[derive(Debug, Default)]
pub(in crate::vgpu) struct Served {
    pub(in crate::vgpu) token: u64,
    pub(in crate::vgpu) allocations: Vec<AllocationId>,
}

/// Residency of one session.
#[derive(Debug, Default)]
pub struct Residency {
    /// Counts decisions: what an engine uses, it uses in an epoch.
    pub epoch: u64,
    /// Where each allocation is in page tables.
    pub shown: Shown,
    /// Processes with paging operations that wait.
    pub paging: BTreeSet<GuestProcess>,
    /// MAP_BLOB commands for what is just being evicted.
    pub deferred: Vec<(u32, u64, Token)>,
    pub(in crate::vgpu) wants: Vec<Want>,
    /// What a device has brought back, and that is not noted yet.
    pub(in crate::vgpu) restored: Vec<AllocationId>,
    pub(in crate::vgpu) waiters: Vec<Waiter>,
    pub(in crate::vgpu) served: BTreeMap<Name, Served>,
    pub(in crate::vgpu) recent: Vec<(AllocationId, Demand, Instant)>,
    /// The queue that gets all that it needs before others take anything of it; and whose turn it was before.
    pub(in crate::vgpu) favoured: Option<Demand>,
    pub(in crate::vgpu) was_favoured: Option<Name>,
    /// Allocations that are on their way out of their place.
    pub(in crate::vgpu) leaving: usize,
    /// The budget as guests were last told.
    pub budget: u64,
    pub(in crate::vgpu) is_due: bool,
    /// When to look again, where only time is waited for.
    pub retry_at: Option<Instant>,
}

impl Residency {
    /// Something may be possible now that was not.
    pub fn look_again(&mut self) {
        self.is_due = true;
    }

    /// Nothing of an address space is wanted any more.
    pub fn forget_space(&mut self, root: Root) {
        self.served.retain(|(of, _), _| *of != root.0);
    }

    /// Takes the MAKE_RESIDENT messages of a device that wait.
    pub fn take_waiters(&mut self, context: GuestProcess) -> Vec<Waiter> {
        self.waiters.extract_if(.., |waiter| waiter.origin.context == context).collect()
    }

    /// A MAKE_RESIDENT message begins to wait.
    pub fn add_waiter(&mut self, waiter: Waiter) {
        for allocation in &waiter.allocations {
            self.want(*allocation, None);
        }
        self.waiters.push(waiter);
        self.is_due = true;
    }

    /// MAKE_RESIDENT messages of a device that wait.
    pub fn waiter_count(&self, context: GuestProcess) -> usize {
        self.waiters.iter().filter(|waiter| waiter.origin.context == context).count()
    }

    pub(in crate::vgpu) fn want(&mut self, allocation: AllocationId, demand: Option<Demand>) {
        match self.wants.iter_mut().find(|want| want.allocation == allocation) {
            Some(want) => want.demand = want.demand.or(demand),
            None => self.wants.push(Want { allocation, demand }),
        }
        self.is_due = true;
    }

    /// Whether a queue still needs time with what was brought back for it.
    pub(in crate::vgpu) fn is_settling(&self, id: AllocationId, by: Option<Demand>) -> bool {
        self.recent.iter().any(|(recent, demand, _)| {
            let has_got_on = by.is_some_and(|by| by.name == demand.name && by.token != demand.token);
            *recent == id && !has_got_on
        })
    }

    /// Sees to it that one queue is favoured where some want something; to be called with what is recent up to date.
    pub(in crate::vgpu) fn favour(&mut self) {
        if let Some(favoured) = self.favoured {
            let is_it = |demand: &Demand| demand.name == favoured.name && demand.token == favoured.token;
            let wants = self.wants.iter().filter_map(|want| want.demand.as_ref()).any(is_it);
            if wants || self.recent.iter().any(|(_, demand, _)| is_it(demand)) {
                return;
            }
            self.was_favoured = Some(favoured.name);
        }
        let demands = || self.wants.iter().filter_map(|want| want.demand);
        let other = demands().find(|demand| Some(demand.name) != self.was_favoured);
        self.favoured = other.or_else(|| demands().next());
    }

    pub(in crate::vgpu) fn is_favoured(&self, by: Option<Demand>) -> bool {
        self.favoured.is_none_or(|favoured| by.is_some_and(|by| by.name == favoured.name))
    }

    /// Whether it was brought back for this very place.
    pub(in crate::vgpu) fn serves(&self, id: AllocationId, by: Option<Demand>) -> bool {
        let Some(demand) = by else { return false };
        let served = self.served.get(&demand.name).filter(|served| served.token == demand.token);
        served.is_some_and(|served| served.allocations.contains(&id))
    }

    /// Bytes that a queue needs at the place where it is, as far as it has said so.
    pub(in crate::vgpu) fn needed_with(&self, allocations: &Allocations, want: &Want) -> u64 {
        let by = want.demand;
        let served = by.and_then(|by| self.served.get(&by.name).filter(|it| it.token == by.token));
        let others = served.into_iter().flat_map(|served| &served.allocations);
        // Save areas have their own region.
        let is_area = |id: AllocationId| allocations.get(id).is_some_and(|it| it.is_area);
        let others = others.filter(|id| **id != want.allocation && !is_area(**id));
        let others = others.map(|id| allocations.size(*id));
        others.fold(allocations.size(want.allocation), u64::saturating_add)
    }
}

#[cfg(test)]
mod tests;

//! Residency requests, priorities, and what a guest is told of its memory.

use campanile_protocol::control::memory;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::BUDGET;

use super::room::Memory;
use crate::ids::GuestProcess;
use crate::vgpu::memory::vidmm::quota::Account;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Entries;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::processes::Objects;

/// Bytes of an allocation that a process holds resident.
pub(in crate::vgpu) const HOLD_BYTES: u64 = 128;
/// Bytes of a paging operation, or a residency request, besides its list; and of what waits then until engines have let go.
pub(in crate::vgpu) const PAGING_BYTES: u64 = 512;

impl Memory {
    pub(in crate::vgpu) fn named(
        &self,
        objects: &Objects,
        context: GuestProcess,
        resources: &[u32],
    ) -> Result<Vec<AllocationId>, Refused> {
        resources.iter().map(|resource| self.attached_allocation(objects, context, *resource)).collect()
    }

    /// A process holds an allocation resident once more.
    pub(in crate::vgpu) fn hold_resident(
        &mut self,
        objects: &mut Objects,
        context: GuestProcess,
        id: AllocationId,
    ) -> Result<(), Refused> {
        if let Some(hold) = objects.device_mut(context)?.holds.get_mut(&id) {
            hold.count += 1;
        }
        if let Some(allocation) = self.allocations.get_mut(id) {
            allocation.holds += 1;
        }
        Ok(())
    }

    /// A process holds an allocation resident once less; what it did not hold it does not let go.
    pub(in crate::vgpu) fn let_go(
        &mut self,
        objects: &mut Objects,
        context: GuestProcess,
        id: AllocationId,
    ) -> Result<(), Refused> {
        let holds = &mut objects.device_mut(context)?.holds;
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

    /// SET_PRIORITY.
    pub(in crate::vgpu) fn set_priority(
        &mut self,
        objects: &Objects,
        origin: Origin,
        list: &Entries<u32>,
    ) -> Outcome {
        let known = memory::PRIORITY_MINIMUM..=memory::PRIORITY_MAXIMUM;
        known.contains(&list.argument).or(Status::InvalidParameter)?;
        for id in self.named(objects, origin.context, &list.entries)? {
            if let Some(allocation) = self.allocations.get_mut(id) {
                allocation.priority = list.argument;
            }
        }
        Ok(Handled::done())
    }

    /// Tells every process how much the VM could have, where that has changed.
    pub(in crate::vgpu) fn publish_budget(&mut self, objects: &Objects, account: &Account) {
        let budget = account.budget();
        let could = budget.committed.saturating_add(budget.available);
        if std::mem::replace(&mut self.residency.budget, could) != could {
            for context in objects.processes.keys() {
                self.store_page_word(objects, *context, BUDGET, could);
            }
        }
    }
}

//! What waits until every engine has let go, and what is done then.
//!
//! It stands below whatever puts devices in error or replaces engines: an engine that is found to be no good is noted.

use crate::ids::GuestProcess;
use crate::vgpu::control::guest_pages::GuestPages;
use crate::vgpu::doorbells::drain::Drain;
use crate::vgpu::doorbells::room::Removed;
use crate::vgpu::doorbells::slots::Holder;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::device_moves::Then;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::process::Device;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::waits::Waits;
use crate::vgpu::vm::Vm;
use campanile_host_gpu::clock;
use campanile_host_gpu::memory::page_table::writer::Root;

/// What waits until engines have let go, and what is done then.
#[derive(Debug)]
pub struct Deferred<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> Deferred<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl Deferred<'_> {
    /// Does `action` once every engine has passed `barrier`; now, if they have.
    pub(in crate::vgpu) fn after(&mut self, barrier: Barrier, action: Action) {
        self.after_charged(barrier, action, Vec::new());
    }

    /// As [`Self::after`]; what was charged is held until then.
    pub(in crate::vgpu) fn after_charged(&mut self, barrier: Barrier, action: Action, charges: Vec<Charge>) {
        if self.vm.engines.defer(barrier, action, charges) {
            self.run_pending();
        }
    }

    /// Does what is due, oldest first.
    pub(in crate::vgpu) fn run_pending(&mut self) {
        let (due, waiting) = self.vm.engines.take_pending();
        for action in due {
            self.act(action);
        }
        self.vm.engines.put_back(waiting);
    }

    pub(in crate::vgpu) fn act(&mut self, action: Action) {
        let copy = match &action {
            Action::Relocate { allocation, target } | Action::Move { allocation, target, .. } => {
                self.vm.memory.allocations.device_copy(*allocation, *target)
            }
            _ => None,
        };
        match copy {
            Some(copy) => self.vm.engines.moves.push(copy, Then::Arrived(action)),
            None => self.carry_out(action),
        }
    }

    /// Does an action whose memory, if it moves, the device has copied or none has to.
    pub(in crate::vgpu) fn carry_out(&mut self, action: Action) {
        match action {
            Action::Release(allocations) => {
                for allocation in allocations {
                    GuestPages::of(self.vm).release_allocation(allocation);
                }
            }
            Action::FreeFences(indices) => Waits::of(self.vm).free_fences(&indices),
            Action::FreeAreas(areas) => self.areas_are_free(areas),
            Action::DestroyRoot(root) => self.vm.memory.tables.destroy_root(root),
            Action::PagingFence { context, root, value } => self.paging_is_done(context, root, value),
            Action::ShowSegment(allocation, segment) => {
                GuestPages::of(self.vm).segment_is_there(allocation, segment)
            }
            Action::Relocate { allocation, target } => self.finish_relocation(allocation, target),
            Action::Restore { allocation, target } => self.finish_restore(allocation, target),
            Action::Move { allocation, target, resource, token } => {
                self.finish_move(allocation, target, resource, token)
            }
            Action::Reply { origin, root } => {
                if self.vm.objects.device(origin.context).is_ok_and(|device| device.root == root) {
                    self.vm.answer(origin, Ok(Vec::new()));
                } else {
                    self.vm.objects.end_item(origin.context, origin.ring, origin.item);
                }
            }
            Action::Answer(token) => self.vm.objects.due.push((token, Ok(()))),
            Action::Return { context, root } => self.has_returned(context, root),
        }
    }

    /// Closes what a device that ends has open; its waits were answered. Fences that no other device has go when
    /// engines have passed `barrier`.
    pub(in crate::vgpu) fn close_fences_of(&mut self, device: &Device, barrier: Barrier) {
        let last = self.vm.fences.close_all(device);
        if !last.is_empty() {
            self.after(barrier, Action::FreeFences(last));
        }
    }

    /// Ends the doorbells that have nothing more to wait for.
    pub(in crate::vgpu) fn look_at_drains(&mut self) {
        let over = self.vm.doorbells.take_drained(&self.vm.objects, &self.vm.engines, clock::now());
        for Drain { holder, origin, .. } in over {
            self.remove_doorbell(origin, holder);
        }
    }

    /// Forgets a doorbell that is disconnected. Answered when engines have let go of the ring: the guest may use that memory
    /// for something else then.
    pub(in crate::vgpu) fn remove_doorbell(&mut self, origin: Origin, holder: Holder) {
        let Some(Removed { root, memory }) = self.vm.doorbells().1.remove(holder) else {
            // Gone with its device.
            return self.vm.objects.end_item(origin.context, origin.ring, origin.item);
        };
        let barrier = Barrier::raise(&mut self.vm.engines);
        self.after(barrier, Action::Release(memory.to_vec()));
        self.after(barrier, Action::Reply { origin, root });
    }

    /// A process has come back, and engines know all of its pages: it runs.
    pub(in crate::vgpu) fn has_returned(&mut self, own: GuestProcess, root: Root) {
        if !self.vm.objects.device(own).is_ok_and(|device| device.root == root) {
            return;
        }
        for (context, handle) in self.vm.objects.all_contexts().into_iter().filter(|(of, _)| *of == own) {
            Submission::of(self.vm).unhold(context, handle, |held| held.by_absence = false);
        }
    }
}

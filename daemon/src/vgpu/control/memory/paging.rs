//! Paging operations, carried out in order with kernel-mode buffers: see [`crate::vgpu::memory::paging`].

use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::device_page;
use log::Level;

use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::mapping::Mapped;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::paging_queue::PagingOperation;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::vm::Vm;

/// Paging: mappings, what is resident, and what makes room for it.
#[derive(Debug)]
pub struct Pager<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> Pager<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl Pager<'_> {
    /// A new paging operation of a process; the value of the paging fence that says that it is done.
    pub(in crate::vgpu) fn issue_paging(
        &mut self,
        context: GuestProcess,
        changes: Vec<Change>,
        charge: Option<Charge>,
    ) -> Result<u64, Refused> {
        let paging = &mut self.vm.objects.device_mut(context)?.paging;
        let value = paging.issued + 1;
        paging.push(PagingOperation { value, changes, charge });
        self.vm.memory.residency.paging.insert(context);
        self.run_paging(context);
        Ok(value)
    }

    /// Carries out what waits for nothing any more, in every process.
    pub(in crate::vgpu) fn run_all_paging(&mut self) {
        let waiting: Vec<GuestProcess> = self.vm.memory.residency.paging.iter().copied().collect();
        waiting.into_iter().for_each(|context| self.run_paging(context));
    }

    fn run_paging(&mut self, context: GuestProcess) {
        let mut has_changed = false;
        while let Ok(device) = self.vm.objects.device(context) {
            let Some(first) = device.paging.waiting.front() else { break };
            if device.is_active() && self.has_buffers_before(context, first.value) {
                break;
            }
            let root = device.root;
            let first = self.vm.objects.device_mut(context).ok().and_then(|device| device.paging.pop());
            let Some(operation) = first else { break };
            self.apply(context, root, operation);
            has_changed = true;
        }
        if self.vm.objects.device(context).map_or(true, |device| device.paging.waiting.is_empty()) {
            self.vm.memory.residency.paging.remove(&context);
        }
        if !has_changed {
            return;
        }
        let handles: Vec<_> = self
            .vm
            .objects
            .device(context)
            .into_iter()
            .flat_map(|device| device.contexts.handles())
            .collect();
        handles.into_iter().for_each(|handle| Submission::of(self.vm).list_context(context, handle));
        self.vm.engines.addresses().for_each(|at| Submission::of(self.vm).fill_hw_queue(at));
    }

    /// Whether a kernel-mode buffer of a process is not done that was submitted before operation `value`.
    fn has_buffers_before(&self, context: GuestProcess, value: u64) -> bool {
        let Ok(device) = self.vm.objects.device(context) else { return false };
        let queued = device
            .contexts
            .iter()
            .any(|(_, context)| context.software_queue.front().is_some_and(|buffer| buffer.paging < value));
        let mut flights = self.vm.engines.iter().flat_map(|slot| &slot.in_flight);
        queued
            || flights
                .any(|flight| flight.owner.is_some_and(|(of, buffer)| of == context && buffer.paging < value))
    }

    fn apply(&mut self, context: GuestProcess, root: Root, operation: PagingOperation) {
        let PagingOperation { value, changes, charge } = operation;
        let mut charges: Vec<Charge> = charge.into_iter().collect();
        let mut freed = Vec::new();
        for change in changes {
            match change {
                Change::Map(va, mapping) => {
                    if let Err(refused) = self.vm.memory.show_to_gpu(root, va, mapping) {
                        // All was checked when the message came.
                        self.vm.journal.line(Level::Error, format_args!("a late mapping: {}", refused.text));
                        Devices::of(self.vm).put_device_in_error(context, device_page::DEVICE_STOPPED);
                    }
                }
                Change::Unmap(va, Mapped { mapping, charge }) => {
                    self.vm.memory.hide_from_gpu(root, va, &mapping, &mut self.vm.journal);
                    freed.push(mapping.allocation);
                    charges.push(charge);
                }
                Change::Evict(allocations) => {
                    for allocation in allocations {
                        if self.vm.memory.allocations.can_leave(allocation) {
                            Deferred::of(self.vm).start_eviction(allocation);
                        }
                    }
                }
            }
        }
        let barrier = Barrier::raise(&mut self.vm.engines);
        if let Ok(device) = self.vm.objects.device_mut(context) {
            device.paging.applied = value;
        }
        Deferred::of(self.vm).after_charged(barrier, Action::PagingFence { context, root, value }, charges);
        if !freed.is_empty() {
            Deferred::of(self.vm).after(barrier, Action::Release(freed));
        }
    }
}

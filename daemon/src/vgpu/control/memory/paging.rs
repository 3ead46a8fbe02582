//! Paging operations, carried out in order with kernel-mode buffers: see [`crate::vgpu::memory::paging`].

use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::device_page;
use log::Level;

use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::mapping::Mapped;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::paging_queue::PagingOperation;
use crate::vgpu::session::Session;

impl Session {
    /// A new paging operation of a process; the value of the paging fence that says that it is done.
    pub(in crate::vgpu) fn issue_paging(
        &mut self,
        context: u32,
        changes: Vec<Change>,
        charge: Option<Charge>,
    ) -> Result<u64, Refused> {
        let paging = &mut self.rooms.objects.device_mut(context)?.paging;
        let value = paging.issued + 1;
        paging.push(PagingOperation { value, changes, charge });
        self.rooms.memory.residency.paging.insert(context);
        self.run_paging(context);
        Ok(value)
    }

    /// Carries out what waits for nothing any more, in every process.
    pub(in crate::vgpu) fn run_all_paging(&mut self) {
        let waiting: Vec<u32> = self.rooms.memory.residency.paging.iter().copied().collect();
        waiting.into_iter().for_each(|context| self.run_paging(context));
    }

    fn run_paging(&mut self, context: u32) {
        let mut has_changed = false;
        while let Ok(device) = self.rooms.objects.device(context) {
            let Some(first) = device.paging.waiting.front() else { break };
            if device.is_active() && self.has_buffers_before(context, first.value) {
                break;
            }
            let root = device.root;
            let first = self.rooms.objects.device_mut(context).ok().and_then(|device| device.paging.pop());
            let Some(operation) = first else { break };
            self.apply(context, root, operation);
            has_changed = true;
        }
        if self.rooms.objects.device(context).map_or(true, |device| device.paging.waiting.is_empty()) {
            self.rooms.memory.residency.paging.remove(&context);
        }
        if !has_changed {
            return;
        }
        let handles: Vec<_> = self
            .rooms
            .objects
            .device(context)
            .into_iter()
            .flat_map(|device| device.contexts.handles())
            .collect();
        handles.into_iter().for_each(|handle| self.list_context(context, handle));
        self.addresses().for_each(|at| self.fill_hw_queue(at));
    }

    /// Whether a kernel-mode buffer of a process is not done that was submitted before operation `value`.
    fn has_buffers_before(&self, context: u32, value: u64) -> bool {
        let Ok(device) = self.rooms.objects.device(context) else { return false };
        let queued = device
            .contexts
            .iter()
            .any(|(_, context)| context.software_queue.front().is_some_and(|buffer| buffer.paging < value));
        let mut flights = self.rooms.engines.iter().flat_map(|slot| &slot.in_flight);
        queued
            || flights
                .any(|flight| flight.owner.is_some_and(|(of, buffer)| of == context && buffer.paging < value))
    }

    fn apply(&mut self, context: u32, root: Root, operation: PagingOperation) {
        let PagingOperation { value, changes, charge } = operation;
        let mut charges: Vec<Charge> = charge.into_iter().collect();
        let mut freed = Vec::new();
        for change in changes {
            match change {
                Change::Map(va, mapping) => {
                    if let Err(refused) = self.rooms.memory.show_to_gpu(root, va, mapping) {
                        // All was checked when the message came.
                        self.rooms
                            .journal
                            .line(Level::Error, format_args!("a late mapping: {}", refused.text));
                        self.put_device_in_error(context, device_page::DEVICE_STOPPED);
                    }
                }
                Change::Unmap(va, Mapped { mapping, charge }) => {
                    self.rooms.memory.hide_from_gpu(root, va, &mapping, &mut self.rooms.journal);
                    freed.push(mapping.allocation);
                    charges.push(charge);
                }
                Change::Evict(allocations) => {
                    for allocation in allocations {
                        if self.rooms.memory.allocations.can_leave(allocation) {
                            self.start_eviction(allocation);
                        }
                    }
                }
            }
        }
        let barrier = Barrier::raise(&mut self.rooms.engines);
        if let Ok(device) = self.rooms.objects.device_mut(context) {
            device.paging.applied = value;
        }
        self.after_charged(barrier, Action::PagingFence { context, root, value }, charges);
        if !freed.is_empty() {
            self.after(barrier, Action::Release(freed));
        }
    }

    /// An operation is done with all engines.
    pub(in crate::vgpu) fn paging_is_done(&mut self, context: u32, root: Root, value: u64) {
        let Some(device) = self.rooms.objects.device_mut(context).ok().filter(|device| device.root == root)
        else {
            return;
        };
        device.paging.done = value;
        self.rooms.memory.store_page_word(&self.rooms.objects, context, device_page::PAGING_FENCE, value);
    }
}

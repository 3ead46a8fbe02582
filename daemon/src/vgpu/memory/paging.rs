//! Paging operations: changes of an address space, in order with the work around them (MCDM-39, MCDM-40).
//!
//! ```text
//!   SUBMIT a ─ UNMAP ─ SUBMIT b        a runs ──▶ done ──▶ page tables change ──▶ b runs
//!                                                              └─ engines let go ──▶ paging fence
//! ```
//!
//! The operations of a process happen in the order in which they came: each after the kernel-mode buffers that were
//! submitted before it are done, and before those that came after it begin. Mapping what nothing was mapped at does not
//! wait: no buffer before it can use that address and live. Of user-mode queues the daemon sees nothing; there the guest
//! orders by fences: an unmap goes out when the queue's progress fence is there, and what needs a mapping is rung when
//! the paging fence is.

use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::device_page;
use log::Level;

use super::vidmm::allocations::Spot;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::paging_queue::Change;
use crate::vgpu::objects::paging_queue::PagingOperation;
use crate::vgpu::objects::process::GpuMapping;
use crate::vgpu::objects::process::Mapped;
use crate::vgpu::session::Session;

impl Session {
    /// A new paging operation of a process; the value of the paging fence that says that it is done.
    pub(in crate::vgpu) fn issue_paging(
        &mut self,
        context: u32,
        changes: Vec<Change>,
        charge: Option<Charge>,
    ) -> Result<u64, Refused> {
        let paging = &mut self.objects.device_mut(context)?.paging;
        let value = paging.issued + 1;
        paging.push(PagingOperation { value, changes, charge });
        self.residency.paging.insert(context);
        self.run_paging(context);
        Ok(value)
    }

    /// Carries out what waits for nothing any more, in every process.
    pub(in crate::vgpu) fn run_all_paging(&mut self) {
        let waiting: Vec<u32> = self.residency.paging.iter().copied().collect();
        waiting.into_iter().for_each(|context| self.run_paging(context));
    }

    fn run_paging(&mut self, context: u32) {
        let mut has_changed = false;
        while let Ok(device) = self.objects.device(context) {
            let Some(first) = device.paging.waiting.front() else { break };
            if device.is_active() && self.has_buffers_before(context, first.value) {
                break;
            }
            let root = device.root;
            let first = self.objects.device_mut(context).ok().and_then(|device| device.paging.pop());
            let Some(operation) = first else { break };
            self.apply(context, root, operation);
            has_changed = true;
        }
        if self.objects.device(context).map_or(true, |device| device.paging.waiting.is_empty()) {
            self.residency.paging.remove(&context);
        }
        if !has_changed {
            return;
        }
        let handles: Vec<_> =
            self.objects.device(context).into_iter().flat_map(|device| device.contexts.handles()).collect();
        handles.into_iter().for_each(|handle| self.list_context(context, handle));
        self.addresses().for_each(|at| self.fill_hw_queue(at));
    }

    /// Whether a kernel-mode buffer of a process is not done that was submitted before operation `value`.
    fn has_buffers_before(&self, context: u32, value: u64) -> bool {
        let Ok(device) = self.objects.device(context) else { return false };
        let queued = device
            .contexts
            .iter()
            .any(|(_, context)| context.software_queue.front().is_some_and(|buffer| buffer.paging < value));
        let mut flights = self.engines.iter().flat_map(|slot| &slot.in_flight);
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
                    if let Err(refused) = self.show_to_gpu(root, va, mapping) {
                        // All was checked when the message came.
                        self.journal.line(Level::Error, format_args!("a late mapping: {}", refused.text));
                        self.put_device_in_error(context, device_page::DEVICE_STOPPED);
                    }
                }
                Change::Unmap(va, Mapped { mapping, charge }) => {
                    self.hide_from_gpu(root, va, &mapping);
                    freed.push(mapping.allocation);
                    charges.push(charge);
                }
                Change::Evict(allocations) => {
                    for allocation in allocations {
                        if self.can_leave(allocation) {
                            self.start_eviction(allocation);
                        }
                    }
                }
            }
        }
        let barrier = Barrier::raise(&mut self.engines);
        if let Ok(device) = self.objects.device_mut(context) {
            device.paging.applied = value;
        }
        self.after_charged(barrier, Action::PagingFence { context, root, value }, charges);
        if !freed.is_empty() {
            self.after(barrier, Action::Release(freed));
        }
    }

    /// An operation is done with all engines.
    pub(in crate::vgpu) fn paging_is_done(&mut self, context: u32, root: Root, value: u64) {
        let Some(device) = self.objects.device_mut(context).ok().filter(|device| device.root == root) else {
            return;
        };
        device.paging.done = value;
        self.store_page_word(context, device_page::PAGING_FENCE, value);
    }

    /// Writes a mapping into the page tables, and remembers it.
    pub(in crate::vgpu) fn show_to_gpu(
        &mut self,
        root: Root,
        va: u64,
        mapping: GpuMapping,
    ) -> Result<(), Refused> {
        let epoch = self.residency.epoch;
        match self.allocations.locate(mapping.allocation, epoch) {
            Spot::Segment(segment, start) => {
                self.tables.map(root, va, segment, start + mapping.offset, mapping.size, mapping.writable)
            }
            Spot::Moving => self.tables.map_moving(root, va, mapping.size),
            Spot::Evicted => self.tables.map_evicted(root, va, mapping.size),
        }?;
        self.residency.shown.insert(root, va, mapping);
        Ok(())
    }

    pub(in crate::vgpu) fn hide_from_gpu(&mut self, root: Root, va: u64, mapping: &GpuMapping) {
        if let Err(error) = self.tables.unmap(root, va, mapping.size) {
            self.journal.line(Level::Error, format_args!("a mapping of ours could not be undone: {error}"));
        }
        self.residency.shown.remove(mapping.allocation, root, va);
    }
}

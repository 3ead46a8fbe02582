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

use std::collections::VecDeque;

use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::device_page;
use log::Level;

use super::changing::Changing;
#[cfg(test)]
use super::changing::STEPS;
use super::vidmm::allocations::AllocationId;
use super::vidmm::allocations::Spot;
use crate::vgpu::control::reply::Refused;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::process::GpuMapping;
use crate::vgpu::objects::process::Mapped;
use crate::vgpu::session::Session;

/// One change.
#[derive(Debug)]
pub enum Change {
    /// Map this at an address.
    Map(u64, GpuMapping),
    /// Unmap this from an address, and let its memory go.
    Unmap(u64, Mapped),
    /// Move what is not held out of the way.
    Evict(Vec<AllocationId>),
}

/// Changes that happen together.
#[derive(Debug)]
pub struct PagingOperation {
    pub(in crate::vgpu) value: u64,
    pub(in crate::vgpu) changes: Vec<Change>,
    /// What was charged for it, where that is not with its mappings.
    pub(in crate::vgpu) charge: Option<Charge>,
}

/// The paging operations of a process.
#[derive(Debug, Default)]
pub struct Paging {
    waiting: VecDeque<PagingOperation>,
    /// What those in `waiting` change.
    changing: Changing,
    pub(in crate::vgpu) issued: u64,
    pub(in crate::vgpu) applied: u64,
    pub(in crate::vgpu) done: u64,
}

impl Paging {
    /// After operation `applied`, with these behind it, in order.
    pub(in crate::vgpu) fn resume(applied: u64, waiting: impl IntoIterator<Item = PagingOperation>) -> Self {
        let mut paging = Self { issued: applied, applied, done: applied, ..Self::default() };
        waiting.into_iter().for_each(|operation| paging.push(operation));
        paging
    }

    /// One more, the last one issued.
    fn push(&mut self, operation: PagingOperation) {
        for change in &operation.changes {
            match change {
                Change::Map(va, mapping) | Change::Unmap(va, Mapped { mapping, .. }) => {
                    self.changing.add(*va, mapping.size, operation.value);
                }
                Change::Evict(_) => {}
            }
        }
        self.issued = operation.value;
        self.waiting.push_back(operation);
    }

    /// Takes the first out, which happens now.
    fn pop(&mut self) -> Option<PagingOperation> {
        let operation = self.waiting.pop_front()?;
        self.changing.settle(operation.value);
        Some(operation)
    }

    /// Those that wait, in order.
    pub(in crate::vgpu) fn waiting(&self) -> impl ExactSizeIterator<Item = &PagingOperation> {
        self.waiting.iter()
    }

    /// The last operation that a buffer submitted now comes after.
    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// Whether what was submitted after operation `issued` may run.
    pub fn allows(&self, issued: u64) -> bool {
        self.applied >= issued
    }

    /// The value of the paging fence.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Whether something that waits concerns the range.
    pub fn waits_for(&self, va: u64, size: u64) -> bool {
        self.changing.meets(va, size)
    }

    fn changes(&self) -> impl Iterator<Item = &Change> {
        let changes = self.waiting.iter().flat_map(|operation| &operation.changes);
        #[cfg(test)]
        let changes = changes.inspect(|_| STEPS.set(STEPS.get() + 1));
        changes
    }

    /// What was charged for what waits.
    pub(in crate::vgpu) fn into_charges(self) -> impl Iterator<Item = Charge> {
        self.waiting.into_iter().flat_map(|operation| {
            let unmapped = operation.changes.into_iter().filter_map(|change| match change {
                Change::Unmap(_, mapped) => Some(mapped.charge),
                Change::Map(..) | Change::Evict(_) => None,
            });
            operation.charge.into_iter().chain(unmapped)
        })
    }

    /// Memory that unmaps that never came to it still hold.
    pub fn held(&self) -> impl Iterator<Item = AllocationId> {
        self.changes().filter_map(|change| match change {
            Change::Unmap(_, mapped) => Some(mapped.allocation),
            Change::Map(..) | Change::Evict(_) => None,
        })
    }
}

impl Device {
    /// Whether a range of its address space is taken, counting what will be mapped there.
    pub fn is_taken(&self, va: u64, size: u64) -> bool {
        let end = va.saturating_add(size);
        let last = self.mappings.range(..end).next_back();
        last.is_some_and(|(at, mapping)| at.saturating_add(mapping.size) > va)
            || self
                .fences
                .iter()
                .any(|(_, fence)| fence.va < end && va < fence.va + campanile_protocol::PAGE_SIZE)
    }
}

impl Session {
    /// A new paging operation of a process; the value of the paging fence that says that it is done.
    pub(in crate::vgpu) fn issue_paging(
        &mut self,
        context: u32,
        changes: Vec<Change>,
        charge: Option<Charge>,
    ) -> Result<u64, Refused> {
        let paging = &mut self.device_mut(context)?.paging;
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
        while let Ok(device) = self.device(context) {
            let Some(first) = device.paging.waiting.front() else { break };
            if device.is_active() && self.has_buffers_before(context, first.value) {
                break;
            }
            let root = device.root;
            let first = self.device_mut(context).ok().and_then(|device| device.paging.pop());
            let Some(operation) = first else { break };
            self.apply(context, root, operation);
            has_changed = true;
        }
        if self.device(context).map_or(true, |device| device.paging.waiting.is_empty()) {
            self.residency.paging.remove(&context);
        }
        if !has_changed {
            return;
        }
        let handles: Vec<_> =
            self.device(context).into_iter().flat_map(|device| device.contexts.handles()).collect();
        handles.into_iter().for_each(|handle| self.list_context(context, handle));
        self.addresses().for_each(|at| self.fill_hw_queue(at));
    }

    /// Whether a kernel-mode buffer of a process is not done that was submitted before operation `value`.
    fn has_buffers_before(&self, context: u32, value: u64) -> bool {
        let Ok(device) = self.device(context) else { return false };
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
        if let Ok(device) = self.device_mut(context) {
            device.paging.applied = value;
        }
        self.after_charged(barrier, Action::PagingFence { context, root, value }, charges);
        if !freed.is_empty() {
            self.after(barrier, Action::Release(freed));
        }
    }

    /// An operation is done with all engines.
    pub(in crate::vgpu) fn paging_is_done(&mut self, context: u32, root: Root, value: u64) {
        let Some(device) = self.device_mut(context).ok().filter(|device| device.root == root) else { return };
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

//! The paging operations of one guest process that wait, in the order in which they were issued.

use std::collections::VecDeque;

use super::budget::Charge;
use super::changing::Changing;
#[cfg(test)]
use super::changing::STEPS;
use super::ids::AllocationId;
use super::mapping::GpuMapping;
use super::mapping::Mapped;

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
    pub(in crate::vgpu) waiting: VecDeque<PagingOperation>,
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
    pub(in crate::vgpu) fn push(&mut self, operation: PagingOperation) {
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
    pub(in crate::vgpu) fn pop(&mut self) -> Option<PagingOperation> {
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

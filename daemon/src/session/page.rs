//! The device page, from the daemon.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::mapping::Mapping;
use vm_memory::VolatileSlice;

use super::state::Session;
use crate::vidmm::allocations::AllocationId;
use crate::vidmm::allocations::Allocations;

/// The device page of a guest process.
#[derive(Debug)]
pub struct DevicePage {
    /// Its allocation; one reference.
    pub allocation: AllocationId,
    /// Where in the allocation it starts, bytes.
    pub offset: u64,
    /// Where the address space shows it.
    pub va: u64,
    /// The daemon's view of it, if it is guest RAM. Video memory is mapped as a whole, and may move.
    pub guest: Option<Arc<Mapping>>,
}

impl DevicePage {
    /// Its bytes, where they lie now.
    pub fn view(&self, allocations: &Allocations) -> Option<PageView> {
        if let Some(mapping) = &self.guest {
            return Some(PageView { mapping: Arc::clone(mapping), start: 0 });
        }
        let (mapping, start) = allocations.view(self.allocation)?;
        Some(PageView { mapping: Arc::clone(mapping), start: start + self.offset })
    }
}

/// The bytes of a device page. Not to be kept: the page may move.
#[derive(Debug)]
pub struct PageView {
    mapping: Arc<Mapping>,
    start: u64,
}

impl PageView {
    /// The word at byte `offset`.
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.mapping.word(self.start + offset)
    }

    /// `length` bytes at `offset`.
    pub fn slice(&self, offset: u64, length: u64) -> Option<VolatileSlice<'_>> {
        self.mapping.slice(self.start + offset, length)
    }
}

impl Session {
    /// The device page of a process.
    pub(super) fn page(&self, context: u32) -> Option<PageView> {
        self.device(context).ok()?.page.view(&self.allocations)
    }

    /// Stores a word of a process's device page.
    pub(super) fn store_page_word(&self, context: u32, offset: u64, value: u64) {
        if let Some(page) = self.page(context)
            && let Some(word) = page.word(offset)
        {
            word.store(value, Ordering::Release);
        }
    }
}

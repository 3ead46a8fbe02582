//! The device page, from the daemon.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_protocol::PAGE_SIZE;

use super::dirty::Dirty;
use super::room::Memory;
use super::vidmm::allocations::Allocations;
use crate::guest_ram::mark::MarkGuestRam;
use crate::ids::GuestProcess;
use crate::ledger::page::PagePlace;
use crate::vgpu::objects::device_page::DevicePage;
use crate::vgpu::objects::device_page::GuestPage;
use crate::vgpu::objects::processes::Objects;

impl DevicePage {
    /// Its bytes, where they lie now.
    pub fn view(&self, allocations: &Allocations, dirty: &Dirty) -> Option<PageView> {
        if let Some(GuestPage { mapping, addresses }) = &self.guest {
            let heard = Heard::Log(dirty.log().cloned(), Arc::clone(addresses));
            return Some(PageView { mapping: Arc::clone(mapping), start: 0, heard });
        }
        let (mapping, start) = allocations.view(self.allocation)?;
        let heard = Heard::Tracker(Arc::clone(allocations.tracker_of(self.allocation)?));
        Some(PageView { mapping: Arc::clone(mapping), start: start + self.offset, heard })
    }
}

/// Who is told of stores.
#[derive(Debug)]
enum Heard {
    /// Of video memory.
    Tracker(Arc<Tracker>),
    /// Of guest RAM, with the address of each page.
    Log(Option<Arc<dyn MarkGuestRam>>, Arc<[u64]>),
}

/// The bytes of a device page. Not to be kept: the page may move.
#[derive(Debug)]
pub struct PageView {
    mapping: Arc<Mapping>,
    start: u64,
    heard: Heard,
}

impl PageView {
    /// The word at byte `offset`. Who stores there calls [`Self::mark`] afterwards.
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.mapping.word(self.start + offset)
    }

    /// Where a daemon after this one finds it.
    pub(in crate::vgpu) fn place(&self) -> PagePlace {
        match &self.heard {
            Heard::Tracker(_) => PagePlace::Video(self.start),
            Heard::Log(_, addresses) => PagePlace::of_pages(addresses),
        }
    }

    /// Stores a word.
    pub fn store(&self, offset: u64, value: u64) {
        if let Some(word) = self.word(offset) {
            word.store(value, Ordering::Release);
            self.mark(offset, 8);
        }
    }

    /// Stores bytes.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let length = bytes.len() as u64;
        if let Some(slice) = self.mapping.slice(self.start + offset, length) {
            slice.copy_from(bytes);
            self.mark(offset, length);
        }
    }

    /// `length` bytes at `offset` were stored to (DIRTY-53, DIRTY-55).
    pub fn mark(&self, offset: u64, length: u64) {
        match &self.heard {
            Heard::Tracker(tracker) => tracker.mark(self.start + offset, length),
            Heard::Log(None, _) => {}
            Heard::Log(Some(log), addresses) => {
                let last = offset.saturating_add(length.saturating_sub(1)) / PAGE_SIZE;
                for page in offset / PAGE_SIZE..=last {
                    let address = usize::try_from(page).ok().and_then(|page| addresses.get(page));
                    address.into_iter().for_each(|address| log.mark(*address, PAGE_SIZE));
                }
            }
        }
    }
}

impl Memory {
    /// The device page of a process.
    pub(in crate::vgpu) fn page(&self, objects: &Objects, context: GuestProcess) -> Option<PageView> {
        objects.device(context).ok()?.page.view(&self.allocations, &self.dirty)
    }

    /// Stores a word of a process's device page.
    pub(in crate::vgpu) fn store_page_word(
        &self,
        objects: &Objects,
        context: GuestProcess,
        offset: u64,
        value: u64,
    ) {
        if let Some(page) = self.page(objects, context) {
            page.store(offset, value);
        }
    }
}

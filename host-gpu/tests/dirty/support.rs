//! A memory and its tracker.

use std::fs::File;
use std::os::unix::fs::FileExt;

use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::requests::BasisHandle;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::memory::vram::create_memfd;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const SEGMENT: u32 = 7;

/// A memory of pages of [`PAGE`] bytes that only the test writes.
pub(crate) struct Memory {
    pub(crate) file: File,
    pub(crate) tracker: Tracker,
}

impl Memory {
    pub(crate) fn new(pages: u64) -> Self {
        Self::with(pages, Method::BoundRanges)
    }

    pub(crate) fn with(pages: u64, method: Method) -> Self {
        let file = create_memfd("test", pages * PAGE).unwrap();
        let tracker = Tracker::new(SEGMENT, &file, pages * PAGE, PAGE, method).unwrap();
        Self { file, tracker }
    }

    /// Writes to a page, as the daemon does.
    pub(crate) fn write(&self, page: u64, value: u8) {
        self.store(page, value);
        self.tracker.mark(page * PAGE + 10, 1);
    }

    /// Writes to a page, as the guest's CPU does: without a report.
    pub(crate) fn store(&self, page: u64, value: u8) {
        self.file.write_all_at(&[value], page * PAGE + 10).unwrap();
    }

    pub(crate) fn basis(&self, ranges: &[(u64, u64)]) -> BasisHandle {
        self.tracker.create_memory_basis(SEGMENT, &pages(ranges)).unwrap()
    }

    pub(crate) fn started(&self, ranges: &[(u64, u64)]) -> BasisHandle {
        let basis = self.basis(ranges);
        self.tracker.start_dirty_tracking(basis).unwrap();
        basis
    }

    /// The bits of a basis of `count` pages.
    pub(crate) fn query(&self, basis: BasisHandle, count: usize, clear: bool) -> Vec<bool> {
        let mut buffer = vec![0; count.div_ceil(8)];
        self.tracker.query_dirty_bit_data(basis, None, &mut buffer, clear).unwrap();
        bits(&buffer, count)
    }

    /// Which of the `count` pages of a basis are dirty.
    pub(crate) fn dirty(&self, basis: BasisHandle, count: usize, clear: bool) -> Vec<usize> {
        let bits = self.query(basis, count, clear);
        bits.iter().enumerate().filter(|(_, bit)| **bit).map(|(page, _)| page).collect()
    }
}

pub(crate) fn bits(buffer: &[u8], count: usize) -> Vec<bool> {
    (0..count).map(|bit| buffer[bit / 8] >> (bit % 8) & 1 != 0).collect()
}

/// Ranges, of pages.
pub(crate) fn pages(ranges: &[(u64, u64)]) -> Vec<Range> {
    let bytes = |(first, count): &(u64, u64)| Range { offset: first * PAGE, length: count * PAGE };
    ranges.iter().map(bytes).collect()
}

//! What marks the daemon's writes to guest RAM, as vm-memory calls it: each write through [`super::memory::GuestRam`]
//! ends in [`Slice::mark_dirty`].
//!
//! Slices borrow: a bitmap whose slices count references costs 0.6 µs a command even while there is no log.

use std::sync::Arc;

use vm_memory::bitmap::Bitmap;
use vm_memory::bitmap::BitmapSlice;
use vm_memory::bitmap::NewBitmap;
use vm_memory::bitmap::WithBitmapSlice;

use super::log::DirtyLog;

/// The bitmap of one region: where it lies, and the log of its connection.
#[derive(Debug, Default)]
pub struct Tracking {
    log: Arc<DirtyLog>,
    start: u64,
}

impl Tracking {
    /// For a region at guest address `start`.
    pub fn new(log: Arc<DirtyLog>, start: u64) -> Self {
        Self { log, start }
    }
}

/// A part of a region, from a guest address on.
#[derive(Debug, Clone, Copy)]
pub struct Slice<'a> {
    log: &'a DirtyLog,
    start: u64,
}

fn place(start: u64, offset: usize) -> u64 {
    start.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
}

impl<'a> WithBitmapSlice<'a> for Tracking {
    type S = Slice<'a>;
}

impl Bitmap for Tracking {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.log.mark(place(self.start, offset), u64::try_from(len).unwrap_or(u64::MAX));
    }

    /// Nobody here asks: only the front-end reads a log.
    fn dirty_at(&self, _offset: usize) -> bool {
        false
    }

    fn slice_at(&self, offset: usize) -> Slice<'_> {
        Slice { log: &self.log, start: place(self.start, offset) }
    }
}

impl NewBitmap for Tracking {
    /// Of a region that no front-end has given: its writes are not logged.
    fn with_len(_len: usize) -> Self {
        Self::default()
    }
}

impl<'a> WithBitmapSlice<'_> for Slice<'a> {
    type S = Slice<'a>;
}

impl Bitmap for Slice<'_> {
    #[inline]
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.log.mark(place(self.start, offset), u64::try_from(len).unwrap_or(u64::MAX));
    }

    fn dirty_at(&self, _offset: usize) -> bool {
        false
    }

    #[inline]
    fn slice_at(&self, offset: usize) -> Self {
        Self { log: self.log, start: place(self.start, offset) }
    }
}

impl BitmapSlice for Slice<'_> {}

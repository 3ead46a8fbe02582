//! What marks the daemon's writes to guest RAM, as vm-memory calls it: each write through [`super::memory::GuestRam`]
//! ends in [`Slice::mark_dirty`].
//!
//! Slices borrow: a bitmap whose slices count references costs 0.6 µs a command even while there is no log.

use std::io;
use std::sync::Arc;
use std::sync::OnceLock;

use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use campanile_host_gpu::memory::truncation::domain::Registration;
use vm_memory::MmapRegion;
use vm_memory::bitmap::Bitmap;
use vm_memory::bitmap::BitmapSlice;
use vm_memory::bitmap::NewBitmap;
use vm_memory::bitmap::WithBitmapSlice;

use super::dirty_log::DirtyLog;

/// The bitmap of one region: where it lies, and the log of its connection.
#[derive(Debug, Default)]
pub struct Tracking {
    log: Arc<DirtyLog>,
    start: u64,
    /// By which the front-end may cut its file short.
    registration: OnceLock<Registration>,
}

impl Tracking {
    /// For a region at guest address `start`.
    pub fn new(log: Arc<DirtyLog>, start: u64) -> Self {
        Self { log, start, registration: OnceLock::new() }
    }

    /// From now on a fault in `region`, whose bitmap this is, is one of `domain`.
    ///
    /// # Errors
    /// There are too many mappings.
    pub fn register(&self, domain: &Arc<FaultDomain>, region: &MmapRegion<Self>) -> io::Result<()> {
        let registration = domain.register(region)?;
        let _only_once = self.registration.set(registration);
        Ok(())
    }

    /// Whose faults those of its region are; of none where no front-end has given it.
    pub fn domain(&self) -> Option<&Arc<FaultDomain>> {
        self.registration.get().map(Registration::domain)
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

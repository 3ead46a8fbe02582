//! Host memory that what is evicted lies in.

use std::fs::File;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;
use rustix::fs::FallocateFlags;

use super::ranges::Ranges;

/// Number of the segment that it is, for dirty tracking.
pub const EVICTED_SEGMENT: u32 = u32::MAX;

/// Bytes at the head whose memory is kept.
const KEPT: u64 = 256 << 20;

/// A file of the daemon's own, which no engine and no guest can reach. Takes memory of the host where something lies in
/// it, and at its head, which is used first, also where something lay: new memory costs more time than the copy into it.
#[derive(Debug)]
pub struct Store {
    file: File,
    mapping: Arc<Mapping>,
    ranges: Ranges,
    tracker: Arc<Tracker>,
}

impl Store {
    /// With room for `length` bytes, whole pages.
    pub fn new(length: u64, tracking: Method) -> io::Result<Self> {
        Self::over(create_memfd("campanile-evicted", length)?, length, tracking)
    }

    /// Over a file that has something in it already; at least `length` bytes, and no more are used.
    pub fn over(file: File, length: u64, tracking: Method) -> io::Result<Self> {
        let mapping =
            Mapping::new(file.try_clone()?, 0, length, Access::ReadWrite).map_err(io::Error::other)?;
        let tracker = Arc::new(Tracker::new(EVICTED_SEGMENT, &file, length, PAGE_SIZE, tracking)?);
        Ok(Self { file, mapping: Arc::new(mapping), ranges: Ranges::new(0, length), tracker })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Takes exactly this range; false where it is not all free.
    pub fn reserve(&mut self, offset: u64, length: u64) -> bool {
        self.ranges.reserve(offset, length)
    }

    /// Nothing lies in it: forgets what does.
    pub fn forget(&mut self) {
        self.ranges = Ranges::new(0, self.mapping.len());
    }

    /// The daemon's mapping of all of it.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// What is written to it.
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.tracker
    }

    /// Takes room.
    pub fn take(&mut self, length: u64) -> Option<u64> {
        self.ranges.allocate(length)
    }

    /// Gives room back, and its memory to the host, but for what is kept.
    pub fn release(&mut self, offset: u64, length: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let start = offset.max(KEPT);
        let beyond = (offset + length).saturating_sub(start);
        if beyond > 0
            && let Err(error) = rustix::fs::fallocate(&self.file, flags, start, beyond)
        {
            // It is overwritten whole before anybody reads it.
            log::warn!("giving back {beyond} bytes of evicted memory: {error}");
        }
        self.ranges.release(offset, length);
    }

    /// Bytes that lie in it.
    pub fn used(&self) -> u64 {
        self.mapping.len() - self.ranges.free_bytes()
    }
}

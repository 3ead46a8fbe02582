//! Host memory that what is evicted lies in.

use std::fs::File;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use rustix::fs::FallocateFlags;

use super::ranges::Ranges;

/// A file of the daemon's own, which no engine and no guest can reach. Takes memory of the host only where something
/// lies in it.
#[derive(Debug)]
pub struct Store {
    file: File,
    mapping: Arc<Mapping>,
    ranges: Ranges,
}

impl Store {
    /// With room for `length` bytes, whole pages.
    pub fn new(length: u64) -> io::Result<Self> {
        let file = create_memfd("campanile-evicted", length)?;
        let mapping =
            Mapping::new(file.try_clone()?, 0, length, Access::ReadWrite).map_err(io::Error::other)?;
        Ok(Self { file, mapping: Arc::new(mapping), ranges: Ranges::new(0, length) })
    }

    /// The daemon's mapping of all of it.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Takes room.
    pub fn take(&mut self, length: u64) -> Option<u64> {
        self.ranges.allocate(length)
    }

    /// Gives room back, and its memory to the host.
    pub fn release(&mut self, offset: u64, length: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = rustix::fs::fallocate(&self.file, flags, offset, length) {
            // It is overwritten whole before anybody reads it.
            log::warn!("giving back {length} bytes of evicted memory: {error}");
        }
        self.ranges.release(offset, length);
    }

    /// Bytes that lie in it.
    pub fn used(&self) -> u64 {
        self.mapping.len() - self.ranges.free_bytes()
    }
}

//! A dirty log of a front-end.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering;

use rustix::fs::MemfdFlags;
use rustix::fs::memfd_create;
use vhost::VhostUserDirtyLogRegion;
use vm_memory::FileOffset;
use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;

use crate::guest::RAM;
use crate::vmm::PAGE;

/// A memfd with a bit a page.
pub(crate) struct Log {
    pub(crate) file: File,
    pub(crate) bytes: u64,
    bits: MmapRegion<()>,
}

impl Log {
    pub(crate) fn of_bytes(bytes: u64) -> Self {
        let file = File::from(memfd_create("log", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(bytes).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let bits = MmapRegion::from_file(offset, usize::try_from(bytes).unwrap()).unwrap();
        Self { file, bytes, bits }
    }

    /// As cloud-hypervisor makes them: a byte more than guest memory needs.
    pub(crate) fn new() -> Self {
        Self::of_bytes(RAM / (8 * PAGE) + 1)
    }

    /// Takes the bits away, and gives the addresses of their pages.
    pub(crate) fn take(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        for byte in 0..self.bytes {
            let cell = self.bits.get_atomic_ref::<AtomicU8>(usize::try_from(byte).unwrap()).unwrap();
            let bits = cell.swap(0, Ordering::AcqRel);
            pages.extend((0..8).filter(|bit| bits & (1 << bit) != 0).map(|bit| (byte * 8 + bit) * PAGE));
        }
        pages
    }

    pub(crate) fn region(&self) -> VhostUserDirtyLogRegion {
        VhostUserDirtyLogRegion { mmap_size: self.bytes, mmap_offset: 0, mmap_handle: self.file.as_raw_fd() }
    }
}

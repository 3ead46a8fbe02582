//! Which pages of guest RAM this process wrote: what a hypervisor's dirty log says of virtual CPUs.
//!
//! JUSTIFICATION: userfaultfd's asynchronous write protection and PAGEMAP_SCAN (Linux 6.7) have no safe wrapper.
#![allow(unsafe_code, reason = "ioctls of userfaultfd and pagemap: no safe wrapper exists")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;

use campanile_protocol::PAGE_SIZE;
use rustix::mm::UserfaultfdFlags;
use vm_memory::MmapRegion;

/// `UFFD_USER_MODE_ONLY`: needs no privilege.
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
const PAGEMAP_SCAN: u64 = 0xc060_6610;
const API: u64 = 0xaa;
/// WP, WP_HUGETLBFS_SHMEM, WP_UNPOPULATED, WP_ASYNC.
const FEATURES: u64 = 1 | 1 << 12 | 1 << 13 | 1 << 15;
const REGISTER_WP: u64 = 2;
const WRITEPROTECT_WP: u64 = 1;
/// PM_SCAN_WP_MATCHING and PM_SCAN_CHECK_WPASYNC.
const SCAN_FLAGS: u64 = 3;
const PAGE_IS_WRITTEN: u64 = 2;
/// Ranges that one scan reports.
const RANGES: usize = 512;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    start: u64,
    length: u64,
    mode: u64,
}

/// `struct page_region`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    ranges: u64,
    range_count: u64,
    max_pages: u64,
    inverted: u64,
    mask: u64,
    any_of: u64,
    returned: u64,
}

/// Tracks one mapping from creation on. Dropping it ends that.
#[derive(Debug)]
pub(super) struct CpuWrites {
    _uffd: OwnedFd,
    pagemap: File,
    start: u64,
    length: u64,
}

impl CpuWrites {
    /// Every page counts as not written.
    pub(super) fn of(region: &MmapRegion) -> io::Result<Self> {
        let (start, length) = (region.as_ptr().addr() as u64, region.size() as u64);
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | USER_MODE_ONLY;
        // SAFETY: a userfaultfd without registered ranges does nothing to memory.
        let uffd = unsafe { rustix::mm::userfaultfd(flags) }?;
        ioctl(&uffd, UFFDIO_API, &mut Api { api: API, features: FEATURES, ioctls: 0 })?;
        ioctl(&uffd, UFFDIO_REGISTER, &mut Register { start, length, mode: REGISTER_WP, ioctls: 0 })?;
        ioctl(&uffd, UFFDIO_WRITEPROTECT, &mut WriteProtect { start, length, mode: WRITEPROTECT_WP })?;
        Ok(Self { _uffd: uffd, pagemap: File::open("/proc/self/pagemap")?, start, length })
    }

    /// Takes the pages written since the last call; numbers count from the mapping's start.
    pub(super) fn take(&self) -> io::Result<Vec<u64>> {
        let mut ranges = vec![PageRegion::default(); RANGES];
        let mut pages = Vec::new();
        let (mut at, end) = (self.start, self.start + self.length);
        while at < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: SCAN_FLAGS,
                start: at,
                end,
                walk_end: 0,
                ranges: ranges.as_mut_ptr().addr() as u64,
                range_count: RANGES as u64,
                max_pages: 0,
                inverted: 0,
                mask: PAGE_IS_WRITTEN,
                any_of: 0,
                returned: PAGE_IS_WRITTEN,
            };
            let found = ioctl(&self.pagemap, PAGEMAP_SCAN, &mut scan)?;
            for range in ranges.iter().take(found) {
                let page = |address: u64| (address - self.start) / PAGE_SIZE;
                pages.extend(page(range.start)..page(range.end));
            }
            if scan.walk_end <= at {
                return Err(io::Error::other("the scan of written pages does not get on"));
            }
            at = scan.walk_end;
        }
        Ok(pages)
    }
}

fn ioctl<T>(file: &impl AsRawFd, request: u64, argument: &mut T) -> io::Result<usize> {
    // SAFETY: each request comes with the structure that it is defined for, and with ranges of a mapping or vector that
    // is valid for the call. Write protection that the kernel resolves by itself changes no contents.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;
    use vm_memory::VolatileMemory;

    use super::CpuWrites;
    use crate::guest_ram;

    #[test]
    fn writes_of_this_mapping_are_taken_once_and_reads_and_other_mappings_are_none() {
        let (file, region) = guest_ram::memory(64 << 12).unwrap();
        let offset = vm_memory::FileOffset::new(file.try_clone().unwrap(), 0);
        let other = vm_memory::MmapRegion::<()>::from_file(offset, 64 << 12).unwrap();
        let whole = region.as_volatile_slice();
        whole.write_obj(1_u8, 5 << 12).unwrap();
        let Ok(writes) = CpuWrites::of(&region) else { return };
        assert_eq!(writes.take().unwrap(), Vec::<u64>::new());
        whole.write_obj(1_u8, 5 << 12).unwrap();
        whole.write_obj(1_u8, 63 << 12).unwrap();
        whole.read_obj::<u8>(7 << 12).unwrap();
        other.as_volatile_slice().write_obj(1_u8, 9 << 12).unwrap();
        assert_eq!(writes.take().unwrap(), [5, 63]);
        assert_eq!(writes.take().unwrap(), Vec::<u64>::new());
    }
}

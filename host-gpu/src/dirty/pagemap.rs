//! Which pages of a process's mappings were stored to since they were last protected (Linux 6.7).

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use campanile_protocol::PAGE_SIZE;

use crate::outside;

/// `struct page_region` of linux/fs.h.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of linux/fs.h.
#[derive(Debug, Default)]
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
/// Protects what is found, in one step with finding it.
const PM_SCAN_WP_MATCHING: u64 = 1;
/// Fails where a mapping is not registered for that.
const PM_SCAN_CHECK_WPASYNC: u64 = 2;
const PAGE_IS_WRITTEN: u64 = 2;
/// Bytes of the page map for each page.
const ENTRY: usize = 8;
/// Regions that one call can return.
const REGIONS: usize = 4096;

/// The page map of a process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl Pagemap {
    /// Of the process with this id: of the memory that it has now, even if another program runs in it later.
    ///
    /// # Errors
    /// There is no such process, or it is none that the caller may look into.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        // A thread with a Landlock domain may look into no process outside of it.
        Ok(Self { file: outside::run(move || File::open(format!("/proc/{pid}/pagemap")))?? })
    }

    /// Of the calling process.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn own() -> io::Result<Self> {
        Ok(Self { file: File::open("/proc/self/pagemap")? })
    }

    /// Calls `found` with each run (address, bytes) of pages of `address .. address + length` that were stored to, and
    /// protects them again: each store is found in this scan or in a later one.
    ///
    /// # Errors
    /// `ESRCH` when the process is gone, and with it what was noted; `EPERM` where a mapping is not registered; what else
    /// the kernel says. What was found until then was handed to `found`.
    pub fn scan(&self, address: u64, length: u64, mut found: impl FnMut(u64, u64)) -> io::Result<()> {
        let end = address.saturating_add(length);
        let mut regions = vec![Region::default(); REGIONS];
        let mut at = address;
        while at < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
                start: at,
                end,
                vec: regions.as_mut_ptr().addr() as u64,
                vec_len: REGIONS as u64,
                category_mask: PAGE_IS_WRITTEN,
                return_mask: PAGE_IS_WRITTEN,
                ..Scan::default()
            };
            // SAFETY: the descriptor is open; `scan` is the structure that this command takes, with its size in it; the
            // kernel writes at most `vec_len` regions to `vec`, which has that many and outlives the call.
            let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            if count < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            let count = usize::try_from(count).unwrap_or(0).min(REGIONS);
            for region in &regions[..count] {
                found(region.start, region.end.saturating_sub(region.start));
            }
            if scan.walk_end <= at {
                return Err(io::Error::other("the kernel's scan does not get on"));
            }
            at = scan.walk_end;
        }
        self.check_is_there(address)
    }

    /// Some kernels find nothing in a process that is gone (seen with 6.18), instead of saying so: of that one nothing can be read, either. One that can be
    /// read was there all the time.
    fn check_is_there(&self, address: u64) -> io::Result<()> {
        let mut entry = [0; ENTRY];
        match self.file.read_at(&mut entry, address / PAGE_SIZE * ENTRY as u64)? {
            0 => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            _ => Ok(()),
        }
    }
}

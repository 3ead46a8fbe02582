//! One contiguous view of scattered file ranges: what a page list of guest RAM, or a binding that crosses
//! segments, looks like to a driver that wants one pointer.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use campanile_protocol::PAGE_SIZE;
use vm_memory::MmapRegion;

/// One range of a file, in bytes, page-aligned.
#[derive(Debug)]
pub struct FileRange<'a> {
    /// The file.
    pub file: &'a File,
    /// Where in it.
    pub offset: u64,
    /// How much of it.
    pub length: u64,
}

/// Maps `ranges` one behind the other, read and write, shared.
///
/// # Errors
/// `InvalidInput` for an empty list, a range that is not made of whole pages or reaches past the end of its
/// file, and what mmap says.
pub(super) fn map_ranges(ranges: &[FileRange<'_>]) -> io::Result<MmapRegion<()>> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let mut total: u64 = 0;
    for range in ranges {
        let end = range.offset.checked_add(range.length).ok_or_else(|| invalid("range end overflows"))?;
        if range.length == 0
            || !range.offset.is_multiple_of(PAGE_SIZE)
            || !range.length.is_multiple_of(PAGE_SIZE)
        {
            return Err(invalid("range is not made of whole pages"));
        }
        if end > range.file.metadata()?.len() {
            return Err(invalid("range reaches past the end of its file"));
        }
        total = total.checked_add(range.length).ok_or_else(|| invalid("view size overflows"))?;
    }
    // Reserves the whole view; the pieces are then mapped over it. Dropped, it unmaps all of it.
    let size = usize::try_from(total).map_err(|_| invalid("view is larger than the address space"))?;
    let region: MmapRegion<()> = MmapRegion::build(
        None,
        size,
        libc::PROT_NONE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    )
    .map_err(io::Error::other)?;
    let mut at: usize = 0;
    for range in ranges {
        let length = usize::try_from(range.length).map_err(|_| invalid("range too long"))?;
        let offset = libc::off_t::try_from(range.offset).map_err(|_| invalid("file offset too large"))?;
        // SAFETY: `at` is inside the reservation: the lengths before this one add up to it, and to no more
        // than `size` with this one.
        let target = unsafe { region.as_ptr().add(at) };
        // SAFETY: MAP_FIXED replaces only pages of our own reservation, which nothing refers to yet; length and
        // offset are whole pages; the file is open.
        let mapped = unsafe {
            libc::mmap(
                target.cast(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                range.file.as_raw_fd(),
                offset,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        at += length;
    }
    Ok(region)
}

//! Another file under a mapping that the guest holds pointers into.
//!
//! JUSTIFICATION: `MmapRegion` maps where the kernel likes, and a guest's addresses do not change when its VM moves.
#![allow(unsafe_code, reason = "mmap with MAP_FIXED: no safe wrapper exists")]

use std::fs::File;
use std::io;

use rustix::mm::MapFlags;
use rustix::mm::ProtFlags;
use vm_memory::MmapRegion;

/// Maps `file` from `offset` on over all of `region`, at once: a read meanwhile sees the old bytes or the new ones.
pub(super) fn remap(region: &MmapRegion, file: &File, offset: u64, writable: bool) -> io::Result<()> {
    let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the addresses are those of one mapping that `region` made, owns and ends, so no other mapping is hurt.
    // What is in there is reached through volatile slices and atomics alone, which promise nothing of its contents.
    let at =
        unsafe { rustix::mm::mmap(region.as_ptr().cast(), region.size(), protection, flags, file, offset) }?;
    debug_assert_eq!(at.cast(), region.as_ptr());
    Ok(())
}

//! A mapped blob.
//!
//! JUSTIFICATION: `MmapRegion` maps files that have a size, which a render node has not.
#![allow(unsafe_code, reason = "mmap of a render node: no safe wrapper takes a file without size")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::MapFlags;
use rustix::mm::ProtFlags;
use vm_memory::MmapRegion;

use super::gone::Watched;
use crate::transport::error::TransportError;
use crate::transport::shared_memory::Piece;
use crate::transport::shared_memory::SharedMemory;

/// One `mmap`, undone when dropped.
#[derive(Debug)]
struct Mapping {
    region: Arc<MmapRegion>,
    watched: Option<Watched>,
}

/// Maps `size` bytes of a node's file at `offset` for reading and writing.
pub(super) fn map(node: BorrowedFd<'_>, offset: u64, size: u64) -> Result<SharedMemory, TransportError> {
    let refused = |source: Errno| TransportError::System { what: "mapping a blob", source: source.into() };
    let length = usize::try_from(size).map_err(|_| refused(Errno::NOMEM))?;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: the address is the kernel's to choose, so nothing that is mapped already is replaced.
    let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, node, offset) };
    let address = mapped.map_err(refused)?.cast::<u8>();
    let bits = |bits: u32| i32::try_from(bits).unwrap_or_default();
    // SAFETY: address and length are those of the mapping that was just made, which `Mapping` ends only when the
    // region and all that points into it are gone.
    let region =
        unsafe { MmapRegion::build_raw(address, length, bits(protection.bits()), bits(flags.bits())) };
    let region =
        region.map_err(|error| TransportError::System { what: "mapping a blob", source: Box::new(error) })?;
    let region = Arc::new(region);
    let piece = Piece { region: Arc::clone(&region), region_offset: 0, length: size };
    let start = address.expose_provenance();
    let watched = Watched::over(start..start + length);
    let watched = watched
        .map_err(|source| TransportError::System { what: "a handler of SIGBUS", source: source.into() })?;
    Ok(SharedMemory::new(vec![piece], Some(Arc::new(Mapping { region, watched: Some(watched) }))))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The addresses may be in use again as soon as they are free.
        drop(self.watched.take());
        // SAFETY: the range is one whole mapping of this module. `SharedMemory` lends its bytes for its own
        // lifetime only, and drops this together with its pieces, so no reference into it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.region.as_ptr().cast(), self.region.size()) };
        if let Err(error) = unmapped {
            log::debug!("unmapping a blob: {error}");
        }
    }
}

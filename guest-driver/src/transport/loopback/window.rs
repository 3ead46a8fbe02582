//! The host-visible window: shared memory region 1 of the device.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use campanile_protocol::PAGE_SIZE;
use vm_memory::FileOffset;
use vm_memory::MmapRegion;

use super::page_space::PageSpace;
use crate::transport::error::TransportError;
use crate::transport::shared_memory::Piece;
use crate::transport::shared_memory::SharedMemory;

/// Guest-physical address of the window, far above RAM.
pub(crate) const WINDOW_BASE: u64 = 1 << 40;

/// `mmap` protection of a map.
const PROT_READ: i32 = 1;
const PROT_WRITE: i32 = 2;
/// `mmap` flag MAP_SHARED.
const MAP_SHARED: i32 = 1;

/// What the device put where, and which offsets the guest has given to blobs.
#[derive(Debug)]
pub(crate) struct Window {
    size: u64,
    /// Offset → what is mapped there.
    maps: Mutex<BTreeMap<u64, Arc<MmapRegion>>>,
    space: Mutex<PageSpace>,
}

/// Why the VMM refuses a SHMEM request; the device gets EFAULT, as from QEMU.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WindowError {
    /// Bytes outside the window, or not whole pages.
    #[error("{length} bytes at {offset} are not whole pages inside the window")]
    Range { offset: u64, length: u64 },
    /// Something is mapped there.
    #[error("{length} bytes at {offset} overlap another map")]
    Overlap { offset: u64, length: u64 },
    /// Exactly this is not mapped.
    #[error("{length} bytes at {offset} are no map")]
    NotMapped { offset: u64, length: u64 },
    /// The file is shorter than that; touching the map would kill this process.
    #[error("the file has no {length} bytes at {file_offset}")]
    PastEnd { file_offset: u64, length: u64 },
    /// The file cannot be mapped so.
    #[error("the file cannot be mapped: {0}")]
    Map(#[from] vm_memory::mmap::MmapRegionError),
}

/// A SHMEM_MAP request.
#[derive(Debug)]
pub(crate) struct MapRequest {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) file: File,
    pub(crate) file_offset: u64,
    pub(crate) writable: bool,
}

impl Window {
    pub(crate) fn new(size: u64) -> Self {
        Self { size, maps: Mutex::default(), space: Mutex::new(PageSpace::new(size / PAGE_SIZE)) }
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn maps(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<MmapRegion>>> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn space(&self) -> MutexGuard<'_, PageSpace> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SHMEM_MAP: shows a file in the window. As QEMU, refuses what overlaps an earlier map.
    pub(crate) fn map(&self, request: MapRequest) -> Result<(), WindowError> {
        let MapRequest { offset, length, file, file_offset, writable } = request;
        let end = offset.checked_add(length).filter(|end| *end <= self.size);
        let whole = offset.is_multiple_of(PAGE_SIZE) && length.is_multiple_of(PAGE_SIZE) && length > 0;
        let (Some(end), true, Ok(size)) = (end, whole, usize::try_from(length)) else {
            return Err(WindowError::Range { offset, length });
        };
        let short =
            |meta: std::fs::Metadata| meta.is_file() && meta.len() < file_offset.saturating_add(length);
        if file.metadata().is_ok_and(short) {
            return Err(WindowError::PastEnd { file_offset, length });
        }
        let mut maps = self.maps();
        if maps.range(..end).next_back().is_some_and(|(start, region)| start + region.size() as u64 > offset)
        {
            return Err(WindowError::Overlap { offset, length });
        }
        let protection = if writable { PROT_READ | PROT_WRITE } else { PROT_READ };
        let region =
            MmapRegion::build(Some(FileOffset::new(file, file_offset)), size, protection, MAP_SHARED)?;
        maps.insert(offset, Arc::new(region));
        Ok(())
    }

    /// SHMEM_UNMAP: ends exactly one earlier map. Whoever holds a view of it keeps the memory.
    pub(crate) fn unmap(&self, offset: u64, length: u64) -> Result<(), WindowError> {
        let mut maps = self.maps();
        if maps.get(&offset).is_none_or(|region| region.size() as u64 != length) {
            return Err(WindowError::NotMapped { offset, length });
        }
        maps.remove(&offset);
        Ok(())
    }

    /// Ends every map, as QEMU does when the device is reset.
    pub(crate) fn unmap_all(&self) {
        self.maps().clear();
    }

    /// What is mapped, as (guest-physical address, mapping), for the memory table.
    pub(crate) fn regions(&self) -> Vec<(u64, Arc<MmapRegion>)> {
        self.maps().iter().map(|(offset, region)| (WINDOW_BASE + offset, Arc::clone(region))).collect()
    }

    /// Takes a gap of `bytes` for a blob. The gap is taken until the last holder of the range is gone.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Arc<WindowRange>, TransportError> {
        let pages = bytes.div_ceil(PAGE_SIZE);
        let first_page = self.space().allocate(pages).ok_or(TransportError::OutOfWindow { bytes })?;
        Ok(Arc::new(WindowRange { window: Arc::clone(self), first_page, pages }))
    }
}

/// A gap of the window that a blob has.
#[derive(Debug)]
pub(crate) struct WindowRange {
    window: Arc<Window>,
    first_page: u64,
    pages: u64,
}

impl WindowRange {
    /// Bytes into the window.
    pub(crate) fn offset(&self) -> u64 {
        self.first_page * PAGE_SIZE
    }

    /// The bytes of the gap as the process sees them, or `None` where the device has not mapped all of them.
    pub(crate) fn shared(self: &Arc<Self>) -> Option<SharedMemory> {
        let end = self.offset() + self.pages * PAGE_SIZE;
        let maps = self.window.maps();
        let mut pieces = Vec::new();
        let mut at = self.offset();
        while at < end {
            let (start, region) = maps.range(..=at).next_back()?;
            let within = at - start;
            let length = (region.size() as u64).checked_sub(within).filter(|left| *left > 0)?.min(end - at);
            pieces.push(Piece {
                region: Arc::clone(region),
                region_offset: usize::try_from(within).ok()?,
                length,
            });
            at += length;
        }
        Some(SharedMemory::new(pieces, Some(Arc::clone(self) as _)))
    }
}

impl Drop for WindowRange {
    fn drop(&mut self) {
        self.window.space().release(self.first_page, self.pages);
    }
}

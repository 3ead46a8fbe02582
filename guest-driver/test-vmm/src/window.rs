//! The host-visible window: shared memory region 1 of the device.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::PAGE_SIZE;
use vm_memory::FileOffset;
use vm_memory::MmapRegion;

use super::page_space::PageSpace;
use super::pause::lock::Held;
use super::pause::lock::Lock;
use super::remap::remap;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::transport::shared_memory::Piece;
use campanile_guest_driver::transport::shared_memory::SharedMemory;

/// Guest-physical address of the window, far above RAM.
pub(crate) const WINDOW_BASE: u64 = 1 << 40;

/// `mmap` protection of a map.
const PROT_READ: i32 = 1;
const PROT_WRITE: i32 = 2;
/// `mmap` flag MAP_SHARED.
const MAP_SHARED: i32 = 1;

/// The guest's side: which offsets it has given to blobs, and what shows there.
#[derive(Debug)]
pub(crate) struct Window {
    maps: Lock<Arc<Maps>>,
    space: Lock<PageSpace>,
}

/// What one device put where.
#[derive(Debug)]
pub(crate) struct Maps {
    size: u64,
    /// Offset → what is mapped there.
    maps: Lock<BTreeMap<u64, Map>>,
    /// Changes so far. No virtual CPU takes this lock.
    changes: Mutex<u64>,
    changed: Condvar,
}

/// One map of the window.
#[derive(Debug, Clone)]
pub(crate) struct Map {
    /// Where it is in this process.
    pub(crate) mapping: Arc<MmapRegion>,
    /// What it shows; the mapping's own record may be of an earlier device.
    pub(crate) file: Arc<File>,
    /// Bytes into the file.
    pub(crate) file_offset: u64,
    writable: bool,
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

impl Maps {
    pub(crate) fn new(size: u64) -> Arc<Self> {
        Arc::new(Self { size, maps: Lock::default(), changes: Mutex::default(), changed: Condvar::new() })
    }

    fn maps(&self) -> Held<'_, BTreeMap<u64, Map>> {
        self.maps.lock()
    }

    fn tell(&self) {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    /// Blocks until everything that `other` shows is mapped here, too, or until `limit` is over.
    pub(crate) fn wait_for(&self, other: &Self, limit: Duration) -> Result<(), TransportError> {
        let deadline = Instant::now() + limit;
        let wanted: Vec<_> = other.maps().iter().map(|(offset, map)| (*offset, map.mapping.size())).collect();
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let missing = {
                let here = self.maps();
                let is_there = |(offset, size): &&(u64, usize)| {
                    here.get(offset).is_some_and(|map| map.mapping.size() == *size)
                };
                wanted.iter().find(|map| !is_there(map)).copied()
            };
            let Some((offset, size)) = missing else { return Ok(()) };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TransportError::WindowUnmapped { offset, bytes: size as u64 });
            }
            changes = self.changed.wait_timeout(changes, left).unwrap_or_else(PoisonError::into_inner).0;
        }
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
        if maps
            .range(..end)
            .next_back()
            .is_some_and(|(start, map)| start + map.mapping.size() as u64 > offset)
        {
            return Err(WindowError::Overlap { offset, length });
        }
        let protection = if writable { PROT_READ | PROT_WRITE } else { PROT_READ };
        let file = Arc::new(file);
        let at = FileOffset::from_arc(Arc::clone(&file), file_offset);
        let mapping = Arc::new(MmapRegion::build(Some(at), size, protection, MAP_SHARED)?);
        maps.insert(offset, Map { mapping, file, file_offset, writable });
        drop(maps);
        self.tell();
        Ok(())
    }

    /// SHMEM_UNMAP: ends exactly one earlier map. A holder of a view of it keeps the memory.
    pub(crate) fn unmap(&self, offset: u64, length: u64) -> Result<(), WindowError> {
        let mut maps = self.maps();
        if maps.get(&offset).is_none_or(|map| map.mapping.size() as u64 != length) {
            return Err(WindowError::NotMapped { offset, length });
        }
        maps.remove(&offset);
        Ok(())
    }

    /// Ends every map, as QEMU does when the device is reset.
    pub(crate) fn unmap_all(&self) {
        self.maps().clear();
    }

    /// First guest-physical address above the window, where there is one.
    pub(crate) fn end(&self) -> Option<u64> {
        (self.size > 0).then(|| WINDOW_BASE.saturating_add(self.size))
    }

    /// What is mapped, as (guest-physical address, map), for the memory table.
    pub(crate) fn regions(&self) -> Vec<(u64, Map)> {
        self.maps().iter().map(|(offset, map)| (WINDOW_BASE + offset, map.clone())).collect()
    }
}

impl Window {
    pub(crate) fn new(maps: Arc<Maps>) -> Arc<Self> {
        let space = Lock::new(PageSpace::new(maps.size / PAGE_SIZE));
        Arc::new(Self { maps: Lock::new(maps), space })
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.maps().size
    }

    fn space(&self) -> Held<'_, PageSpace> {
        self.space.lock()
    }

    /// What the device that has the window now put there.
    pub(crate) fn maps(&self) -> Arc<Maps> {
        Arc::clone(&self.maps.lock())
    }

    /// Shows what another device put there, at the addresses where the guest has the same maps now. No virtual CPU
    /// runs. The other has all maps that there are (see [`Maps::wait_for`]).
    pub(crate) fn replace(&self, other: Arc<Maps>) -> Result<(), TransportError> {
        let old = self.maps();
        {
            let mut theirs = other.maps();
            for (offset, map) in &*old.maps() {
                let bytes = map.mapping.size() as u64;
                let new = theirs
                    .get_mut(offset)
                    .filter(|new| new.mapping.size() as u64 == bytes)
                    .ok_or(TransportError::WindowUnmapped { offset: *offset, bytes })?;
                remap(&map.mapping, &new.file, new.file_offset, new.writable).map_err(|source| {
                    TransportError::System { what: "a map of the window", source: source.into() }
                })?;
                new.mapping = Arc::clone(&map.mapping);
            }
        }
        *self.maps.lock() = other;
        Ok(())
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
        let current = self.window.maps();
        let maps = current.maps();
        let mut pieces = Vec::new();
        let mut at = self.offset();
        while at < end {
            let (start, map) = maps.range(..=at).next_back()?;
            let within = at - start;
            let length =
                (map.mapping.size() as u64).checked_sub(within).filter(|left| *left > 0)?.min(end - at);
            pieces.push(Piece {
                region: Arc::clone(&map.mapping),
                region_offset: usize::try_from(within).ok()?,
                length,
            });
            at += length;
        }
        Some(SharedMemory::new(pieces, Some(Arc::clone(self) as _)))
    }
}

impl WindowRange {
    /// The file that shows in the gap, and where in it the gap begins; none where the device has not mapped all of it.
    pub(crate) fn file(&self) -> Option<(Arc<File>, u64)> {
        let current = self.window.maps();
        let maps = current.maps();
        let (start, map) = maps.range(..=self.offset()).next_back()?;
        let within = self.offset() - start;
        let left = (map.mapping.size() as u64).checked_sub(within)?;
        (left >= self.pages * PAGE_SIZE).then(|| (Arc::clone(&map.file), map.file_offset + within))
    }

    /// The bytes of the gap at an address of their own.
    pub(crate) fn alias(&self) -> Option<SharedMemory> {
        let (file, offset) = self.file()?;
        let length = self.pages * PAGE_SIZE;
        let at = FileOffset::from_arc(file, offset);
        let region = Arc::new(MmapRegion::from_file(at, usize::try_from(length).ok()?).ok()?);
        Some(SharedMemory::new(vec![Piece { region, region_offset: 0, length }], None))
    }
}

impl Drop for WindowRange {
    fn drop(&mut self) {
        self.window.space().release(self.first_page, self.pages);
    }
}

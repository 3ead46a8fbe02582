//! One mapped range of a shared file.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;

use vm_memory::FileOffset;
use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;
use vm_memory::VolatileSlice;

use super::truncation::domain::FaultDomain;
use super::truncation::domain::Registration;
use super::view;
use super::view::FileRange;

/// Why a range could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// the kernel refused to map {length} bytes at offset {offset}
    #[error("the kernel refused to map {length} bytes at file offset {offset}: {source}")]
    Refused {
        /// Bytes asked for.
        length: u64,
        /// File offset asked for, bytes.
        offset: u64,
        /// What the kernel or the file size said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What the holder of a mapping may do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store faults.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// A shared mapping of a file range. Every access is volatile and bounds-checked: no reference to the
/// bytes ever exists, because other processes write them at any time.
#[derive(Debug)]
pub struct Mapping {
    /// Where its files may be cut short. Ends before the mapping does.
    _registration: Option<Registration>,
    region: MmapRegion<()>,
}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset` (both in bytes, `offset` a multiple of the page size).
    pub fn new(file: File, offset: u64, length: u64, access: Access) -> Result<Self, MapError> {
        let refused =
            |source: Box<dyn std::error::Error + Send + Sync>| MapError::Refused { length, offset, source };
        let size = usize::try_from(length).map_err(|e| refused(e.into()))?;
        let protection = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let region =
            MmapRegion::build(Some(FileOffset::new(file, offset)), size, protection, libc::MAP_SHARED)
                .map_err(|e| refused(e.into()))?;
        Ok(Self { _registration: None, region })
    }

    /// Maps `ranges` one behind the other as one view, read and write.
    pub fn of_ranges(ranges: &[FileRange<'_>]) -> Result<Self, MapError> {
        Self::of_foreign_ranges(ranges, None)
    }

    /// The same for ranges of files that another process may cut short. Then the view reads as zeros, and `domain` has a
    /// fault; without a domain, this process ends.
    pub fn of_foreign_ranges(
        ranges: &[FileRange<'_>],
        domain: Option<&Arc<FaultDomain>>,
    ) -> Result<Self, MapError> {
        let length = ranges.iter().map(|range| range.length).fold(0, u64::saturating_add);
        let offset = ranges.first().map_or(0, |range| range.offset);
        let refused = |error: std::io::Error| MapError::Refused { length, offset, source: error.into() };
        let region = view::map_ranges(ranges).map_err(refused)?;
        let registration = domain.map(|domain| domain.register(&region)).transpose().map_err(refused)?;
        Ok(Self { _registration: registration, region })
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        self.region.size() as u64
    }

    /// Whether nothing is mapped. Never true: a mapping of no bytes is refused.
    pub fn is_empty(&self) -> bool {
        self.region.size() == 0
    }

    /// The host address of the first byte, for a driver that imports host memory. The mapping must outlive
    /// whatever the driver makes of it.
    pub fn host_pointer(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// The bytes `offset .. offset + length`, or `None` where that is not all inside.
    pub fn slice(&self, offset: u64, length: u64) -> Option<VolatileSlice<'_>> {
        let offset = usize::try_from(offset).ok()?;
        let length = usize::try_from(length).ok()?;
        self.region.get_slice(offset, length).ok()
    }

    /// The 64-bit word at byte `offset`, or `None` where it is outside or misaligned.
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.region.get_atomic_ref(usize::try_from(offset).ok()?).ok()
    }

    /// The 32-bit word at byte `offset`, or `None` where it is outside or misaligned.
    pub fn word32(&self, offset: u64) -> Option<&AtomicU32> {
        self.region.get_atomic_ref(usize::try_from(offset).ok()?).ok()
    }
}

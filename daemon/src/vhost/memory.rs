//! Guest memory as the front-end describes it.

use std::fs::File;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::message::VhostUserSingleMemoryRegion;
use vm_memory::FileOffset;
use vm_memory::GuestAddress;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryMmap;
use vm_memory::GuestMemoryRegion;
use vm_memory::GuestRegionMmap;
use vm_memory::bitmap::Bitmap;
use vm_memory::mmap::MmapRegionBuilder;

use super::features::MEMORY_SLOTS;
use super::log::DirtyLog;
use super::refusal::Refusal;
use super::tracking::Tracking;

/// Guest memory: regions with their file and offset. What is written through it is marked in the connection's
/// dirty log, if there is one.
pub type GuestRam = GuestMemoryMmap<Tracking>;

/// One region of it.
pub type GuestRegion = GuestRegionMmap<Tracking>;

/// Marks what was written to guest RAM by other means (a mapping of one's own): after writing, before anybody is told.
pub fn mark_written(ram: &GuestRam, guest_physical: u64, length: u64) {
    let Some((region, offset)) = ram.to_region_addr(GuestAddress(guest_physical)) else { return };
    if let (Ok(offset), Ok(length)) = (usize::try_from(offset.0), usize::try_from(length)) {
        region.bitmap().mark_dirty(offset, length);
    }
}

/// A claim of the front-end: this file is the guest's memory here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    guest: u64,
    length: u64,
    /// Where the front-end itself has it: ring addresses come in these terms.
    user: u64,
    offset: u64,
}

impl From<&VhostUserMemoryRegion> for Claim {
    fn from(region: &VhostUserMemoryRegion) -> Self {
        Self {
            guest: region.guest_phys_addr,
            length: region.memory_size,
            user: region.user_addr,
            offset: region.mmap_offset,
        }
    }
}

impl From<&VhostUserSingleMemoryRegion> for Claim {
    fn from(region: &VhostUserSingleMemoryRegion) -> Self {
        Self {
            guest: region.guest_phys_addr,
            length: region.memory_size,
            user: region.user_addr,
            offset: region.mmap_offset,
        }
    }
}

/// The mapped table. Replaced as a whole: whoever holds the old one may still use it.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryTable {
    ram: Arc<GuestRam>,
    claims: Vec<Claim>,
}

impl MemoryTable {
    /// Maps a new table, the writes to which `log` takes: that of the connection, whatever tables come and go.
    pub(super) fn map(log: &Arc<DirtyLog>, claims: Vec<Claim>, files: Vec<File>) -> Result<Self, Refusal> {
        let mut regions = Vec::with_capacity(claims.len());
        for (claim, file) in claims.iter().zip(files) {
            regions.push(map_region(log, *claim, file)?);
        }
        regions.sort_by_key(|region| region.start_addr());
        Ok(Self { ram: Arc::new(GuestRam::from_arc_regions(regions)?), claims })
    }

    /// This table and one region more.
    pub(super) fn with(&self, log: &Arc<DirtyLog>, claim: Claim, file: File) -> Result<Self, Refusal> {
        if self.claims.len() >= MEMORY_SLOTS {
            return Err(Refusal::TooManyRegions(MEMORY_SLOTS));
        }
        let ram = self.ram.insert_region(map_region(log, claim, file)?)?;
        let mut claims = self.claims.clone();
        claims.push(claim);
        Ok(Self { ram: Arc::new(ram), claims })
    }

    /// This table without one region.
    pub(super) fn without(&self, claim: Claim) -> Result<Self, Refusal> {
        let (ram, _region) = self.ram.remove_region(GuestAddress(claim.guest), claim.length)?;
        let mut claims = self.claims.clone();
        claims.retain(|other| other.guest != claim.guest);
        Ok(Self { ram: Arc::new(ram), claims })
    }

    /// End of the highest region; 0 without any.
    pub(super) fn end(&self) -> u64 {
        self.claims.iter().map(|claim| claim.guest.saturating_add(claim.length)).max().unwrap_or(0)
    }

    pub(super) fn ram(&self) -> &Arc<GuestRam> {
        &self.ram
    }

    /// Guest-physical address of an address of the front-end.
    pub(super) fn guest_address(&self, user: u64) -> Option<u64> {
        self.claims.iter().find_map(|claim| {
            let within = user.checked_sub(claim.user).filter(|within| *within < claim.length)?;
            claim.guest.checked_add(within)
        })
    }
}

fn map_region(log: &Arc<DirtyLog>, claim: Claim, file: File) -> Result<Arc<GuestRegion>, Refusal> {
    let address = claim.guest;
    let length = usize::try_from(claim.length).map_err(|_| Refusal::RegionOverflow { address })?;
    let end = claim.offset.checked_add(claim.length).ok_or(Refusal::RegionOverflow { address })?;
    let metadata = file.metadata().map_err(|source| Refusal::RegionFile { address, source })?;
    // Touching memory past the end of its file kills the process. (A file cut short later still does.)
    if metadata.is_file() && metadata.len() < end {
        return Err(Refusal::RegionPastFile { address });
    }
    let region = MmapRegionBuilder::new_with_bitmap(length, Tracking::new(Arc::clone(log), address))
        .with_file_offset(FileOffset::new(file, claim.offset))
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_NORESERVE | libc::MAP_SHARED)
        .build()
        .map_err(|source| Refusal::RegionMap { address, source })?;
    let region =
        GuestRegion::new(region, GuestAddress(address)).ok_or(Refusal::RegionOverflow { address })?;
    Ok(Arc::new(region))
}

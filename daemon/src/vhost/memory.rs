//! Guest memory as the front-end describes it.

use std::fs::File;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::message::VhostUserSingleMemoryRegion;
use vm_memory::FileOffset;
use vm_memory::GuestAddress;
use vm_memory::GuestMemoryMmap;
use vm_memory::GuestRegionMmap;
use vm_memory::MmapRegion;

use super::features::MEMORY_SLOTS;
use super::refusal::Refusal;

/// What marks writes for a migration: nothing yet. A dirty log goes here, as a bitmap of our own whose slices
/// borrow (that of vhost-user-backend costs 0.6 µs a command even while there is no log: measured).
type Tracking = ();

/// Guest memory: regions with their file and offset.
pub type GuestRam = GuestMemoryMmap<Tracking>;

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
    /// Maps a new table.
    pub(super) fn map(claims: Vec<Claim>, files: Vec<File>) -> Result<Self, Refusal> {
        let mut regions = Vec::with_capacity(claims.len());
        for (claim, file) in claims.iter().zip(files) {
            regions.push(map_region(*claim, file)?);
        }
        regions.sort_by_key(|region| vm_memory::GuestMemoryRegion::start_addr(region.as_ref()));
        Ok(Self { ram: Arc::new(GuestRam::from_arc_regions(regions)?), claims })
    }

    /// This table and one region more.
    pub(super) fn with(&self, claim: Claim, file: File) -> Result<Self, Refusal> {
        if self.claims.len() >= MEMORY_SLOTS {
            return Err(Refusal::TooManyRegions(MEMORY_SLOTS));
        }
        let ram = self.ram.insert_region(map_region(claim, file)?)?;
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

fn map_region(claim: Claim, file: File) -> Result<Arc<GuestRegionMmap<Tracking>>, Refusal> {
    let address = claim.guest;
    let length = usize::try_from(claim.length).map_err(|_| Refusal::RegionOverflow { address })?;
    let end = claim.offset.checked_add(claim.length).ok_or(Refusal::RegionOverflow { address })?;
    let metadata = file.metadata().map_err(|source| Refusal::RegionFile { address, source })?;
    // Touching memory past the end of its file kills the process. (A file cut short later still does.)
    if metadata.is_file() && metadata.len() < end {
        return Err(Refusal::RegionPastFile { address });
    }
    let region = MmapRegion::from_file(FileOffset::new(file, claim.offset), length)
        .map_err(|source| Refusal::RegionMap { address, source })?;
    let region =
        GuestRegionMmap::new(region, GuestAddress(address)).ok_or(Refusal::RegionOverflow { address })?;
    Ok(Arc::new(region))
}

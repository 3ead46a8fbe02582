//! The memory table: guest memory as the front-end describes it.

use std::fs::File;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use rustix::fs::fstatfs;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::message::VhostUserSingleMemoryRegion;
use vm_memory::FileOffset;
use vm_memory::GuestAddress;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryRegion;
use vm_memory::mmap::MmapRegionBuilder;

use super::features::MEMORY_SLOTS;
use super::handed::Region;
use super::refusal::Refusal;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::guest_ram::memory::GuestRam;
use crate::guest_ram::memory::GuestRegion;
use crate::guest_ram::tracking::Tracking;

/// `f_type` of a file of huge pages.
const HUGETLBFS: i64 = 0x9584_58f6;

/// What the mappings of one connection have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Common<'a> {
    /// Takes the writes.
    pub(super) log: &'a Arc<DirtyLog>,
    /// Has the faults, where the front-end cuts a file short.
    pub(super) domain: &'a Arc<FaultDomain>,
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

impl From<&Region> for Claim {
    fn from(region: &Region) -> Self {
        let Region { guest, length, user, offset } = *region;
        Self { guest, length, user, offset }
    }
}

/// The mapped table. Replaced as a whole: holders of the old one may still use it.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryTable {
    ram: Arc<GuestRam>,
    claims: Vec<Claim>,
}

impl MemoryTable {
    /// Maps a new table of a connection.
    pub(super) fn map(common: Common<'_>, claims: Vec<Claim>, files: Vec<File>) -> Result<Self, Refusal> {
        let mut regions = Vec::with_capacity(claims.len());
        for (claim, file) in claims.iter().zip(files) {
            regions.push(map_region(common, *claim, file)?);
        }
        regions.sort_by_key(|region| region.start_addr());
        Ok(Self { ram: Arc::new(GuestRam::from_arc_regions(regions)?), claims })
    }

    /// This table and one region more.
    pub(super) fn with(&self, common: Common<'_>, claim: Claim, file: File) -> Result<Self, Refusal> {
        if self.claims.len() >= MEMORY_SLOTS {
            return Err(Refusal::TooManyRegions(MEMORY_SLOTS));
        }
        let ram = self.ram.insert_region(map_region(common, claim, file)?)?;
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

    /// The regions, for another process.
    pub(super) fn regions(&self) -> Vec<Region> {
        let region = |claim: &Claim| {
            let Claim { guest, length, user, offset } = *claim;
            Region { guest, length, user, offset }
        };
        self.claims.iter().map(region).collect()
    }

    /// Another descriptor of the file that a region lies in.
    pub(super) fn file_of(&self, region: &Region) -> Option<io::Result<File>> {
        let found = self.ram.find_region(GuestAddress(region.guest))?;
        Some(found.file_offset()?.file().try_clone())
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

impl MemoryTable {
    /// Guest-physical address of an address of this process.
    pub(super) fn guest_address_of_host(&self, host: usize) -> Option<u64> {
        self.ram.iter().find_map(|region| {
            let within = host.checked_sub(region.as_ptr().addr()).filter(|within| *within < region.size())?;
            region.start_addr().0.checked_add(u64::try_from(within).ok()?)
        })
    }
}

fn map_region(common: Common<'_>, claim: Claim, file: File) -> Result<Arc<GuestRegion>, Refusal> {
    let address = claim.guest;
    let length = usize::try_from(claim.length).map_err(|_| Refusal::RegionOverflow { address })?;
    let end = claim.offset.checked_add(claim.length).ok_or(Refusal::RegionOverflow { address })?;
    let metadata = file.metadata().map_err(|source| Refusal::RegionFile { address, source })?;
    if metadata.is_file() && metadata.len() < end {
        return Err(Refusal::RegionPastFile { address });
    }
    // The kernel maps huge pages whole, and would leave part of one behind.
    let filesystem = fstatfs(&file).map_err(|errno| Refusal::RegionFile { address, source: errno.into() })?;
    let page = u64::try_from(filesystem.f_bsize).unwrap_or(0);
    if filesystem.f_type == HUGETLBFS
        && !(claim.offset.is_multiple_of(page) && claim.length.is_multiple_of(page))
    {
        return Err(Refusal::RegionPages { address, page });
    }
    let tracking = Tracking::new(Arc::clone(common.log), address);
    let region = MmapRegionBuilder::new_with_bitmap(length, tracking)
        .with_file_offset(FileOffset::new(file, claim.offset))
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_NORESERVE | libc::MAP_SHARED)
        .build()
        .map_err(|source| Refusal::RegionMap { address, source })?;
    // Guest RAM of most VMMs is not sealed against truncation, and what seals it can still lack pages.
    region
        .bitmap()
        .register(common.domain, &region)
        .map_err(|source| Refusal::RegionFile { address, source })?;
    let region =
        GuestRegion::new(region, GuestAddress(address)).ok_or(Refusal::RegionOverflow { address })?;
    Ok(Arc::new(region))
}

//! Guest memory, mapped.

use std::sync::Arc;

use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryMmap;
use vm_memory::GuestRegionMmap;
use vm_memory::MmapRegion;

use super::tracking::Tracking;

/// Guest memory: regions with their file and offset. What is written through it is marked in the connection's
/// dirty log, if there is one.
pub type GuestRam = GuestMemoryMmap<Tracking>;

/// One region of it.
pub type GuestRegion = GuestRegionMmap<Tracking>;

/// Whose the faults in guest memory are; none where no front-end has given it.
pub fn fault_domain(ram: &GuestRam) -> Option<&Arc<FaultDomain>> {
    ram.iter().find_map(|region| {
        let mapping: &MmapRegion<Tracking> = region;
        mapping.bitmap().domain()
    })
}

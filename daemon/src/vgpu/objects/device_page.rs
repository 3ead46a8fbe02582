//! Where the device page of a guest process lies.

use std::sync::Arc;

use campanile_host_gpu::memory::mapping::Mapping;

use super::ids::AllocationId;

/// The device page of a guest process.
#[derive(Debug)]
pub struct DevicePage {
    /// Its allocation; one reference.
    pub allocation: AllocationId,
    /// Where in the allocation it starts, bytes.
    pub offset: u64,
    /// Where the address space shows it.
    pub va: u64,
    /// The daemon's view of it, if it is guest RAM. Video memory is mapped as a whole, and may move.
    pub guest: Option<GuestPage>,
}

/// A device page in guest RAM.
#[derive(Debug, Clone)]
pub struct GuestPage {
    /// The daemon's view.
    pub mapping: Arc<Mapping>,
    /// Guest-physical address of each of its pages.
    pub addresses: Arc<[u64]>,
}

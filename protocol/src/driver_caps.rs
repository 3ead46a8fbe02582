//! What the device declares itself to be (MCDM-45 to MCDM-53): parts of the capability set.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// Version of the driver model that is followed, as the field counts: WDDM 3.2 (MCDM-45).
pub const MODEL_VERSION: u32 = 3200;

/// The device computes and shows nothing (MCDM-45).
pub const DRIVER_COMPUTE_ONLY: u32 = 1 << 0;
/// Engines reach memory through page tables of the device: each guest process has an address space (MCDM-44). Without
/// it, and without [`DRIVER_IOMMU`], the device is single-use (MCDM-43).
pub const DRIVER_GPU_MMU: u32 = 1 << 1;
/// Engines reach the memory of a process through the CPU's page tables: never set.
pub const DRIVER_IOMMU: u32 = 1 << 2;
/// The driver may run in a guest (MCDM-53).
pub const DRIVER_PARAVIRTUALIZATION_SUPPORTED: u32 = 1 << 3;
/// Nodes can be reset each for itself (MCDM-47).
pub const DRIVER_ENGINE_RESET: u32 = 1 << 4;
/// So can all of them together (MCDM-47).
pub const DRIVER_ADAPTER_RESET: u32 = 1 << 5;

/// The driver's declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DriverCaps {
    /// [`MODEL_VERSION`].
    pub model_version: u32,
    /// `DRIVER_*`.
    pub flags: u32,
    /// Displays, sources and targets: none (MCDM-45).
    pub displays: u32,
    /// Caps of display, flip, overlay, pointer and gamma: none (MCDM-48).
    pub display_caps: u32,
    /// Packets in a hardware queue as a scheduler may count them: 0, it does not (MCDM-46).
    pub hw_queue_packet_cap: u32,
    /// Power components: each engine of each node is one, with states F0 and F1 (MCDM-49); in the order of nodes, and
    /// within a node of its engines.
    pub power_components: u32,
    /// States of each power component.
    pub power_states: u32,
    /// Bits of a time stamp in a history buffer that mean something (MCDM-49).
    pub history_buffer_bits: u32,
    /// Ranges of video memory that may not be used: none, so no memory state need be asked for (MCDM-49).
    pub invalid_blocks: u32,
    /// Levels of page tables (MCDM-49).
    pub page_table_levels: u32,
    /// Bytes of a root page table (MCDM-51).
    pub root_page_table_bytes: u32,
    /// Bits of a GPU virtual address (MCDM-49).
    pub address_bits: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Segments described in the capability set.
    pub segment_count: u32,
}

/// Segments that a capability set describes.
pub const MAX_SEGMENTS: usize = 4;

/// Video memory that the CPU does not see.
pub const SEGMENT_KIND_LOCAL: u32 = 1;
/// Video memory that the CPU sees through the window.
pub const SEGMENT_KIND_VISIBLE: u32 = 2;
/// Guest RAM that engines work in.
pub const SEGMENT_KIND_APERTURE: u32 = 3;

/// Addresses follow one another: there are no others (MCDM-50).
pub const SEGMENT_LINEAR: u32 = 1 << 0;
/// The guest's CPU can map it.
pub const SEGMENT_CPU_VISIBLE: u32 = 1 << 1;
/// What lies in it can be moved to host memory and back, contents preserved.
pub const SEGMENT_EVICTABLE: u32 = 1 << 2;

/// Memory segment group: on the device.
pub const GROUP_LOCAL: u32 = 0;
/// Memory segment group: of the guest.
pub const GROUP_NON_LOCAL: u32 = 1;

/// A segment (MCDM-49, MCDM-50).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Segment {
    /// `SEGMENT_KIND_*`; zero where none is described.
    pub kind: u32,
    /// `SEGMENT_*`.
    pub flags: u32,
    /// `GROUP_*`.
    pub group: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes; of guest RAM zero, the guest knows that.
    pub bytes: u64,
    /// Bytes that may be allocated in its group, counting those that are evicted.
    pub commit_limit: u64,
}

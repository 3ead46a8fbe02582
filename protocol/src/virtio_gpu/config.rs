//! Device configuration space (virtio 1.3, 5.7.4).

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// `struct virtio_gpu_config`, 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Config {
    /// Pending events; none exist without displays.
    pub events_read: u32,
    /// Write to clear events.
    pub events_clear: u32,
    /// Displays: always 0 (MCDM-45).
    pub num_scanouts: u32,
    /// Capability sets.
    pub num_capsets: u32,
}

impl Config {
    /// What Campanile shows: no display, one capability set.
    pub const COMPUTE_ONLY: Self = Self { events_read: 0, events_clear: 0, num_scanouts: 0, num_capsets: 1 };
}

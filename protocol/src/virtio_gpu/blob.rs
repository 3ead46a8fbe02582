//! Blob resources (virtio 1.3, 5.7.6.8).

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// `VIRTIO_GPU_BLOB_MEM_GUEST`: the pages are the guest's, listed after the body.
pub const MEM_GUEST: u32 = 1;
/// `VIRTIO_GPU_BLOB_MEM_HOST3D`: the memory is video memory.
pub const MEM_HOST3D: u32 = 2;

/// `VIRTIO_GPU_BLOB_FLAG_USE_MAPPABLE`.
pub const FLAG_MAPPABLE: u32 = 1 << 0;
/// `VIRTIO_GPU_BLOB_FLAG_USE_SHAREABLE`.
pub const FLAG_SHAREABLE: u32 = 1 << 1;
/// Flags that Campanile knows.
pub const FLAGS_KNOWN: u32 = FLAG_MAPPABLE | FLAG_SHAREABLE;

/// Body of `RESOURCE_CREATE_BLOB`; `entry_count` [`MemEntry`] follow.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateBlob {
    /// The guest's number for the new resource, not zero, not in use.
    pub resource_id: u32,
    /// `MEM_*`.
    pub memory: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Entries that follow (MEM_GUEST).
    pub entry_count: u32,
    /// Zero: Campanile makes memory of one kind.
    pub blob_id: u64,
    /// Bytes, a multiple of the page size.
    pub size: u64,
}

/// One run of guest-physical memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemEntry {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Zero.
    pub padding: u32,
}

/// Body of `RESOURCE_MAP_BLOB`.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MapBlob {
    /// The resource.
    pub resource_id: u32,
    /// Zero.
    pub padding: u32,
    /// Bytes into the host-visible region, chosen by the guest.
    pub offset: u64,
}

/// `RESP_OK_MAP_INFO` caching: ordinary cached memory.
pub const MAP_CACHE_CACHED: u32 = 1;

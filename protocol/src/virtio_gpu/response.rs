//! Responses (virtio 1.3, 5.7.6.7).

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::command::Header;

/// `VIRTIO_GPU_RESP_OK_NODATA`.
pub const OK_NODATA: u32 = 0x1100;
/// `VIRTIO_GPU_RESP_OK_DISPLAY_INFO`.
pub const OK_DISPLAY_INFO: u32 = 0x1101;
/// `VIRTIO_GPU_RESP_OK_CAPSET_INFO`.
pub const OK_CAPSET_INFO: u32 = 0x1102;
/// `VIRTIO_GPU_RESP_OK_CAPSET`.
pub const OK_CAPSET: u32 = 0x1103;
/// `VIRTIO_GPU_RESP_OK_MAP_INFO`.
pub const OK_MAP_INFO: u32 = 0x1106;
/// `VIRTIO_GPU_RESP_ERR_UNSPEC`.
pub const ERR_UNSPEC: u32 = 0x1200;
/// `VIRTIO_GPU_RESP_ERR_OUT_OF_MEMORY`.
pub const ERR_OUT_OF_MEMORY: u32 = 0x1201;
/// `VIRTIO_GPU_RESP_ERR_INVALID_RESOURCE_ID`.
pub const ERR_INVALID_RESOURCE_ID: u32 = 0x1203;
/// `VIRTIO_GPU_RESP_ERR_INVALID_CONTEXT_ID`.
pub const ERR_INVALID_CONTEXT_ID: u32 = 0x1204;
/// `VIRTIO_GPU_RESP_ERR_INVALID_PARAMETER`.
pub const ERR_INVALID_PARAMETER: u32 = 0x1205;

/// Displays in `RESP_OK_DISPLAY_INFO`, used or not.
pub const MAX_SCANOUTS: usize = 16;
/// Bytes of one `struct virtio_gpu_display_one`.
pub const DISPLAY_BYTES: usize = 24;

/// `RESP_OK_DISPLAY_INFO`: every display off.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DisplayInfo {
    /// Code and fence.
    pub header: Header,
    /// All zero: no display.
    pub displays: [u8; MAX_SCANOUTS * DISPLAY_BYTES],
}

/// `RESP_OK_CAPSET_INFO`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CapsetInfo {
    /// Code and fence.
    pub header: Header,
    /// [`crate::capset::CAPSET_ID`].
    pub id: u32,
    /// Highest version.
    pub max_version: u32,
    /// Bytes of the set.
    pub max_size: u32,
    /// Zero.
    pub padding: u32,
}

/// `RESP_OK_MAP_INFO`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MapInfo {
    /// Code and fence.
    pub header: Header,
    /// `MAP_CACHE_*`.
    pub map_info: u32,
    /// Zero.
    pub padding: u32,
}

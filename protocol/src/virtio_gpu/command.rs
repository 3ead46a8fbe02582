//! Requests (virtio 1.3, 5.7.6.7 on).

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// `VIRTIO_GPU_CMD_GET_DISPLAY_INFO`.
pub const GET_DISPLAY_INFO: u32 = 0x0100;
/// `VIRTIO_GPU_CMD_RESOURCE_UNREF`.
pub const RESOURCE_UNREF: u32 = 0x0102;
/// `VIRTIO_GPU_CMD_GET_CAPSET_INFO`.
pub const GET_CAPSET_INFO: u32 = 0x0108;
/// `VIRTIO_GPU_CMD_GET_CAPSET`.
pub const GET_CAPSET: u32 = 0x0109;
/// `VIRTIO_GPU_CMD_RESOURCE_CREATE_BLOB`.
pub const RESOURCE_CREATE_BLOB: u32 = 0x010c;
/// `VIRTIO_GPU_CMD_CTX_CREATE`.
pub const CTX_CREATE: u32 = 0x0200;
/// `VIRTIO_GPU_CMD_CTX_DESTROY`.
pub const CTX_DESTROY: u32 = 0x0201;
/// `VIRTIO_GPU_CMD_CTX_ATTACH_RESOURCE`.
pub const CTX_ATTACH_RESOURCE: u32 = 0x0202;
/// `VIRTIO_GPU_CMD_CTX_DETACH_RESOURCE`.
pub const CTX_DETACH_RESOURCE: u32 = 0x0203;
/// `VIRTIO_GPU_CMD_SUBMIT_3D`.
pub const SUBMIT_3D: u32 = 0x0207;
/// `VIRTIO_GPU_CMD_RESOURCE_MAP_BLOB`.
pub const RESOURCE_MAP_BLOB: u32 = 0x0208;
/// `VIRTIO_GPU_CMD_RESOURCE_UNMAP_BLOB`.
pub const RESOURCE_UNMAP_BLOB: u32 = 0x0209;

/// Header flag: answer only when the command's work is done.
pub const FLAG_FENCE: u32 = 1 << 0;
/// Header flag: `ring_idx` names the timeline of the fence.
pub const FLAG_INFO_RING_IDX: u32 = 1 << 1;

/// `struct virtio_gpu_ctrl_hdr`: opens every request and every response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Command or response code.
    pub kind: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// The guest's own number for the fence, echoed.
    pub fence_id: u64,
    /// Context (one guest process).
    pub context_id: u32,
    /// Timeline within the context, with [`FLAG_INFO_RING_IDX`].
    pub ring_index: u8,
    /// Zero.
    pub padding: [u8; 3],
}

/// Body of `GET_CAPSET_INFO`.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetCapsetInfo {
    /// Which of the sets, from zero.
    pub index: u32,
    /// Zero.
    pub padding: u32,
}

/// Body of `GET_CAPSET`.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetCapset {
    /// [`crate::capset::CAPSET_ID`].
    pub id: u32,
    /// At most what `GET_CAPSET_INFO` said.
    pub version: u32,
}

/// Bytes of the debug name in `CTX_CREATE`.
pub const DEBUG_NAME_BYTES: usize = 64;
/// The part of `context_init` that holds the capset id.
pub const CONTEXT_INIT_CAPSET_MASK: u32 = 0xff;

/// Body of `CTX_CREATE`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ContextCreate {
    /// Bytes used of `debug_name`.
    pub name_length: u32,
    /// Capset id in the low byte.
    pub context_init: u32,
    /// Name of the guest process, not trusted.
    pub debug_name: [u8; DEBUG_NAME_BYTES],
}

/// Body of `CTX_ATTACH_RESOURCE`, `CTX_DETACH_RESOURCE`, `RESOURCE_UNREF` and `RESOURCE_UNMAP_BLOB`.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResourceName {
    /// The guest's number for the resource.
    pub resource_id: u32,
    /// Zero.
    pub padding: u32,
}

/// Body of `SUBMIT_3D`; `size` bytes of control frames follow.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submit3d {
    /// Bytes that follow.
    pub size: u32,
    /// Zero.
    pub padding: u32,
}

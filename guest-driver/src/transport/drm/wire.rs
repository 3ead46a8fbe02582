//! Structures and numbers of `drm.h` and `virtgpu_drm.h`, as plain data.

/// `struct drm_version`, of which only the driver's name is asked for.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Version {
    pub(super) numbers: [i32; 3],
    pub(super) name_length: usize,
    pub(super) name: u64,
    pub(super) date_length: usize,
    pub(super) date: u64,
    pub(super) description_length: usize,
    pub(super) description: u64,
}

/// `struct drm_gem_close`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct GemClose {
    pub(super) handle: u32,
    pub(super) padding: u32,
}

/// `struct drm_virtgpu_map`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Map {
    pub(super) offset: u64,
    pub(super) handle: u32,
    pub(super) padding: u32,
}

/// `struct drm_virtgpu_execbuffer` as of Linux 5.16; what later kernels added reads as zero.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ExecBuffer {
    pub(super) flags: u32,
    pub(super) size: u32,
    pub(super) command: u64,
    pub(super) bo_handles: u64,
    pub(super) bo_handle_count: u32,
    pub(super) fence_fd: i32,
    pub(super) ring_index: u32,
    pub(super) padding: u32,
}

/// `VIRTGPU_EXECBUF_FENCE_FD_OUT`.
pub(super) const EXEC_FENCE_FD_OUT: u32 = 1 << 1;
/// `VIRTGPU_EXECBUF_RING_IDX`.
pub(super) const EXEC_RING_IDX: u32 = 1 << 2;

/// `struct drm_virtgpu_getparam`; `value` is the address of an `int`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct GetParam {
    pub(super) param: u64,
    pub(super) value: u64,
}

/// `VIRTGPU_PARAM_RESOURCE_BLOB`.
pub(super) const PARAM_RESOURCE_BLOB: u64 = 3;
/// `VIRTGPU_PARAM_HOST_VISIBLE`.
pub(super) const PARAM_HOST_VISIBLE: u64 = 4;
/// `VIRTGPU_PARAM_CONTEXT_INIT`.
pub(super) const PARAM_CONTEXT_INIT: u64 = 6;
/// `VIRTGPU_PARAM_SUPPORTED_CAPSET_IDs`.
pub(super) const PARAM_SUPPORTED_CAPSETS: u64 = 7;

/// `struct drm_virtgpu_get_caps`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct GetCaps {
    pub(super) id: u32,
    pub(super) version: u32,
    pub(super) address: u64,
    pub(super) size: u32,
    pub(super) padding: u32,
}

/// `struct drm_virtgpu_resource_create_blob`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CreateBlob {
    pub(super) memory: u32,
    pub(super) flags: u32,
    pub(super) bo_handle: u32,
    pub(super) resource: u32,
    pub(super) size: u64,
    pub(super) padding: u32,
    pub(super) command_size: u32,
    pub(super) command: u64,
    pub(super) blob_id: u64,
}

/// `struct drm_virtgpu_context_init`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ContextInit {
    pub(super) param_count: u32,
    pub(super) padding: u32,
    pub(super) params: u64,
}

/// `struct drm_virtgpu_context_set_param`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ContextParam {
    pub(super) param: u64,
    pub(super) value: u64,
}

/// `VIRTGPU_CONTEXT_PARAM_CAPSET_ID`.
pub(super) const CONTEXT_CAPSET_ID: u64 = 1;
/// `VIRTGPU_CONTEXT_PARAM_NUM_RINGS`.
pub(super) const CONTEXT_NUM_RINGS: u64 = 2;
/// `VIRTGPU_CONTEXT_PARAM_POLL_RINGS_MASK`.
pub(super) const CONTEXT_POLL_RINGS_MASK: u64 = 3;

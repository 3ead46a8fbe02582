//! A guest process in a VM: the stock virtio-gpu driver of Linux, through its render node.
//!
//! ```text
//!   node      /dev/dri/renderD* ─▶ driver virtio_gpu ─▶ capset 24 ─▶ CONTEXT_INIT (64 rings)
//!   context   create_blob  RESOURCE_CREATE_BLOB    the kernel sends CREATE_BLOB, ATTACH, MAP by itself
//!             map          MAP, mmap ──▶ mapping   and waits in mmap until the device has placed the blob
//!             submit       EXECBUFFER ─▶ sync_file fence of one ring; poll waits for it
//!             destroy_blob GEM_CLOSE               the kernel sends DETACH, UNMAP, UNREF
//! ```
//!
//! * What the kernel answers before the device does it (creation, end of a blob) reads as done here. A blob that the
//!   device refused shows when it is mapped, by the CPU or the GPU.
//! * A daemon that ends is not seen by the guest's kernel: what waits for it, waits. Bound waits where that matters.
//! * A device that is unplugged without a word ends its programs' waits, and leaves zeros where they had it mapped (`gone.rs`).
//! * `ioctl.rs`, `gone.rs` and `mapping.rs` hold all unsafe code; `wire.rs` the structures of Linux'
//!   `include/uapi/drm/virtgpu_drm.h`.

pub mod context;
mod gone;
mod ioctl;
mod mapping;
pub mod node;
mod sync_file;
mod wire;

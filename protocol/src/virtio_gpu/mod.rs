//! The virtio-gpu commands that Campanile answers (virtio 1.3, 5.7), as plain data.
//!
//! ```text
//!   controlq:  [ command.., entries / payload ]  ──▶  [ response ]
//!              one descriptor chain a command; device-readable part first
//! ```

pub mod blob;
pub mod command;
pub mod config;
pub mod response;

/// Device id of virtio-gpu (virtio 1.3, 5.7.1).
pub const DEVICE_ID: u32 = 16;
/// Queue 0 (virtio 1.3, 5.7.2).
pub const CONTROL_QUEUE: u16 = 0;
/// Queue 1; Campanile has no cursor and answers what comes there with an error.
pub const CURSOR_QUEUE: u16 = 1;
/// Queues of the device.
pub const QUEUE_COUNT: u16 = 2;

/// Feature bit: 3D commands (virtio 1.3, 5.7.3).
pub const F_VIRGL: u64 = 1 << 0;
/// Feature bit: blob resources.
pub const F_RESOURCE_BLOB: u64 = 1 << 3;
/// Feature bit: several timelines and capset ids in CTX_CREATE.
pub const F_CONTEXT_INIT: u64 = 1 << 4;

/// Shared memory region that shows the CPU-visible aperture to the guest (virtio 1.3, 5.7.6.10).
pub const SHM_HOST_VISIBLE: u8 = 1;

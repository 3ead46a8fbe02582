//! Bodies of control messages, by code. All reserved fields are zero, or the message is refused.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::frame::MAX_CONTROL_BYTES;
use crate::engine::message::MAX_NAME_BYTES;
use crate::engine::message::MAX_SOURCE_BYTES;
use crate::handle::Handle;

/// [`CreateDevice`]; the first message of a context.
pub const CREATE_DEVICE: u32 = 1;
/// No body: ends the device and all that it made.
pub const DESTROY_DEVICE: u32 = 2;
/// [`MapMemory`] → [`super::reply::Paging`].
pub const MAP_MEMORY: u32 = 4;
/// [`UnmapMemory`] → [`super::reply::Paging`].
pub const UNMAP_MEMORY: u32 = 5;
/// [`CreateContext`] → [`super::reply::Created`].
pub const CREATE_CONTEXT: u32 = 6;
/// [`Named`].
pub const DESTROY_CONTEXT: u32 = 7;
/// [`CreateQueue`] → [`super::reply::QueueCreated`].
pub const CREATE_QUEUE: u32 = 8;
/// [`Named`].
pub const DESTROY_QUEUE: u32 = 9;
/// [`CreateDoorbell`] → [`super::reply::DoorbellCreated`].
pub const CREATE_DOORBELL: u32 = 10;
/// [`Named`] → [`super::reply::DoorbellConnected`].
pub const CONNECT_DOORBELL: u32 = 11;
/// [`Named`].
pub const DESTROY_DOORBELL: u32 = 12;
/// [`Notify`]: work was submitted on a queue (UMS-94).
pub const NOTIFY: u32 = 13;
/// [`CreateKernel`], then the entry point's name, then the source → [`super::reply::KernelCreated`]. Languages: WGSL (1), SPIR-V (2), a
/// pipeline (3), and a pipeline whose SPIR-V is deflated (4; at most 1 MiB once inflated).
pub const CREATE_KERNEL: u32 = 14;
/// [`Named`]; answered when no engine knows it any more: whatever is rung after that and names it faults.
pub const DESTROY_KERNEL: u32 = 15;
/// [`Submit`] → [`super::reply::Submitted`]: ordinary (kernel-mode) submission.
pub const SUBMIT: u32 = 16;
/// [`WaitFence`]; answered when the fence is there, or its device is lost.
pub const WAIT_FENCE: u32 = 17;
/// No body → [`crate::capset::Capset`].
pub const QUERY_CAPS: u32 = 18;
/// No body → [`crate::profile::Profile`]; NOT_SUPPORTED where no node runs kernels. Since version 1.1.
pub const QUERY_PROFILE: u32 = 19;
/// [`Named`] → [`super::reply::Suspended`], once nothing of the context is left on the GPU (UMS-109, UMS-110).
pub const SUSPEND_CONTEXT: u32 = 24;
/// [`Named`]: the context runs again; whatever came to its queues meanwhile is found (UMS-105).
pub const RESUME_CONTEXT: u32 = 25;

/// Opens the process's device over a device page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateDevice {
    /// [`crate::PROTOCOL_VERSION`] of the guest.
    pub protocol_version: u32,
    /// The attached resource that holds the device page.
    pub page_resource: u32,
    /// Where in it the device page starts, a multiple of the page size.
    pub page_offset: u64,
    /// Where in the process's address space the device page is mapped.
    pub page_va: u64,
}

/// Maps a range of a resource into the process's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MapMemory {
    /// An attached resource.
    pub resource: u32,
    /// Bit 0: stores are allowed.
    pub flags: u32,
    /// Bytes into the resource, a multiple of the page size.
    pub offset: u64,
    /// GPU virtual address, a multiple of the page size.
    pub va: u64,
    /// Bytes, a multiple of the page size.
    pub size: u64,
}

/// [`MapMemory`] flag: stores are allowed.
pub const MAP_WRITABLE: u32 = 1;

/// Unmaps exactly one earlier mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UnmapMemory {
    /// Its address.
    pub va: u64,
    /// Its size.
    pub size: u64,
}

/// Creates a context: one software queue for one node (MCDM-02, MCDM-04).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateContext {
    /// NodeOrdinal (TDR-05).
    pub node: u32,
    /// Exactly one bit, `1 << EngineOrdinal` (TDR-09).
    pub engine_affinity: u32,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// Names an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Named {
    /// The object.
    pub handle: Handle,
}

/// Creates a queue of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQueue {
    /// The context.
    pub context: Handle,
    /// `QUEUE_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// Queue flag DisableGpuTimeout (UMS-27).
pub const QUEUE_DISABLE_GPU_TIMEOUT: u32 = 0x1;
/// Queue flag UserModeSubmission (UMS-25).
pub const QUEUE_USER_MODE_SUBMISSION: u32 = 0x10;
/// Queue flag NativeProgressFence (UMS-27, UMS-29).
pub const QUEUE_NATIVE_PROGRESS_FENCE: u32 = 0x20;
/// Queue flags that Campanile knows.
pub const QUEUE_FLAGS_KNOWN: u32 =
    QUEUE_DISABLE_GPU_TIMEOUT | QUEUE_USER_MODE_SUBMISSION | QUEUE_NATIVE_PROGRESS_FENCE;

/// Most private bytes of a doorbell (UMS-43).
pub const DOORBELL_PRIVATE_BYTES: usize = 16;

/// Creates the doorbell of a user-mode queue (UMS-31).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateDoorbell {
    /// The queue.
    pub queue: Handle,
    /// GPU virtual address of the ring, a multiple of 64.
    pub ring_va: u64,
    /// GPU virtual address of the ring control, a multiple of 64.
    pub control_va: u64,
    /// Resource that holds the ring.
    pub ring_resource: u32,
    /// Resource that holds the ring control.
    pub control_resource: u32,
    /// Entries of the ring, a power of two.
    pub ring_entries: u32,
    /// `DOORBELL_*`.
    pub flags: u32,
    /// Bytes used of `private_data`, at most [`DOORBELL_PRIVATE_BYTES`].
    pub private_bytes: u32,
    /// Zero.
    pub reserved: u32,
    /// The guest driver's own, given back.
    pub private_data: [u8; DOORBELL_PRIVATE_BYTES],
}

/// Doorbell flag RequireSecondaryCpuVA: refused, no node has secondary doorbells (UMS-41).
pub const DOORBELL_REQUIRE_SECONDARY: u32 = 1;
/// Doorbell flag ResizeRingBufferOperation, a hint (UMS-42).
pub const DOORBELL_RESIZE_RING: u32 = 2;

/// Doorbell flag: connects answer CONNECTED_NOTIFY (UMS-51, UMS-58). The engine does not poll for the queue; the guest
/// sends NOTIFY after each ring.
pub const DOORBELL_NOTIFY: u32 = 4;

/// Tells the daemon that work was submitted (UMS-94).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Notify {
    /// The queue.
    pub queue: Handle,
    /// Zero (UMS-96).
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// Most bytes of the name of a kernel's entry point.
pub const MAX_ENTRY_BYTES: u32 = MAX_NAME_BYTES;

const _: () =
    assert!(MAX_CONTROL_BYTES <= MAX_SOURCE_BYTES, "an engine takes each source that a guest can send");

/// Compiles a kernel for the compute node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateKernel {
    /// `LANGUAGE_*`.
    pub language: u32,
    /// Bytes of the entry point's name, 0 when the module has only one. At most [`MAX_ENTRY_BYTES`] of UTF-8 without
    /// control characters.
    pub entry_bytes: u32,
    /// Bytes of the source behind it.
    pub source_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

/// WGSL text.
pub const LANGUAGE_WGSL: u32 = 1;
/// SPIR-V words.
pub const LANGUAGE_SPIRV: u32 = 2;
/// SPIR-V words behind what a pipeline fixes of them: [`super::pipeline::Head`]. Since version 1.1.
pub const LANGUAGE_SPIRV_PIPELINE: u32 = 3;
/// The same with words that are deflated (RFC 1951), at most [`super::pipeline::MAX_MODULE_BYTES`] of them: for modules that one message does
/// not hold. Daemons that do not know it refuse it (NOT_SUPPORTED).
pub const LANGUAGE_SPIRV_PIPELINE_DEFLATED: u32 = 4;
/// Every language.
pub const LANGUAGES: [u32; 4] =
    [LANGUAGE_WGSL, LANGUAGE_SPIRV, LANGUAGE_SPIRV_PIPELINE, LANGUAGE_SPIRV_PIPELINE_DEFLATED];

/// Submits a DMA buffer through the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submit {
    /// An ordinary queue.
    pub queue: Handle,
    /// GPU virtual address of the buffer, a multiple of 8.
    pub buffer_va: u64,
    /// Bytes, a multiple of 8, at most [`crate::packet::MAX_DMA_BUFFER`]; 0 is an empty buffer.
    pub length: u32,
    /// Zero.
    pub flags: u32,
}

/// Waits until a queue's progress fence is `value` or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WaitFence {
    /// The queue.
    pub queue: Handle,
    /// The value.
    pub value: u64,
}

//! Messages between the daemon and an engine process: one packet of a socket each.
//!
//! ```text
//!   Header │ the fixed part of its type │ variable parts, in the order of their lengths in the fixed part
//! ```
//!
//! A packet has exactly the bytes that its lengths add up to. Neither end trusts the other: an unknown type, a length
//! that does not add up, a field outside its values, text that is not UTF-8, and descriptors that the type does not
//! have are refused. Reserved fields are zero.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// First word of a packet: "CPE1". Another layout has another one.
pub const MAGIC: u32 = u32::from_le_bytes(*b"CPE1");
/// Most descriptors beside one packet.
pub const MAX_DESCRIPTORS: u32 = 32;
/// Most bytes of a name: of an entry point, a policy, a device.
pub const MAX_NAME_BYTES: u32 = 256;
/// Most bytes of a reason in words.
pub const MAX_REASON_BYTES: u32 = 16 * 1024;
/// Most bytes of a kernel's source.
pub const MAX_SOURCE_BYTES: u32 = 128 * 1024;
/// Most bytes of a packet to an engine.
pub const MAX_REQUEST_BYTES: u32 = 256 + MAX_NAME_BYTES + MAX_SOURCE_BYTES;
/// Most bytes of a packet from an engine.
pub const MAX_RESPONSE_BYTES: u32 = 256 + MAX_REASON_BYTES;

/// [`Start`]: the first packet to an engine.
pub const START: u32 = 1;
/// No fixed part: descriptors alone, for a process that is no engine.
pub const HANDOVER: u32 = 2;
/// [`Begin`].
pub const BEGIN: u32 = 0x10;
/// [`AddSegment`].
pub const ADD_SEGMENT: u32 = 0x11;
/// [`RemoveSegment`].
pub const REMOVE_SEGMENT: u32 = 0x12;
/// [`CreateKernel`].
pub const CREATE_KERNEL: u32 = 0x13;
/// [`DestroyKernel`].
pub const DESTROY_KERNEL: u32 = 0x14;
/// [`Move`].
pub const MOVE: u32 = 0x15;
/// [`Started`]: the first packet from an engine, once.
pub const STARTED: u32 = 0x80;
/// [`Refused`]: the first packet from an engine, and the last.
pub const REFUSED: u32 = 0x81;
/// [`SegmentAdded`]: answers ADD_SEGMENT.
pub const SEGMENT_ADDED: u32 = 0x82;
/// [`SegmentRefused`]: answers ADD_SEGMENT.
pub const SEGMENT_REFUSED: u32 = 0x83;
/// [`KernelCreated`]: answers CREATE_KERNEL.
pub const KERNEL_CREATED: u32 = 0x84;
/// [`KernelRefused`]: answers CREATE_KERNEL.
pub const KERNEL_REFUSED: u32 = 0x85;
/// [`KernelDestroyed`]: answers DESTROY_KERNEL.
pub const KERNEL_DESTROYED: u32 = 0x86;
/// [`Moved`]: answers MOVE.
pub const MOVED: u32 = 0x87;
/// [`MoveRefused`]: answers MOVE.
pub const MOVE_REFUSED: u32 = 0x88;
/// [`Passport`]: answers a [`Start`] with [`START_ALLOCATE`], and is the last packet. Descriptor: the memory.
pub const ALLOCATED: u32 = 0x89;
/// No fixed part: answers a [`Start`] with [`START_AHEAD`], before all else.
pub const OPENED: u32 = 0x8a;

/// Opens every packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// The type of the message.
    pub kind: u32,
    /// Bytes of the packet, with this header.
    pub size: u32,
    /// Descriptors beside it.
    pub descriptors: u32,
}

/// Node 0: kernels, copies, fills. In [`Start::node`].
pub const NODE_COMPUTE: u32 = 0;
/// Node 1: copies and fills. In [`Start::node`].
pub const NODE_COPY: u32 = 1;
/// In [`Start::tracking`]: nothing that it writes is tracked.
pub const TRACKING_OFF: u32 = 0;
/// In [`Start::tracking`]: the kernel notes the pages.
pub const TRACKING_WRITE_PROTECT: u32 = 1;
/// In [`Start::tracking`]: the engine notes the ranges; one more descriptor comes along.
pub const TRACKING_BOUND_RANGES: u32 = 2;
/// In [`Start::flags`]: privileges are dropped.
pub const START_SANDBOX: u32 = 1;
/// In [`Start::flags`]: a device is named.
pub const START_DEVICE: u32 = 2;
/// In [`Start::flags`]: local memory is the device's own. [`LocalMemory`] follows the fixed part, and the last two descriptors
/// are that memory and what is evicted.
pub const START_LOCAL: u32 = 4;
/// In [`Start::flags`]: it is no engine, but allocates local memory. [`LocalMemory`] follows, of which only `bytes` counts.
pub const START_ALLOCATE: u32 = 8;
/// In [`Start::flags`]: the driver is to be opened, and what the engine works on comes with another [`Start`]: no descriptor comes
/// with this one.
pub const START_AHEAD: u32 = 16;
/// In [`Start::flags`]: its work may be in the realtime band, so its device's queues are to have a high global priority.
pub const START_REALTIME: u32 = 32;
/// In [`Start::flags`]: where the bits of the number of the vGPU's profile begin ([`crate::named_profile::GpuProfile::number`]).
pub const START_PROFILE_SHIFT: u32 = 8;
/// In [`Start::flags`]: those bits.
pub const START_PROFILE: u32 = 0xff << START_PROFILE_SHIFT;
/// Most MiB of the log of compiled code.
pub const MAX_CODE_MIB: u32 = 1024;

/// What an engine is to be; then [`LocalMemory`] where a flag says so, the policy's name, the device's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Start {
    /// Bytes of VRAM.
    pub vram_bytes: u64,
    /// Bytes of the page-table file.
    pub table_bytes: u64,
    /// Microseconds without work before the engine asks for F1.
    pub spin_microseconds: u64,
    /// Microseconds of a slice of a dispatch; 0 for whole dispatches.
    pub slice_microseconds: u64,
    /// `NODE_*`.
    pub node: u32,
    /// `TRACKING_*`.
    pub tracking: u32,
    /// `START_*`, and in [`START_PROFILE`] a profile.
    pub flags: u32,
    /// Bytes of the policy's name.
    pub policy_bytes: u32,
    /// Bytes of the device's name.
    pub device_bytes: u32,
    /// MiB of the log of compiled code, up to [`MAX_CODE_MIB`], which is one more descriptor behind the first seven; 0 for none.
    pub code_mib: u32,
}

/// It may touch what is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Begin {
    /// Serial of the last request about segments that comes first, or 0.
    pub segments: u64,
}

/// Maps runs of files as one segment. Descriptors: the list, then the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AddSegment {
    /// Counts the requests about segments.
    pub serial: u64,
    /// Records in the list.
    pub runs: u64,
    /// Its number.
    pub segment: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// Forgets a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RemoveSegment {
    /// As in [`AddSegment`].
    pub serial: u64,
    /// Its number.
    pub segment: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// Compiles a kernel; then the entry point's name, then the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateKernel {
    /// Address space of the kernel.
    pub root: u64,
    /// The guest's handle.
    pub handle: u64,
    /// `LANGUAGE_*` of the guest's message.
    pub language: u32,
    /// Bytes of the entry point's name; 0 for none.
    pub entry_bytes: u32,
    /// Bytes of the source.
    pub source_bytes: u32,
    /// 1: nothing is compiled beside it; 0: anything may be.
    pub alone: u32,
}

/// Forgets a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyKernel {
    /// Address space of the kernel.
    pub root: u64,
    /// The guest's handle.
    pub handle: u64,
}

/// The engine is up; then the device's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Started {
    /// Where it has video memory mapped.
    pub vram: u64,
    /// 1 when all that it stores goes through its own mappings, else 0.
    pub is_cpu: u32,
    /// Bytes of the device's name.
    pub device_bytes: u32,
    /// 1 when a [`crate::profile::Profile`] follows the fixed part, else 0: the node runs no kernels.
    pub has_profile: u32,
    /// Zero.
    pub reserved: u32,
}

/// The engine cannot run; then why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Refused {
    /// Bytes of the reason.
    pub reason_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

/// The segment is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentAdded {
    /// That of the request.
    pub serial: u64,
    /// Where it is mapped; 0 where that is not told.
    pub address: u64,
    /// Its number.
    pub segment: u16,
    /// Zero.
    pub reserved: u16,
    /// 1 when the address is told, else 0.
    pub has_address: u32,
}

/// The segment could not be mapped; then why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentRefused {
    /// Its number.
    pub segment: u16,
    /// Zero.
    pub reserved: u16,
    /// Bytes of the reason.
    pub reason_bytes: u32,
}

/// The kernel is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KernelCreated {
    /// Address space of the kernel.
    pub root: u64,
    /// The guest's handle.
    pub handle: u64,
    /// Threads of a group.
    pub workgroup: [u32; 3],
    /// Buffers that a dispatch must bind.
    pub binding_count: u32,
    /// Constant bytes that a dispatch must carry.
    pub constant_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

/// The kernel was refused; then why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KernelRefused {
    /// Address space of the kernel.
    pub root: u64,
    /// The guest's handle.
    pub handle: u64,
    /// Bytes of the reason.
    pub reason_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

/// The kernel is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KernelDestroyed {
    /// Address space of the kernel.
    pub root: u64,
    /// The guest's handle.
    pub handle: u64,
}

/// What a driver must know of memory to import it by its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Passport {
    /// Bytes of the allocation.
    pub length: u64,
    /// Vulkan's index of its type.
    pub type_index: u32,
    /// Zero.
    pub reserved: u32,
    /// UUID of the device.
    pub device: [u8; 16],
    /// UUID of its driver.
    pub driver: [u8; 16],
}

/// Local memory in a device's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LocalMemory {
    /// Where it begins in the video memory, bytes.
    pub start: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Bytes of the file that what is evicted lies in.
    pub evicted_bytes: u64,
    /// How it is imported.
    pub passport: Passport,
}

/// In [`Move::from`]: zeroes; the offset is 0.
pub const SIDE_ZERO: u32 = 0;
/// In [`Move`]: local memory, by its offset in the video memory.
pub const SIDE_LOCAL: u32 = 1;
/// In [`Move`]: the head of the video memory, which the CPU sees.
pub const SIDE_VISIBLE: u32 = 2;
/// In [`Move`]: what is evicted.
pub const SIDE_EVICTED: u32 = 3;

/// Has memory copied by the device, beside the work of guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Move {
    /// Counts these requests.
    pub serial: u64,
    /// Where it is copied from, bytes.
    pub from_offset: u64,
    /// Where it is copied to, bytes.
    pub to_offset: u64,
    /// Bytes, whole pages.
    pub bytes: u64,
    /// `SIDE_*`.
    pub from: u32,
    /// `SIDE_*`, but for [`SIDE_ZERO`].
    pub to: u32,
}

/// It is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Moved {
    /// That of the request.
    pub serial: u64,
}

/// It could not be copied; then why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MoveRefused {
    /// That of the request.
    pub serial: u64,
    /// Bytes of the reason.
    pub reason_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

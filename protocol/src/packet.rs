//! What a DMA buffer is made of: packets, one behind the other.
//!
//! ```text
//!   [ header | body ][ header | body ] …        header.size counts both, a multiple of 8
//! ```

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use crate::handle::Handle;

/// Largest DMA buffer, bytes.
pub const MAX_DMA_BUFFER: u32 = 64 * 1024;
/// Most buffers that a dispatch binds; 16 before version 1.1.
pub const MAX_BINDINGS: u32 = 64;
/// Most constant bytes that a dispatch carries, where the device takes so many; 128 before version 1.1.
pub const MAX_CONSTANTS: u32 = 256;

/// Does nothing; its body is ignored.
pub const NOP: u16 = 0;
/// [`Copy`].
pub const COPY: u16 = 1;
/// [`Fill`].
pub const FILL: u16 = 2;
/// [`Dispatch`], then [`Binding`]s, then constants.
pub const DISPATCH: u16 = 3;
/// [`DispatchIndirect`], then [`Binding`]s, then constants.
pub const DISPATCH_INDIRECT: u16 = 4;
/// What follows sees all that came before. No body.
pub const BARRIER: u16 = 5;
/// [`Fence`]: stores `value` after all that came before.
pub const FENCE_SIGNAL: u16 = 6;
/// [`Fence`]: goes on once the word is `value` or more.
pub const FENCE_WAIT: u16 = 7;
/// [`Timestamp`].
pub const TIMESTAMP: u16 = 8;
/// [`DispatchBase`], then [`Binding`]s, then constants (version 1.1).
pub const DISPATCH_BASE: u16 = 9;

/// Opens every packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PacketHeader {
    /// One of the codes above.
    pub opcode: u16,
    /// Zero.
    pub flags: u16,
    /// Bytes of header and body, a multiple of 8.
    pub size: u32,
}

/// Copies `size` bytes between ranges that do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Copy {
    /// GPU virtual address read.
    pub source_va: u64,
    /// GPU virtual address written.
    pub target_va: u64,
    /// Bytes.
    pub size: u64,
}

/// Fills `size` bytes with a 32-bit pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Fill {
    /// GPU virtual address written, a multiple of 4.
    pub target_va: u64,
    /// Bytes, a multiple of 4.
    pub size: u64,
    /// The pattern.
    pub value: u32,
    /// Zero.
    pub reserved: u32,
}

/// Runs a kernel over a grid of thread groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Dispatch {
    /// The kernel.
    pub kernel: Handle,
    /// Thread groups in x, y, z.
    pub groups: [u32; 3],
    /// [`Binding`]s that follow, at most [`MAX_BINDINGS`].
    pub binding_count: u32,
    /// Constant bytes after those, a multiple of 4, at most [`MAX_CONSTANTS`]; padded to 8.
    pub constant_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

/// As [`Dispatch`], with thread groups that are numbered from a base; how many there are is what the kernel is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DispatchBase {
    /// What runs.
    pub dispatch: Dispatch,
    /// Number of the first thread group in x, y, z.
    pub base: [u32; 3],
    /// Zero.
    pub reserved: u32,
}

/// As [`Dispatch`], with the grid read from memory (three 32-bit words) when the packet runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DispatchIndirect {
    /// The kernel.
    pub kernel: Handle,
    /// GPU virtual address of the grid, a multiple of 4.
    pub groups_va: u64,
    /// As in [`Dispatch`].
    pub binding_count: u32,
    /// As in [`Dispatch`].
    pub constant_bytes: u32,
}

/// One buffer of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Binding {
    /// GPU virtual address, a multiple of 256.
    pub va: u64,
    /// Bytes, a multiple of 4; of a texel where it has a format.
    pub length: u64,
    /// The kernel's binding number within `set`.
    pub slot: u16,
    /// The format of a texel buffer, one of [`crate::texels::FORMATS`] by its code; 0 for any other buffer, and where the profile has no
    /// [`crate::profile::FEATURE_TEXEL_BUFFERS`].
    pub format: u16,
    /// The kernel's descriptor set, a `@group` in WGSL; 0 before version 1.1.
    pub set: u16,
    /// Which buffer of a binding that is an array of them; 0 where it is none, and before version 1.1.
    pub element: u16,
}

impl Binding {
    /// `length` bytes at `va`, for binding number `slot` of set 0.
    #[must_use]
    pub fn new(va: u64, length: u64, slot: u32) -> Self {
        // Of numbers that do not fit no kernel has any, nor has it this one.
        let slot = u16::try_from(slot).unwrap_or(u16::MAX);
        Self { va, length, slot, format: 0, set: 0, element: 0 }
    }

    /// The same bytes as texels of a format ([`crate::texels::Format::code`]).
    #[must_use]
    pub const fn as_texels(self, format: u16) -> Self {
        Self { format, ..self }
    }

    /// The same bytes for a binding of another descriptor set.
    #[must_use]
    pub const fn in_set(self, set: u16) -> Self {
        Self { set, ..self }
    }

    /// The same bytes for one element of a binding that is an array of buffers.
    #[must_use]
    pub const fn as_element(self, element: u16) -> Self {
        Self { element, ..self }
    }
}

/// Alignment of a binding's address.
pub const BINDING_ALIGNMENT: u64 = 256;

/// A fence operation on a 64-bit word of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Fence {
    /// GPU virtual address of the word, a multiple of 8.
    pub va: u64,
    /// The value stored, or waited for.
    pub value: u64,
}

/// Stores the host's monotonic clock, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Timestamp {
    /// GPU virtual address of the 64-bit word, a multiple of 8.
    pub va: u64,
}

/// Why a buffer could not be run; stops its queue and puts its device in error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Fault {
    /// The write pointer went backwards or too far (UMS-93).
    WritePointer = 1,
    /// A ring entry breaks a rule: misaligned, too long, reserved bits.
    RingEntry = 2,
    /// A fence value that does not rise (UMS-84).
    FenceValue = 3,
    /// An address that is not mapped, or not for that access.
    PageFault = 4,
    /// A packet whose size is wrong for what it says it is.
    PacketSize = 5,
    /// A packet code that does not exist.
    UnknownPacket = 6,
    /// A field of a packet breaks a rule.
    PacketField = 7,
    /// A packet that this node does not run.
    NotOnThisNode = 8,
    /// A kernel handle that names none.
    UnknownKernel = 9,
    /// Bindings that do not fit the kernel.
    Bindings = 10,
    /// The driver failed under the kernel.
    Driver = 11,
    /// What was saved of a buffer is not in its save area, or cannot be; or the area was never initialised. Nothing that a
    /// guest does leads to it.
    SaveArea = 12,
}

impl Fault {
    /// Decodes a word from the shared block.
    pub const fn from_word(word: u32) -> Option<Self> {
        Some(match word {
            1 => Self::WritePointer,
            2 => Self::RingEntry,
            3 => Self::FenceValue,
            4 => Self::PageFault,
            5 => Self::PacketSize,
            6 => Self::UnknownPacket,
            7 => Self::PacketField,
            8 => Self::NotOnThisNode,
            9 => Self::UnknownKernel,
            10 => Self::Bindings,
            11 => Self::Driver,
            12 => Self::SaveArea,
            _ => return None,
        })
    }
}

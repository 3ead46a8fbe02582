//! Bodies of calls. Every reserved field is zero, or the call is refused.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::call::MAX_CALL_BYTES;
use super::call::RequestHeader;

/// Reply of CAPSET; [`crate::capset::Capset`] follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct About {
    /// Bytes of the aperture (an ivshmem device) that the daemon has found in the VM's memory; 0: none.
    pub aperture_bytes: u64,
    /// Another number after each reset of the device and each start of the daemon; the same after a migration.
    pub generation: u32,
    /// Bytes of the capability set that follows.
    pub capset_bytes: u32,
}

/// In [`CreateBlob::memory`]: a range of the aperture, zeroed.
pub const MEMORY_APERTURE: u32 = 1;
/// Pages of the process, which it registers next, each once, in any order and grouping: by reads at
/// [`super::place::registration`] on a file that has joined the session. Whole pages; one read at most
/// [`super::MAX_TRANSFER`] (the guest's kernel splits longer ones).
pub const MEMORY_PAGES: u32 = 2;
/// Video memory, which the CPU of the guest does not see.
pub const MEMORY_VIDEO: u32 = 3;

/// Body of CREATE_BLOB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateBlob {
    /// `MEMORY_*`.
    pub memory: u32,
    /// Zero.
    pub flags: u32,
    /// Bytes, a multiple of the page size; registered pages at most [`super::place::MAX_REGISTERED`].
    pub size: u64,
}

/// Reply of CREATE_BLOB. The session may name the blob at once; one of pages when [`super::call::Call::AwaitBlob`] says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreatedBlob {
    /// Its name (control messages: resource), at most [`super::place::MAX_BLOB`].
    pub blob: u32,
    /// Zero.
    pub reserved: u32,
    /// Aperture: bytes into it. Pages: the file offset of the read that registers its first page. Else 0.
    pub offset: u64,
}

/// Body of DESTROY_BLOB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlobName {
    /// A blob of this session.
    pub blob: u32,
    /// Zero.
    pub reserved: u32,
}

/// In [`Submit::flags`]: the submission is done when the work of its ring before it is done; else it has no number.
pub const SUBMIT_FENCE: u32 = 1 << 0;
/// In [`Submit::flags`]: the frames were staged; none follow.
pub const SUBMIT_STAGED: u32 = 1 << 1;

/// Body of SUBMIT; `length` bytes of control frames follow, or were staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submit {
    /// `SUBMIT_*`.
    pub flags: u32,
    /// Timeline, 0 to 63.
    pub ring: u32,
    /// Bytes of frames, at most [`crate::control::frame::MAX_CONTROL_BYTES`].
    pub length: u32,
    /// Zero.
    pub reserved: u32,
}

impl Submit {
    /// Bytes of frames that fit behind it in a call; longer ones are staged.
    pub const MAX_INLINE: usize = MAX_CALL_BYTES - size_of::<RequestHeader>() - size_of::<Self>();

    /// Of `length` bytes of frames, with a fence on that timeline.
    pub fn of(length: u32, fence: Option<u8>) -> Self {
        let flags = fence.map_or(0, |_| SUBMIT_FENCE);
        Self { flags, ring: u32::from(fence.unwrap_or(0)), length, reserved: 0 }
    }
}

/// Reply of SUBMIT: the device has read the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submitted {
    /// What to wait for, counted up from 1 in each session; 0 without a fence.
    pub sequence: u64,
}

/// Longest [`Wait::timeout`]: a thread that waits cannot be killed meanwhile.
pub const MAX_TIMEOUT: u64 = 1_000_000_000;

/// Body of WAIT. EAGAIN, where as many are parked as may be: look again a moment later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Wait {
    /// Of a submission of this session.
    pub sequence: u64,
    /// Nanoseconds to be parked at most; more than [`MAX_TIMEOUT`] counts as that, and 0 is a look.
    pub timeout: u64,
}

/// Body of AWAIT_BLOB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AwaitBlob {
    /// A blob of pages of this session.
    pub blob: u32,
    /// Zero.
    pub reserved: u32,
    /// As [`Wait::timeout`].
    pub timeout: u64,
}

/// Reply of WAIT and AWAIT_BLOB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Waited {
    /// 1: done. 0: not in that time.
    pub done: u32,
    /// Zero.
    pub reserved: u32,
}

/// In [`ReleaseAll::scope`]: the registered blobs of this session, as if each were destroyed.
pub const RELEASE_SESSION: u32 = 0;
/// In [`ReleaseAll::scope`]: every session of the VM ends, as if its file were closed (user 0 of the guest only).
pub const RELEASE_VM: u32 = 1;

/// Body of RELEASE_ALL, for the process that suspends or powers off the VM. Parked reads are answered as engines let
/// go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReleaseAll {
    /// `RELEASE_*`.
    pub scope: u32,
    /// Zero.
    pub reserved: u32,
}

/// Names a session to the processes that are told it: it cannot be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Key {
    /// Random.
    pub words: [u64; 2],
}

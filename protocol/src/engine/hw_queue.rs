//! The hardware queue for kernel-mode buffers.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::block::HW_QUEUE;

/// Buffers that the hardware queue holds at the most: one running, one waiting (MCDM-24, MCDM-26).
pub const HW_QUEUE_DEPTH: u64 = 2;
/// Bytes of a slot: a line of the daemon's, a line of the engine's.
pub const SLOT_BYTES: u64 = 128;
/// Where the engine's [`HwResult`] lies in a slot.
pub const RESULT: u64 = 64;

/// Where the slot of the `count`-th buffer lies.
pub const fn slot(count: u64) -> u64 {
    HW_QUEUE + (count % HW_QUEUE_DEPTH) * SLOT_BYTES
}

/// A buffer handed to the engine; written by the daemon before it raises the submitted count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HwSubmission {
    /// The node's fence id of this submission.
    pub fence_id: u64,
    /// GPU virtual address of the buffer.
    pub buffer_va: u64,
    /// What to store in the progress fence.
    pub fence_value: u64,
    /// Suspends of its context before it was handed over: when there is one more, it is given back
    /// ([`super::suspension`]).
    pub suspends: u64,
    /// Bytes done of the packet at `resume_at`, where it was given back before.
    pub resume_in_packet: u64,
    /// Bytes of packets done, where it was given back before.
    pub resume_at: u32,
    /// Bytes.
    pub length: u32,
    /// Index of the process entry whose address space it runs in.
    pub process: u32,
    /// Index of its context entry.
    pub context: u32,
    /// Index of the progress fence in the device page.
    pub fence_index: u32,
    /// `HW_*`.
    pub flags: u32,
}

/// In [`HwSubmission::flags`]: no timeout holds for it (UMS-27).
pub const HW_EXEMPT: u32 = 1;

/// How a buffer ended; written by the engine before it raises the completed count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HwResult {
    /// The fence id of the submission.
    pub fence_id: u64,
    /// Address at fault.
    pub fault_va: u64,
    /// 0, or a [`crate::packet::Fault`].
    pub fault: u32,
    /// `HW_*`.
    pub flags: u32,
    /// With [`HW_GIVEN_BACK`]: bytes done of the packet at `resume_at`.
    pub resume_in_packet: u64,
    /// With [`HW_GIVEN_BACK`]: bytes of packets done.
    pub resume_at: u32,
    /// Zero.
    pub reserved: u32,
}

/// In [`HwResult::flags`]: not done; its context was suspended (UMS-102).
pub const HW_GIVEN_BACK: u32 = 1;

const _: () = assert!(size_of::<HwSubmission>() as u64 <= RESULT, "a submission fits the daemon's line");
const _: () = assert!(size_of::<HwResult>() as u64 <= SLOT_BYTES - RESULT, "a result fits the engine's line");

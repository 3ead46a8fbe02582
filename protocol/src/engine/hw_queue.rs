//! The hardware queue for kernel-mode buffers.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::block::HW_QUEUE;

/// Buffers that the hardware queue holds at the most: one running, one waiting (MCDM-24, MCDM-26).
pub const HW_QUEUE_DEPTH: u64 = 2;
/// Bytes of a slot: two lines of the daemon's, a line of the engine's.
pub const SLOT_BYTES: u64 = 192;
/// Where the engine's [`HwResult`] lies in a slot.
pub const RESULT: u64 = 128;

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
    /// Suspends of its context before it was handed over: when there is one more, it is handed back
    /// ([`super::suspension`]).
    pub suspends: u64,
    /// Its number among the kernel-mode buffers of this engine, however often it is submitted: the name of what is saved
    /// of it ([`super::save_area`]).
    pub number: u64,
    /// Bytes.
    pub length: u32,
    /// Index of the process entry whose address space it runs in.
    pub process: u32,
    /// Index of its context entry: the buffers of a context run in order.
    pub context: u32,
    /// Index of the progress fence in the device page.
    pub fence_index: u32,
    /// `HW_*`.
    pub flags: u32,
    /// The lower half of the generation of that process entry: the buffer does not run in an address space that has the
    /// entry after that of its process, which has ended.
    pub process_generation: u32,
}

const _: () = assert!(size_of::<HwSubmission>() as u64 <= RESULT, "the daemon's lines");

/// In [`HwSubmission::flags`]: no timeout holds for it (UMS-27).
pub const HW_EXEMPT: u32 = 1;
/// In [`HwSubmission::flags`]: it was submitted before, under another fence id (PRE-44, PRE-45).
pub const HW_RESUBMISSION: u32 = 2;

/// In [`HwSubmission::flags`]: it was handed back half run, and goes on from what its context's save area has of it.
pub const HW_SAVED: u32 = 4;

/// How a buffer ended; written by the engine before it raises the completed count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HwResult {
    /// The fence id of the submission.
    pub fence_id: u64,
    /// Address at fault, or of the word that a buffer waits for.
    pub fault_va: u64,
    /// 0, a [`crate::packet::Fault`], [`HW_BLOCKED`] or [`HW_SUSPENDED`].
    pub fault: u32,
    /// Handed back: not zero where it is half run, and its context's save area says how far.
    pub is_saved: u32,
    /// Handed back: the value that it waits for, 0 where it waits for no word.
    pub value: u64,
}

const _: () = assert!(size_of::<HwResult>() as u64 <= SLOT_BYTES - RESULT, "the engine's line");

/// In [`HwResult::fault`]: not done. The buffer waits for a fence, or its context's buffer before it does, and others
/// stand behind it; it goes on when it is submitted again. So a wait holds up its own context alone.
pub const HW_BLOCKED: u32 = u32::MAX;

/// In [`HwResult::fault`]: not done. Its context was suspended after it was handed over (UMS-102).
pub const HW_SUSPENDED: u32 = u32::MAX - 1;

/// In [`HwResult::fault`]: not done. It was in the hardware queue when the daemon asked to have it back
/// ([`super::scheduling::PREEMPT_REQUEST`]).
pub const HW_PREEMPTED: u32 = u32::MAX - 2;

impl HwResult {
    /// Whether the buffer is not done, and is the daemon's again: its fence id has ended and not completed (TDR-53).
    pub const fn is_handed_back(&self) -> bool {
        matches!(self.fault, HW_BLOCKED | HW_SUSPENDED | HW_PREEMPTED)
    }
}

#[cfg(test)]
mod tests {
    use super::HW_BLOCKED;
    use super::HW_PREEMPTED;
    use super::HW_SUSPENDED;
    use super::HwResult;

    #[test]
    fn tdr_53_what_is_handed_back_has_not_completed_and_what_faults_has() {
        let is_handed_back = |fault| HwResult { fault, ..HwResult::default() }.is_handed_back();
        assert!([HW_BLOCKED, HW_SUSPENDED, HW_PREEMPTED].into_iter().all(is_handed_back));
        let last = crate::packet::Fault::SaveArea as u32;
        assert!(!(0..=last).chain([HW_PREEMPTED - 1]).any(is_handed_back));
    }
}

//! Responses to control messages, in the device page.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::message::DOORBELL_PRIVATE_BYTES;
use crate::device_page::RESPONSE_SLOT_BYTES;
use crate::handle::Handle;

/// Opens a response slot. `sequence` is stored last, with release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResponseHeader {
    /// The sequence of the message answered.
    pub sequence: u64,
    /// [`super::status::Status`].
    pub status: u32,
    /// Bytes of payload.
    pub payload_bytes: u32,
}

/// Bytes of payload that fit in a slot.
pub const MAX_PAYLOAD: usize = 1024 - size_of::<ResponseHeader>();
const _: () = assert!(
    (MAX_PAYLOAD + size_of::<ResponseHeader>()) as u64 == RESPONSE_SLOT_BYTES,
    "a slot holds header and payload"
);

/// A new object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Created {
    /// Its name.
    pub handle: Handle,
}

/// A change of the address space is under way; it is done when the paging fence of the device page says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Paging {
    /// Value of the paging fence.
    pub fence: u64,
}

/// A new queue (UMS-28).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueCreated {
    /// Its name.
    pub queue: Handle,
    /// Where the progress fence lies in the device page.
    pub fence_offset: u64,
    /// The same word's GPU virtual address.
    pub fence_va: u64,
}

/// A new doorbell (UMS-31).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DoorbellCreated {
    /// Its name.
    pub doorbell: Handle,
    /// Where the doorbell cell lies in the device page, for life (UMS-46). In the global model the same for all queues
    /// of the process on that node (UMS-15).
    pub cell_offset: u64,
    /// Where the status word lies in the device page, for life (UMS-47).
    pub status_offset: u64,
    /// Where the last-queued word lies in the device page.
    pub last_queued_offset: u64,
    /// Where the summary word lies in the device page: one for each node.
    pub summary_offset: u64,
    /// The bit of the summary word to set with each ring; zero in the global model.
    pub summary_bit: u64,
    /// What to store in the cell: zero says the write pointer (dedicated model, UMS-89), all else this value (global
    /// model, UMS-09).
    pub ring_value: u64,
    /// The private data given at creation.
    pub private_data: [u8; DOORBELL_PRIVATE_BYTES],
}

/// Outcome of a connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DoorbellConnected {
    /// The status word: CONNECTED or CONNECTED_NOTIFY (UMS-58).
    pub status: u64,
    /// How many other connects were served while this one waited (UMS-77).
    pub turns: u64,
}

/// A context is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Suspended {
    /// Counts the suspends of the context.
    pub fence: u64,
}

/// A new kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KernelCreated {
    /// Its name.
    pub kernel: Handle,
    /// Threads of a group in x, y, z.
    pub workgroup: [u32; 3],
    /// Buffers that a dispatch must bind.
    pub binding_count: u32,
    /// Constant bytes that a dispatch must carry.
    pub constant_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

/// An accepted submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submitted {
    /// Value that the queue's progress fence reaches when the buffer is done.
    pub fence_value: u64,
}

#[cfg(test)]
mod tests {
    use super::MAX_PAYLOAD;

    #[test]
    fn the_largest_reply_fits_a_slot() {
        assert!(size_of::<crate::capset::Capset>() <= MAX_PAYLOAD);
    }
}

//! The right to answer one command.

use super::writable::Segment;
use super::writable::Writable;

/// Right to answer one command, at most once: [`super::answers::Answers::answer`] takes it.
///
/// A device may keep it as long as it likes. It outlives a stop of the ring, and is void after a reset.
/// Dropping it unanswered leaves the guest waiting.
#[derive(Debug)]
#[must_use = "the guest waits for the answer"]
pub struct Ticket {
    pub(super) queue: u16,
    pub(super) head: u16,
    pub(super) epoch: u64,
    pub(super) writable: Writable,
    /// Descriptors of its ring.
    pub(super) ring_size: u16,
}

impl Ticket {
    /// A ticket of no ring, for devices under test: see [`super::answers::Answers::kept`].
    pub fn detached(queue: u16, head: u16, writable: u32) -> Self {
        Self::detached_over(queue, head, &[(0, writable)])
    }

    /// A ticket of no ring, whose answer would go to these buffers: guest-physical address and bytes of each.
    pub fn detached_over(queue: u16, head: u16, buffers: &[(u64, u32)]) -> Self {
        let segments: Vec<Segment> =
            buffers.iter().map(|&(address, length)| Segment { address, length }).collect();
        let room = Writable::of(&segments);
        Self { queue, head, epoch: 0, writable: room, ring_size: super::MAX_QUEUE_SIZE }
    }

    /// Queue that the command came from.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Head of the descriptor chain: the command's name among those in flight on its queue.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Descriptors of its ring that the chain takes as long as it is not answered, and how many the ring has.
    pub fn share(&self) -> (u16, u16) {
        (self.writable.descriptors(), self.ring_size)
    }

    /// Where the answer would go: guest-physical address and bytes of each buffer, in order.
    pub fn buffers(&self) -> impl Iterator<Item = (u64, u32)> {
        self.writable.segments().map(|segment| (segment.address, segment.length))
    }

    /// Bytes that the guest gave for the answer; what is longer is cut off.
    pub fn writable(&self) -> usize {
        self.writable.bytes()
    }
}

//! The right to answer one command.

use super::ring::chain::Segment;
use super::ring::chain::Writable;

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
}

impl Ticket {
    /// A ticket of no ring, for devices under test: see [`super::answers::Answers::kept`].
    pub fn detached(queue: u16, head: u16, writable: u32) -> Self {
        let mut room = Writable::default();
        room.push(Segment { address: 0, length: writable });
        Self { queue, head, epoch: 0, writable: room }
    }

    /// Queue that the command came from.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Head of the descriptor chain: the command's name among those in flight on its queue.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Bytes that the guest gave for the answer; what is longer is cut off.
    pub fn writable(&self) -> usize {
        self.writable.bytes()
    }
}

//! Where a device puts its answers.

use std::sync::Arc;

use super::counters::Count;
use super::counters::Counters;
use super::ring::Rings;
use super::ring::transfer::Answered;
use super::ticket::Ticket;

/// Takes a device's answers: each goes to guest memory at once, or is held while its ring is stopped. Interrupts
/// are sent when the callback returns, one per queue, if the guest wants one.
#[derive(Debug)]
pub struct Answers {
    place: Place,
    touched: u64,
}

#[derive(Debug)]
enum Place {
    Rings { rings: Arc<Rings>, counters: Arc<Counters> },
    Kept(Vec<Kept>),
}

/// An answer kept by [`Answers::kept`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Queue of the command.
    pub queue: u16,
    /// Head of the command.
    pub head: u16,
    /// What the device answered.
    pub response: Vec<u8>,
}

impl Answers {
    pub(super) fn new(rings: Arc<Rings>, counters: Arc<Counters>) -> Self {
        Self { place: Place::Rings { rings, counters }, touched: 0 }
    }

    /// Keeps answers instead of sending them: for tests of a device without a ring.
    pub fn kept() -> Self {
        Self { place: Place::Kept(Vec::new()), touched: 0 }
    }

    /// Takes what was kept since the last call.
    pub fn take_kept(&mut self) -> Vec<Kept> {
        match &mut self.place {
            Place::Rings { .. } => Vec::new(),
            Place::Kept(kept) => std::mem::take(kept),
        }
    }

    /// Answers one command. An empty response is allowed: it only gives the buffers back.
    pub fn answer(&mut self, ticket: Ticket, response: &[u8]) {
        match &mut self.place {
            Place::Rings { rings, counters } => {
                let queue = usize::from(ticket.queue);
                let answered = rings.ring(queue).map(|ring| ring.lock().answer(ticket, response));
                match answered {
                    Some(Answered::Written) => {
                        self.touched |= 1 << queue;
                        counters.add(Count::Answers);
                    }
                    Some(Answered::Held) => counters.add(Count::Answers),
                    Some(Answered::Void) | None => counters.add(Count::Void),
                }
            }
            Place::Kept(kept) => {
                let room = response.len().min(ticket.writable());
                kept.push(Kept {
                    queue: ticket.queue,
                    head: ticket.head,
                    response: response[..room].to_vec(),
                });
            }
        }
    }

    /// Writes what was held for a ring that is live again.
    pub(super) fn release_held(&mut self, queue: usize) {
        if let Place::Rings { rings, .. } = &self.place
            && let Some(ring) = rings.ring(queue)
            && ring.lock().release_held()
        {
            self.touched |= 1 << queue;
        }
    }

    /// Sends the interrupts that are due.
    pub(super) fn flush(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        let Place::Rings { rings, counters } = &self.place else { return };
        while touched != 0 {
            let queue = touched.trailing_zeros();
            touched &= touched - 1;
            let ring = usize::try_from(queue).ok().and_then(|queue| rings.ring(queue));
            if ring.is_some_and(|ring| ring.lock().interrupt()) {
                counters.add(Count::Interrupts);
            }
        }
    }
}

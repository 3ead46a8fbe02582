//! Commands that are in flight while the device is saved: they go with its state, and are found again in guest memory.

use virtio_queue::QueueT;

use super::super::malformed::MalformedChain;
use super::super::saved::Parked;
use super::super::saved::SavedRing;
use super::super::ticket::Ticket;
use super::chain;
use super::chain::Writable;
use super::state::RingState;
use super::transfer::Popped;

/// One that has not been found again.
#[derive(Debug)]
pub(in super::super) struct Restoring {
    head: u16,
    shape: u64,
    answer: Option<Vec<u8>>,
}

impl RingState {
    /// What a saved state needs of this ring. It stays as it is.
    pub(in super::super) fn save(&self) -> SavedRing {
        let held = self.held.iter().map(|(ticket, answer)| Parked {
            head: ticket.head,
            shape: ticket.writable.shape(),
            answer: Some(answer.clone()),
        });
        let waiting = self.restoring.iter().map(|one| Parked {
            head: one.head,
            shape: one.shape,
            answer: one.answer.clone(),
        });
        let mut in_flight: Vec<Parked> = waiting.chain(held).collect();
        let known: Vec<u16> = in_flight.iter().map(|parked| parked.head).collect();
        let parked = self.heads.iter().filter(|(head, _)| !known.contains(head));
        in_flight.extend(parked.map(|(head, shape)| Parked { head, shape, answer: None }));
        SavedRing {
            position: self.position(),
            was_used: self.taken > 0,
            owes_interrupt: self.owed,
            in_flight,
        }
    }

    /// Takes over what was saved of this ring, which has not been used. Heads have been judged.
    pub(in super::super) fn restore(&mut self, saved: SavedRing) {
        self.taken = u64::from(saved.was_used);
        self.owed = saved.owes_interrupt;
        for Parked { head, shape, answer } in saved.in_flight {
            if self.heads.take(head) {
                self.heads.note(head, shape);
                self.restoring.push_back(Restoring { head, shape, answer });
            }
        }
    }

    /// Finds one of them again: its chain is walked and judged like any other, and must be the one that was saved.
    pub(super) fn pop_restored(&mut self, request: &mut Vec<u8>) -> Option<Popped> {
        let ram = self.ram.as_deref()?;
        let Restoring { head, shape, answer } = self.restoring.pop_front()?;
        let mut writable = Writable::default();
        let read = if head < self.queue.size() {
            chain::read(ram, self.origin(), head, request, &mut writable)
        } else {
            Err(MalformedChain::HeadOutOfRange(head))
        };
        // What could not be read when it was taken was judged then: its shape is what counts.
        let read = if writable.shape() == shape { read } else { read.and(Err(MalformedChain::Changed)) };
        let ring_size = self.queue.size();
        let ticket = Ticket { queue: self.index, head, epoch: self.epoch, writable, ring_size };
        Some(Popped::Restored { ticket, read, answer })
    }
}

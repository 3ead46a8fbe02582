//! The chains of one ring that the guest has handed over and not had back: those that the device has, those whose answers are
//! held, and those that a saved state says are in flight, until they are found again in guest memory.

use std::collections::VecDeque;

use super::super::saved::Parked;
use super::super::saved::SavedRing;
use super::super::ticket::Ticket;
use super::heads::Heads;

/// A chain that was in flight when the state was saved, and has not been found again.
#[derive(Debug)]
pub(super) struct Restoring {
    pub(super) head: u16,
    /// What its writable buffers were.
    pub(super) shape: u64,
    /// The answer, if the device had given it.
    pub(super) answer: Option<Vec<u8>>,
}

/// Chains in flight, in one epoch.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    heads: Heads,
    /// Chains taken in this epoch.
    taken: u64,
    /// Answers that wait until the ring is live.
    held: Vec<(Ticket, Vec<u8>)>,
    restoring: VecDeque<Restoring>,
}

impl InFlight {
    /// A new epoch: all of it is void.
    pub(super) fn clear(&mut self) {
        self.heads.clear();
        self.taken = 0;
        self.held.clear();
        self.restoring.clear();
    }

    /// Whether the guest has handed over a chain in this epoch, or before the state was saved.
    pub(super) fn was_used(&self) -> bool {
        self.taken > 0
    }

    /// Takes a new head; false if it is in flight already, or is no head.
    #[must_use]
    pub(super) fn take(&mut self, head: u16) -> bool {
        let is_new = self.heads.take(head);
        self.taken += u64::from(is_new);
        is_new
    }

    /// Notes what the writable buffers of a chain are.
    pub(super) fn note(&mut self, head: u16, shape: u64) {
        self.heads.note(head, shape);
    }

    /// The guest has a chain back.
    pub(super) fn give_back(&mut self, head: u16) {
        self.heads.give_back(head);
    }

    /// Holds an answer until the ring is live.
    pub(super) fn hold(&mut self, ticket: Ticket, answer: Vec<u8>) {
        self.held.push((ticket, answer));
    }

    /// The answers that were held, in their order.
    pub(super) fn release(&mut self) -> Vec<(Ticket, Vec<u8>)> {
        std::mem::take(&mut self.held)
    }

    /// The next chain of a saved state that is to be found again.
    pub(super) fn next_restoring(&mut self) -> Option<Restoring> {
        self.restoring.pop_front()
    }

    /// What a saved state needs of it; `position` in the available ring, and whether an interrupt is owed, come from the ring.
    pub(super) fn save(&self, position: u16, owes_interrupt: bool) -> SavedRing {
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
        SavedRing { position, was_used: self.was_used(), owes_interrupt, in_flight }
    }

    /// Takes over what was saved of a ring; this one has not been used. Heads have been judged.
    pub(super) fn restore(&mut self, was_used: bool, in_flight: Vec<Parked>) {
        self.taken = u64::from(was_used);
        for Parked { head, shape, answer } in in_flight {
            if self.heads.take(head) {
                self.heads.note(head, shape);
                self.restoring.push_back(Restoring { head, shape, answer });
            }
        }
    }
}

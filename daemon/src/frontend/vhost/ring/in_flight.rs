//! The chains of one ring that the guest has handed over and not had back: those that the device has, those whose answers are
//! held, and those that a saved state says are in flight, until they are found again in guest memory.

use std::collections::VecDeque;

use super::super::saved::Parked;
use super::super::saved::SavedRing;
use super::super::ticket::Ticket;
use super::heads::Heads;
use crate::ledger::words::RingWords;

/// A chain that was in flight when the state was saved, and has not been found again.
#[derive(Debug)]
pub(super) struct Restoring {
    pub(super) head: u16,
    /// What its writable buffers were; none of one that is handled as if it came now.
    pub(super) shape: Option<u64>,
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
    /// Where a daemon after this one finds what is in flight.
    words: Option<RingWords>,
}

impl InFlight {
    /// A new epoch: all of it is void.
    pub(super) fn clear(&mut self) {
        self.heads.clear();
        self.taken = 0;
        self.held.clear();
        self.restoring.clear();
        self.words.iter().for_each(RingWords::clear);
    }

    /// Has what is in flight written there, too.
    pub(super) fn write_to(&mut self, words: RingWords) {
        self.words = Some(words);
    }

    /// The position in the used ring, where it is read or has moved.
    pub(super) fn note_used(&self, index: u16) {
        self.words.iter().for_each(|words| words.note_used(index));
    }

    /// Whether the guest has handed over a chain in this epoch, or before the state was saved.
    pub(super) fn was_used(&self) -> bool {
        self.taken > 0
    }

    /// Takes a new head; false if it is in flight already, or is no head.
    #[must_use]
    pub(super) fn take(&mut self, head: u16) -> bool {
        let is_new = self.heads.take(head);
        if is_new {
            self.taken += 1;
            self.words.iter().for_each(|words| words.take(head, self.taken));
        }
        is_new
    }

    /// The device gets the request of a chain in flight: should this process end meanwhile, the next one knows which it was.
    pub(super) fn handle(&self, head: u16) {
        self.words.iter().for_each(|words| words.handle(head));
    }

    /// How many daemons ended while they handled this chain.
    pub(super) fn ends(&self, head: u16) -> u64 {
        self.words.as_ref().map_or(0, |words| words.ends(head))
    }

    /// Notes what the writable buffers of a chain are.
    pub(super) fn note(&mut self, head: u16, shape: u64) {
        self.heads.note(head, shape);
    }

    /// The guest has a chain back: it is in the used ring, which has got to `used` with it. The index is noted last: a daemon after this
    /// one finds a chain in flight, or in the used ring.
    pub(super) fn give_back(&mut self, head: u16, used: u16) {
        self.heads.give_back(head);
        self.words.iter().for_each(|words| words.give_back(head));
        self.note_used(used);
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
            shape: one.shape.unwrap_or_default(),
            answer: one.answer.clone(),
        });
        let mut in_flight: Vec<Parked> = waiting.chain(held).collect();
        let known: Vec<u16> = in_flight.iter().map(|parked| parked.head).collect();
        let parked = self.heads.iter().filter(|(head, _)| !known.contains(head));
        in_flight.extend(parked.map(|(head, shape)| Parked { head, shape, answer: None }));
        SavedRing { position, was_used: self.was_used(), owes_interrupt, in_flight, repeated: Vec::new() }
    }

    /// Takes over what was saved of a ring; this one has not been used. Heads have been judged.
    pub(super) fn restore(&mut self, was_used: bool, in_flight: Vec<Parked>, repeated: Vec<u16>) {
        let saved = in_flight.into_iter().map(|Parked { head, shape, answer }| (head, Some(shape), answer));
        let repeated = repeated.into_iter().map(|head| (head, None, None));
        for (head, shape, answer) in saved.chain(repeated) {
            if self.take(head) {
                self.heads.note(head, shape.unwrap_or_default());
                self.restoring.push_back(Restoring { head, shape, answer });
            }
        }
        self.taken = self.taken.max(u64::from(was_used));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::InFlight;
    use super::Parked;
    use crate::frontend::vhost::MAX_QUEUE_SIZE;
    use crate::frontend::vhost::ticket::Ticket;
    use crate::ledger::words::Store;
    use crate::ledger::words::Words;

    fn parked(head: u16, shape: u64, answer: Option<&[u8]>) -> Parked {
        Parked { head, shape, answer: answer.map(<[u8]>::to_vec) }
    }

    #[test]
    fn a_head_is_in_flight_once_until_the_guest_has_it_back() {
        let mut in_flight = InFlight::default();
        assert!(!in_flight.was_used());
        assert!(!in_flight.take(MAX_QUEUE_SIZE), "it is no head");
        assert!(!in_flight.was_used(), "what is no head was not taken");
        assert!(in_flight.take(MAX_QUEUE_SIZE - 1) && in_flight.take(64));
        assert!(in_flight.was_used());
        assert!(!in_flight.take(64), "it is in flight");
        in_flight.give_back(64, 1);
        assert!(in_flight.take(64));
        in_flight.give_back(64, 2);
        in_flight.give_back(MAX_QUEUE_SIZE - 1, 3);
        assert!(in_flight.was_used(), "the guest has everything back, and has used it");
        assert_eq!(in_flight.save(0, false).in_flight, []);
    }

    #[test]
    fn answers_that_are_held_are_released_once_in_their_order() {
        let mut in_flight = InFlight::default();
        for head in [5, 3, 4] {
            in_flight.hold(Ticket::detached(0, head, 8), vec![1]);
        }
        let released: Vec<u16> = in_flight.release().iter().map(|(ticket, _)| ticket.head()).collect();
        assert_eq!(released, [5, 3, 4]);
        assert!(in_flight.release().is_empty());
    }

    #[test]
    fn a_state_has_what_was_to_be_found_again_then_held_answers_then_what_the_device_has_each_once() {
        let mut in_flight = InFlight::default();
        in_flight.restore(true, vec![parked(9, 90, Some(&[9])), parked(2, 20, None)], Vec::new());
        for (head, shape) in [(1, 10), (7, 70), (8, 80)] {
            assert!(in_flight.take(head));
            in_flight.note(head, shape);
        }
        let held = Ticket::detached_over(0, 8, &[(0x1000, 4)]);
        let shape = held.writable.shape();
        in_flight.hold(held, vec![1, 2]);
        let saved = in_flight.save(11, true);
        assert_eq!((saved.position, saved.was_used, saved.owes_interrupt), (11, true, true));
        let order = [
            parked(9, 90, Some(&[9])),
            parked(2, 20, None),
            parked(8, shape, Some(&[1, 2])),
            parked(1, 10, None),
            parked(7, 70, None),
        ];
        assert_eq!(saved.in_flight, order);
        let mut restored = InFlight::default();
        restored.restore(saved.was_used, saved.in_flight.clone(), Vec::new());
        assert_eq!(restored.save(11, true), saved, "a state of a state is that state");
    }

    #[test]
    fn what_was_in_flight_is_found_again_in_its_order_and_is_in_flight_meanwhile() {
        let mut in_flight = InFlight::default();
        let twice = vec![parked(4, 40, None), parked(4, 41, None), parked(3, 30, Some(&[]))];
        in_flight.restore(false, twice, Vec::new());
        assert!(in_flight.was_used(), "what is in flight was taken");
        assert!(!in_flight.take(4) && !in_flight.take(3));
        let found: Vec<_> = std::iter::from_fn(|| in_flight.next_restoring())
            .map(|one| (one.head, one.shape, one.answer))
            .collect();
        assert_eq!(
            found,
            [(4, Some(40), None), (3, Some(30), Some(vec![]))],
            "a head that comes twice is found once"
        );
        assert_eq!(in_flight.save(0, false).in_flight, [parked(3, 30, None), parked(4, 40, None)]);
    }

    #[test]
    fn cont_15_the_head_of_a_chain_that_the_guest_has_back_is_free_before_the_used_index_is_noted() {
        let words = Arc::new(Words::new().unwrap());
        let mut in_flight = InFlight::default();
        in_flight.write_to(words.ring(0).unwrap());
        in_flight.note_used(6);
        for head in [3, 5] {
            assert!(in_flight.take(head));
        }
        let ring = words.ring(0).unwrap();
        words.stores();
        in_flight.give_back(3, 7);
        assert_eq!((ring.heads(), ring.used()), (vec![5], 7));
        assert_eq!(words.stores(), [Store::GiveBack(3), Store::NoteUsed(7)]);
    }

    #[test]
    fn nothing_of_an_epoch_is_left_in_the_next() {
        let mut in_flight = InFlight::default();
        in_flight.restore(true, vec![parked(4, 40, None)], vec![7]);
        assert!(in_flight.take(5));
        in_flight.hold(Ticket::detached(0, 5, 8), vec![]);
        in_flight.clear();
        assert_eq!(in_flight.save(0, false), super::SavedRing::default());
        assert!(in_flight.release().is_empty() && in_flight.next_restoring().is_none());
        assert!(in_flight.take(4) && in_flight.take(5));
    }
}

//! What the worker does with a live ring.

use std::sync::atomic::Ordering;
use std::sync::atomic::fence;

use thiserror::Error;
use virtio_queue::Queue;
use virtio_queue::QueueT;
use vm_memory::Bytes;
use vm_memory::GuestAddress;

use super::super::malformed::MalformedChain;
use super::super::ticket::Ticket;
use super::super::writable::Writable;
use super::chain;
use super::chain::Origin;
use super::in_flight::Restoring;
use super::state::RingState;
use crate::guest_ram::memory::GuestRam;

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` (virtio 1.3, 2.7.6).
const NO_INTERRUPT: u16 = 1;
/// Where the entries of an available ring start.
const AVAIL_ENTRIES: u64 = 4;
/// Where the index of a used ring is (virtio 1.3, 2.7.8).
const USED_INDEX: u64 = 2;
/// Where its entries start.
const USED_ENTRIES: u64 = 4;
/// Bytes of an entry.
const USED_ENTRY: u64 = 8;

/// So many daemons may end while they handle a chain. Fewer than a keeper follows in a row: what kills its daemon each time is found out before
/// that is given up.
const MOST_ENDS: u64 = 3;

/// What came off a ring.
#[derive(Debug)]
#[must_use]
pub(in super::super) enum Popped {
    /// A request, copied out.
    Command(Ticket),
    /// A chain that cannot be read.
    Malformed(MalformedChain, Ticket),
    /// A command that was in flight when the state was saved, and its answer, if the device has given it.
    Restored { ticket: Ticket, read: Result<(), MalformedChain>, answer: Option<Vec<u8>> },
    /// A head that is no chain, and so cannot be answered.
    NoChain(MalformedChain),
    /// Nothing there (the guest will kick), or the ring is not live.
    Nothing,
}

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(in super::super) enum Answered {
    /// The guest can see it.
    Written,
    /// The ring is not live: kept until it is.
    Held,
    /// The guest has reset the device since.
    Void,
}

/// The guest has broken the ring itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
enum Broken {
    #[error("the ring is not in guest memory")]
    Memory,
    #[error("the available index jumped")]
    Jump,
}

impl RingState {
    /// Takes one chain, if the ring is live in `epoch`. When there is none, kicks are switched on again. What the device gets is
    /// being handled from here on, for a daemon after this one.
    pub(in super::super) fn pop(&mut self, epoch: u64, request: &mut Vec<u8>) -> Popped {
        let popped = self.take_chain(epoch, request);
        if let Popped::Command(ticket) | Popped::Restored { ticket, read: Ok(()), answer: None } = &popped {
            self.in_flight.handle(ticket.head);
        }
        popped
    }

    fn take_chain(&mut self, epoch: u64, request: &mut Vec<u8>) -> Popped {
        if epoch != self.epoch || !self.is_live() {
            return Popped::Nothing;
        }
        if let Some(restored) = self.pop_restored(request) {
            return restored;
        }
        let Some(ram) = self.ram.as_deref() else { return Popped::Nothing };
        let next = next_head(&mut self.queue, ram, &mut self.quiet);
        // Its flags, and the event field behind its entries.
        self.log_used(0, 2);
        self.log_used(USED_ENTRIES + USED_ENTRY * u64::from(self.queue.size()), 2);
        let head = match next {
            Ok(Some(head)) => head,
            Ok(None) => return Popped::Nothing,
            Err(broken) => {
                self.fail(broken);
                return Popped::Nothing;
            }
        };
        if head >= self.queue.size() {
            return Popped::NoChain(MalformedChain::HeadOutOfRange(head));
        }
        if !self.in_flight.take(head) {
            return Popped::NoChain(MalformedChain::HeadInUse(head));
        }
        let mut writable = Writable::default();
        let read = chain::read(ram, self.origin(), head, request, &mut writable);
        self.in_flight.note(head, writable.shape());
        let ticket = Ticket { queue: self.index, head, epoch, writable, ring_size: self.queue.size() };
        match read {
            Ok(()) => Popped::Command(ticket),
            Err(reason) => Popped::Malformed(reason, ticket),
        }
    }

    /// Finds a chain of a saved state again: it is walked and judged like any other, and must be the one that was saved.
    fn pop_restored(&mut self, request: &mut Vec<u8>) -> Option<Popped> {
        let ram = self.ram.as_deref()?;
        let Restoring { head, shape, answer } = self.in_flight.next_restoring()?;
        let mut writable = Writable::default();
        let read = if head < self.queue.size() {
            chain::read(ram, self.origin(), head, request, &mut writable)
        } else {
            Err(MalformedChain::HeadOutOfRange(head))
        };
        let ring_size = self.queue.size();
        let ticket = |writable| Ticket { queue: self.index, head, epoch: self.epoch, writable, ring_size };
        let ends = self.in_flight.ends(head);
        let is_fatal = answer.is_none() && ends >= MOST_ENDS;
        let read = if is_fatal { read.and(Err(MalformedChain::Fatal(ends))) } else { read };
        let Some(shape) = shape else {
            self.in_flight.note(head, writable.shape());
            let ticket = ticket(writable);
            return Some(match read {
                Ok(()) => Popped::Command(ticket),
                Err(reason) => Popped::Malformed(reason, ticket),
            });
        };
        // What could not be read when it was taken was judged then: its shape is what counts.
        let read = if writable.shape() == shape { read } else { read.and(Err(MalformedChain::Changed)) };
        Some(Popped::Restored { ticket: ticket(writable), read, answer })
    }

    /// Where its chains lie.
    fn origin(&self) -> Origin {
        Origin {
            table: self.queue.desc_table(),
            queue_size: self.queue.size(),
            indirect: self.indirect,
            smallest_answer: self.smallest_answer,
        }
    }

    /// Answers, or keeps the answer until the ring is live.
    pub(in super::super) fn answer(&mut self, ticket: Ticket, response: &[u8]) -> Answered {
        if ticket.epoch != self.epoch {
            return Answered::Void;
        }
        if !self.is_live() {
            let kept = response.len().min(ticket.writable());
            self.in_flight.hold(ticket, response[..kept].to_vec());
            return Answered::Held;
        }
        self.write(&ticket, response);
        Answered::Written
    }

    /// Writes what was held, if the ring is live. True if anything was written.
    pub(in super::super) fn release_held(&mut self) -> bool {
        if !self.is_live() {
            return false;
        }
        let held = self.in_flight.release();
        for (ticket, response) in &held {
            self.write(ticket, response);
        }
        !held.is_empty()
    }

    /// Interrupts the guest if it wants that for what was used since the last call. True if it was done.
    pub(in super::super) fn interrupt(&mut self) -> bool {
        if !std::mem::take(&mut self.interrupts.unsignalled) {
            return false;
        }
        let Some(ram) = self.ram.as_deref() else { return false };
        if !wants_interrupt(&mut self.queue, ram) {
            return false;
        }
        self.interrupts.send()
    }

    fn write(&mut self, ticket: &Ticket, response: &[u8]) {
        self.use_up(ticket, response);
        self.in_flight.give_back(ticket.head, self.queue.next_used());
    }

    fn use_up(&mut self, ticket: &Ticket, response: &[u8]) {
        let Some(ram) = self.ram.as_deref() else { return };
        if ticket.head >= self.queue.size() {
            return;
        }
        let written = ticket.writable.fill(ram, response);
        match self.queue.add_used(ram, ticket.head, written) {
            Ok(()) => {
                self.interrupts.unsignalled = true;
                let slot = self.queue.next_used().wrapping_sub(1) % self.queue.size();
                self.log_used(USED_ENTRIES + USED_ENTRY * u64::from(slot), USED_ENTRY);
                self.log_used(USED_INDEX, 2);
            }
            Err(_) => self.fail(Broken::Memory),
        }
    }

    /// Gives the ring up until it is started again.
    fn fail(&mut self, broken: Broken) {
        log::debug!("queue {}: {broken}; stopped until the guest resets it", self.index);
        self.broken = true;
        self.interrupts.fail();
    }
}

/// The next head. At the end of the ring the guest is asked to kick again, and the ring looked at once more: what
/// the guest added before it saw that would get no kick (virtio 1.3, 2.7.10).
fn next_head(queue: &mut Queue, ram: &GuestRam, quiet: &mut bool) -> Result<Option<u16>, Broken> {
    let unreadable = |_| Broken::Memory;
    // Twice is enough for a guest that only adds; one that plays with its index gets no more.
    for _ in 0..2 {
        let avail = queue.avail_idx(ram, Ordering::Acquire).map_err(unreadable)?;
        let waiting = avail.0.wrapping_sub(queue.next_avail());
        if waiting > queue.size() {
            return Err(Broken::Jump);
        }
        if waiting > 0 {
            if !*quiet {
                queue.disable_notification(ram).map_err(unreadable)?;
                *quiet = true;
            }
            let slot = u64::from(queue.next_avail() % queue.size());
            let place = queue.avail_ring() + AVAIL_ENTRIES + slot * 2;
            let head: u16 = ram.load(GuestAddress(place), Ordering::Relaxed).map_err(|_| Broken::Memory)?;
            queue.set_next_avail(queue.next_avail().wrapping_add(1));
            return Ok(Some(u16::from_le(head)));
        }
        *quiet = false;
        if !queue.enable_notification(ram).map_err(unreadable)? {
            return Ok(None);
        }
    }
    Ok(None)
}

/// EVENT_IDX, or the flag that virtio-queue leaves to us.
fn wants_interrupt(queue: &mut Queue, ram: &GuestRam) -> bool {
    if queue.event_idx_enabled() {
        return queue.needs_notification(ram).unwrap_or(true);
    }
    // The used index before the flag: the guest clears the flag, then looks at the index.
    fence(Ordering::SeqCst);
    let flags: Result<u16, _> = ram.load(GuestAddress(queue.avail_ring()), Ordering::Relaxed);
    flags.map_or(true, |flags| u16::from_le(flags) & NO_INTERRUPT == 0)
}

#[cfg(test)]
pub(in super::super) mod tests {
    use std::sync::Arc;

    use vm_memory::Bytes;
    use vm_memory::GuestAddress;

    use super::Answered;
    use super::GuestRam;
    use super::MOST_ENDS;
    use super::MalformedChain;
    use super::Popped;
    use super::RingState;
    use super::Writable;
    use crate::frontend::vhost::saved::Parked;
    use crate::frontend::vhost::saved::SavedRing;
    use crate::ledger::words::Store;
    use crate::ledger::words::Words;

    pub(in super::super::super) const TABLE: u64 = 0x1000;
    pub(in super::super::super) const AVAILABLE: u64 = 0x2000;
    pub(in super::super::super) const USED: u64 = 0x3000;
    const BUFFER: u64 = 0x4000;

    /// Guest memory with one chain in an available ring.
    pub(in super::super::super) fn one_chain() -> Arc<GuestRam> {
        let ram = Arc::new(GuestRam::from_ranges(&[(GuestAddress(TABLE), 0x4000)]).unwrap());
        let store = |value: u16, place: u64| ram.write_obj(value.to_le(), GuestAddress(place)).unwrap();
        // Head 3, which is read, and then 4, which is written: address, length, flags, next.
        for (index, address, flags) in [(3, BUFFER, 1), (4, BUFFER + 8, 2)] {
            let at = TABLE + 16 * index;
            ram.write_obj(address.to_le(), GuestAddress(at)).unwrap();
            ram.write_obj(8u32.to_le(), GuestAddress(at + 8)).unwrap();
            store(flags, at + 12);
            store(4, at + 14);
        }
        store(3, AVAILABLE + 4);
        store(1, AVAILABLE + 2);
        ram
    }

    /// The ring of a daemon that goes on with these words.
    fn ring(ram: &Arc<GuestRam>, words: &Arc<Words>) -> RingState {
        let mut ring = RingState::new(0, 1, Arc::default());
        ring.write_to(words.ring(0).unwrap());
        ring.set_ram(Arc::clone(ram));
        ring.set_size(8).unwrap();
        ring.set_addresses(TABLE, AVAILABLE, USED).unwrap();
        ring.set_enabled(true);
        assert!(ring.start(tempfile::tempfile().unwrap().into()).is_none());
        ring
    }

    #[test]
    fn a_chain_whose_handling_ends_one_daemon_after_the_other_is_refused_and_the_ring_goes_on() {
        let (ram, words) = (one_chain(), Arc::new(Words::new().unwrap()));
        let mut ring = ring(&ram, &words);
        for _ in 0..MOST_ENDS {
            assert!(matches!(ring.pop(0, &mut Vec::new()), Popped::Command(_)));
            words.count_end();
            let repeated = words.ring(0).unwrap().heads();
            ring = self::ring(&ram, &words);
            ring.restore(SavedRing { was_used: true, repeated, ..SavedRing::default() });
        }
        // So is one of a state that was restored.
        let restored = || {
            let mut ring = self::ring(&ram, &words);
            let parked = Parked { head: 3, shape: Writable::default().shape(), answer: None };
            ring.restore(SavedRing { was_used: true, in_flight: vec![parked], ..SavedRing::default() });
            ring
        };
        let Popped::Restored { read: Err(MalformedChain::Fatal(MOST_ENDS)), .. } =
            restored().pop(0, &mut Vec::new())
        else {
            panic!("it would end the next one")
        };
        let Popped::Malformed(MalformedChain::Fatal(MOST_ENDS), ticket) = ring.pop(0, &mut Vec::new()) else {
            panic!("it would end the next one")
        };
        assert_eq!(ring.answer(ticket, &[1]), Answered::Written);
        assert_eq!(words.ring(0).unwrap().ends(3), 0);
        let Popped::Command(ticket) = ring.pop(0, &mut Vec::new()) else { panic!("the guest asks it anew") };
        assert_eq!(ring.answer(ticket, &[1]), Answered::Written);
        words.end_handling();
        words.count_end();
        assert_eq!(words.ring(0).unwrap().ends(3), 0);
    }

    #[test]
    fn cont_15_a_chain_is_in_the_used_ring_before_its_head_is_free_and_the_index_is_noted_that_has_it() {
        let (ram, words) = (one_chain(), Arc::new(Words::new().unwrap()));
        let mut ring = ring(&ram, &words);
        let Popped::Command(ticket) = ring.pop(0, &mut Vec::new()) else { panic!("there is a chain") };
        assert_eq!(words.ring(0).unwrap().heads(), [3]);
        words.stores();
        assert_eq!(ring.answer(ticket, &[9]), Answered::Written);
        let used: [u32; 3] = [0, 4, 8].map(|at| ram.read_obj(GuestAddress(USED + at)).unwrap());
        assert_eq!((used[0] >> 16, used[1], used[2]), (1, 3, 1), "index, head and bytes");
        assert_eq!(words.stores(), [Store::GiveBack(3), Store::NoteUsed(1)]);
        assert_eq!((words.ring(0).unwrap().heads(), words.ring(0).unwrap().used()), (vec![], 1));
    }
}

//! Requests that are answered later: which there are, and how many may be.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::fs::body::MAX_TIMEOUT;
use campanile_protocol::fs::errno;
use serde::Deserialize;
use serde::Serialize;

use super::answer;
use super::answer::Fault;
use super::limits::MAX_PARKED;
use super::limits::MAX_WAITS;
use crate::frontend::vhost::ticket::Ticket;
use crate::vgpu::objects::timeline::Token;

/// Buffers that the answer of a parked call may go to: the kernel has two, and a page list of the caller's.
const MAX_CALL_BUFFERS: usize = 16;

/// A request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The kernel's number for it.
    pub(super) unique: u64,
    pub(super) what: What,
}

/// What it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum What {
    /// CREATE_BLOB; `offset` into the aperture.
    Create { blob: u32, offset: u64 },
    /// WAIT of a session for one of its submissions, nanoseconds long.
    Wait { file: u32, sequence: u64, timeout: u64 },
    /// AWAIT_BLOB, nanoseconds long.
    Await { blob: u32, timeout: u64 },
    /// A read that registers pages, from byte `at` of a blob on.
    Read { blob: u32, at: u64, bytes: u32 },
}

impl What {
    fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        match self {
            Self::Wait { timeout, .. } | Self::Await { timeout, .. } => {
                Some(Duration::from_nanos((*timeout).min(MAX_TIMEOUT)))
            }
            Self::Create { .. } | Self::Read { .. } => None,
        }
    }
}

/// Descriptors of one ring that parked requests take.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    reads: u32,
    waits: u32,
}

impl Load {
    fn of(&mut self, what: &What) -> &mut u32 {
        if what.is_read() { &mut self.reads } else { &mut self.waits }
    }
}

/// The parked requests of one VM.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// How many.
    pub(super) count: usize,
    /// When each wait ends by itself.
    pub(super) deadlines: BTreeSet<(Instant, Token)>,
    /// What they take of each ring.
    loads: BTreeMap<u16, Load>,
}

impl Parked {
    /// Whether one more may be parked; `waits` are parked already for the session that it is a wait of.
    pub(super) fn check_room(&self, ticket: &Ticket, what: &What, waits: usize) -> Result<(), Fault> {
        let (takes, ring) = ticket.share();
        let mut load = self.loads.get(&ticket.queue()).copied().unwrap_or_default();
        let (part, full) = if what.is_read() { (2, errno::ENOMEM) } else { (4, errno::EAGAIN) };
        let is_full = *load.of(what) + u32::from(takes) > u32::from(ring) / part;
        if is_full || self.count >= MAX_PARKED {
            return Err(Fault::Errno(full));
        }
        // Four sessions that take what they can leave nothing to others, but one does not.
        if matches!(what, What::Wait { .. }) && waits >= MAX_WAITS.min(usize::from(ring) / 16) {
            return Err(Fault::Errno(full));
        }
        if !what.is_read() && ticket.buffers().nth(MAX_CALL_BUFFERS).is_some() {
            return Err(answer::INVALID);
        }
        Ok(())
    }

    /// A request takes its part of the ring.
    pub(super) fn take_room(&mut self, ticket: &Ticket, what: &What) {
        *self.loads.entry(ticket.queue()).or_default().of(what) += u32::from(ticket.share().0);
    }

    /// Its part of the ring is free again.
    pub(super) fn free_room(&mut self, ticket: &Ticket, what: &What) {
        let load = self.loads.entry(ticket.queue()).or_default().of(what);
        *load = load.saturating_sub(u32::from(ticket.share().0));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Fault;
    use super::MAX_CALL_BUFFERS;
    use super::MAX_PARKED;
    use super::MAX_TIMEOUT;
    use super::MAX_WAITS;
    use super::Parked;
    use super::Ticket;
    use super::What;
    use super::answer;
    use super::errno;
    use crate::frontend::vhost::MAX_QUEUE_SIZE;

    const READ: What = What::Read { blob: 1, at: 0, bytes: 4096 };
    const AWAIT: What = What::Await { blob: 1, timeout: 0 };
    const WAIT: What = What::Wait { file: 1, sequence: 1, timeout: 0 };

    /// A request whose chain takes so many descriptors of a ring.
    fn taking(queue: u16, descriptors: u16) -> Ticket {
        Ticket::detached_over(queue, 0, &vec![(0, 1); usize::from(descriptors)])
    }

    fn full(errno: i32) -> Result<(), Fault> {
        Err(Fault::Errno(errno))
    }

    #[test]
    fn reads_take_half_of_a_ring_and_other_requests_a_quarter_and_rings_are_apart() {
        for (what, part, errno) in [(READ, 2, errno::ENOMEM), (AWAIT, 4, errno::EAGAIN)] {
            let (all, mut parked) = (MAX_QUEUE_SIZE / part, Parked::default());
            let rest = taking(1, 3);
            for _ in 0..(all - 3) / 3 {
                parked.check_room(&rest, &what, 0).unwrap();
                parked.take_room(&rest, &what);
            }
            let left = (all - 3) % 3 + 3;
            assert_eq!(parked.check_room(&taking(1, left), &what, 0), Ok(()));
            assert_eq!(parked.check_room(&taking(1, left + 1), &what, 0), full(errno));
            let other = if what == READ { AWAIT } else { READ };
            assert_eq!(parked.check_room(&rest, &other, 0), Ok(()), "these have a part of their own");
            assert_eq!(parked.check_room(&taking(2, left + 1), &what, 0), Ok(()), "another ring");
            parked.free_room(&rest, &what);
            assert_eq!(parked.check_room(&taking(1, left + 3), &what, 0), Ok(()), "one is answered");
            assert_eq!(parked.check_room(&taking(1, left + 4), &what, 0), full(errno));
        }
    }

    #[test]
    fn one_vm_parks_so_many_requests_and_one_session_so_many_waits() {
        let (one, mut parked) = (taking(0, 1), Parked { count: MAX_PARKED - 1, ..Parked::default() });
        assert_eq!(parked.check_room(&one, &READ, 0), Ok(()));
        parked.count += 1;
        assert_eq!(parked.check_room(&one, &READ, 0), full(errno::ENOMEM));
        assert_eq!(parked.check_room(&one, &AWAIT, 0), full(errno::EAGAIN));
        let parked = Parked::default();
        assert_eq!(parked.check_room(&one, &WAIT, MAX_WAITS - 1), Ok(()));
        assert_eq!(parked.check_room(&one, &WAIT, MAX_WAITS), full(errno::EAGAIN));
        assert_eq!(parked.check_room(&one, &AWAIT, MAX_WAITS), Ok(()), "it is no wait of a session");
    }

    #[test]
    fn the_answer_of_a_call_goes_to_few_buffers() {
        let buffers = u16::try_from(MAX_CALL_BUFFERS).unwrap();
        let parked = Parked::default();
        assert_eq!(parked.check_room(&taking(0, buffers), &AWAIT, 0), Ok(()));
        assert_eq!(parked.check_room(&taking(0, buffers + 1), &AWAIT, 0), Err(answer::INVALID));
        assert_eq!(parked.check_room(&taking(0, buffers + 1), &READ, 0), Ok(()), "a read has pages");
    }

    #[test]
    fn waits_end_by_themselves_and_what_makes_or_registers_does_not() {
        let timeout = MAX_TIMEOUT + 1;
        let longest = Some(Duration::from_nanos(MAX_TIMEOUT));
        assert_eq!(What::Wait { file: 1, sequence: 1, timeout }.timeout(), longest);
        assert_eq!(What::Await { blob: 1, timeout: 7 }.timeout(), Some(Duration::from_nanos(7)));
        assert_eq!((READ.timeout(), What::Create { blob: 1, offset: 0 }.timeout()), (None, None));
    }
}

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

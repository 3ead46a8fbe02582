//! Requests that are answered later.

use std::time::Duration;
use std::time::Instant;

use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::body::MAX_TIMEOUT;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::errno;
use serde::Deserialize;
use serde::Serialize;

use super::answer;
use super::answer::Fault;
use super::state::Fs;
use super::state::MAX_PARKED;
use super::state::MAX_WAITS;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::ticket::Ticket;
use crate::frontend::waiting::Due;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// Buffers that the answer of a parked call may go to: the kernel has two, and a page list of the caller's.
const MAX_CALL_BUFFERS: usize = 16;
/// How long to go on where a wait is over, but its request not found again yet.
const AGAIN: Duration = Duration::from_millis(10);

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

    fn timeout(&self) -> Option<Duration> {
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

impl Fs {
    /// Whether one more may be parked.
    pub(super) fn check_room(&self, ticket: &Ticket, what: &What) -> Result<(), Fault> {
        let (takes, ring) = ticket.share();
        let mut load = self.loads.get(&ticket.queue()).copied().unwrap_or_default();
        let (part, full) = if what.is_read() { (2, errno::ENOMEM) } else { (4, errno::EAGAIN) };
        let is_full = *load.of(what) + u32::from(takes) > u32::from(ring) / part;
        if is_full || self.parked >= MAX_PARKED {
            return Err(Fault::Errno(full));
        }
        if let What::Wait { file, .. } = what {
            // Four sessions that take what they can leave nothing to others, but one does not.
            let most = MAX_WAITS.min(usize::from(ring) / 16);
            if self.sessions.get(file).is_some_and(|session| session.waits >= most) {
                return Err(Fault::Errno(full));
            }
        }
        if !what.is_read() && ticket.buffers().nth(MAX_CALL_BUFFERS).is_some() {
            return Err(answer::INVALID);
        }
        Ok(())
    }

    /// Parks a request that there is room for.
    pub(super) fn park(&mut self, vgpu: &mut Vgpu<Asked>, token: Token, ticket: Ticket, asked: Asked) {
        self.count_parked(&ticket, &asked.what);
        self.expect(token, &asked.what);
        vgpu.waiting.insert(token, ticket, asked);
    }

    /// It takes its part of the ring.
    pub(super) fn count_parked(&mut self, ticket: &Ticket, what: &What) {
        *self.loads.entry(ticket.queue()).or_default().of(what) += u32::from(ticket.share().0);
    }

    /// Somebody is to be told, of this or when it takes too long.
    pub(super) fn expect(&mut self, token: Token, what: &What) {
        self.parked += 1;
        if let Some(timeout) = what.timeout() {
            self.deadlines.insert((Instant::now() + timeout, token));
        }
        match what {
            What::Wait { file, sequence, .. } => {
                if let Some(session) = self.sessions.get_mut(file) {
                    session.waits += 1;
                    if let Some(waiters) = session.open.get_mut(sequence) {
                        waiters.push(token);
                    }
                }
            }
            What::Await { blob, .. } => {
                if let Some(blob) = self.blobs.get_mut(blob) {
                    blob.awaited.push(token);
                }
            }
            What::Create { .. } | What::Read { .. } => {}
        }
    }

    /// It is answered, and needs no notice.
    pub(super) fn forget(&mut self, token: Token, what: &What) {
        self.parked = self.parked.saturating_sub(1);
        if what.timeout().is_some() {
            self.deadlines.retain(|(_, of)| *of != token);
        }
        match what {
            What::Wait { file, sequence, .. } => {
                if let Some(session) = self.sessions.get_mut(file) {
                    session.waits = session.waits.saturating_sub(1);
                    if let Some(waiters) = session.open.get_mut(sequence) {
                        waiters.retain(|of| *of != token);
                    }
                }
            }
            What::Await { blob, .. } => {
                if let Some(blob) = self.blobs.get_mut(blob) {
                    blob.awaited.retain(|of| *of != token);
                }
            }
            What::Create { .. } | What::Read { .. } => {}
        }
    }

    /// What a request waited for has come about, or never will. Answers it; where it is not found again yet, as soon as it
    /// is.
    pub(super) fn settle(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        token: Token,
        outcome: Result<(), Refusal>,
        answers: &mut Answers,
    ) {
        if let Some(asked) = vgpu.waiting.command(token).copied() {
            self.forget(token, &asked.what);
        }
        if let Some(due) = vgpu.waiting.due(token, outcome) {
            self.answer_due(vgpu, due, answers);
        }
    }

    /// Answers a request that is not parked any more.
    pub(super) fn answer_due(&mut self, vgpu: &Vgpu<Asked>, due: Due<Asked>, answers: &mut Answers) {
        let Due { ticket, command: Asked { unique, what }, outcome } = due;
        let load = self.loads.entry(ticket.queue()).or_default().of(&what);
        *load = load.saturating_sub(u32::from(ticket.share().0));
        let bytes = match (what, outcome) {
            (What::Create { blob, offset }, Ok(())) => {
                answer::reply_with(unique, &CreatedBlob { blob, reserved: 0, offset })
            }
            (What::Wait { .. } | What::Await { .. }, Ok(())) => {
                answer::reply_with(unique, &Waited { done: 1, reserved: 0 })
            }
            (What::Read { .. }, Ok(())) => answer::done(unique, &[]),
            (What::Read { .. }, Err(refusal)) => answer::failed(unique, answer::errno_of(refusal)),
            (_, Err(Refusal::Context)) => answer::failed(unique, errno::ENODEV),
            (_, Err(refusal)) => answer::fault(unique, refusal.into()),
        };
        if outcome.is_err() {
            vgpu.count_refused();
        }
        answers.answer(ticket, &bytes);
    }

    /// Takes a request that is parked, and answers it with these bytes; false where it is not found again yet.
    fn take_back(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        token: Token,
        answers: &mut Answers,
        bytes: impl FnOnce(u64) -> Vec<u8>,
    ) -> bool {
        let Some((ticket, Asked { unique, what })) = vgpu.waiting.take(token) else { return false };
        self.forget(token, &what);
        let load = self.loads.entry(ticket.queue()).or_default().of(&what);
        *load = load.saturating_sub(u32::from(ticket.share().0));
        answers.answer(ticket, &bytes(unique));
        true
    }

    /// Ends waits that take too long.
    pub(super) fn look_at_deadlines(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        let now = Instant::now();
        while let Some((at, token)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, token));
            let waited = |unique| answer::reply_with(unique, &Waited::default());
            if !self.take_back(vgpu, token, answers, waited) && vgpu.waiting.command(token).is_some() {
                self.deadlines.insert((now + AGAIN, token));
            }
        }
        vgpu.session.wake_front(self.deadlines.first().map(|(at, _)| *at));
    }

    /// INTERRUPT: the guest does not wait for that request any more. A read that registers pages stays, since they are
    /// in use.
    pub(super) fn interrupt(&mut self, vgpu: &mut Vgpu<Asked>, unique: u64, answers: &mut Answers) {
        let is_it = |asked: &Asked| asked.unique == unique && asked.what.timeout().is_some();
        let found = vgpu.waiting.undecided().find(|(_, asked)| is_it(asked)).map(|(token, _)| token);
        if let Some(token) = found {
            self.take_back(vgpu, token, answers, |unique| answer::failed(unique, errno::EINTR));
        }
    }
}

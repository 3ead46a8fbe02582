//! Requests that are answered later: parked, settled, timed out, or interrupted.

use std::time::Duration;
use std::time::Instant;

use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::errno;

use super::answer;
use super::parked::Asked;
use super::parked::What;
use super::state::Fs;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::ticket::Ticket;
use crate::frontend::waiting::Due;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// How long to go on where a wait is over, but its request not found again yet.
const AGAIN: Duration = Duration::from_millis(10);

impl Fs {
    /// Parks a request that there is room for.
    pub(super) fn park(&mut self, vgpu: &mut Vgpu<Asked>, token: Token, ticket: Ticket, asked: Asked) {
        self.parked.take_room(&ticket, &asked.what);
        self.expect(token, &asked.what);
        vgpu.waiting.insert(token, ticket, asked);
    }

    /// A request is to be answered when what it waits for comes about, or when that takes too long.
    pub(super) fn expect(&mut self, token: Token, what: &What) {
        self.parked.count += 1;
        if let Some(timeout) = what.timeout() {
            self.parked.deadlines.insert((Instant::now() + timeout, token));
        }
        match what {
            What::Wait { file, sequence, .. } => {
                if let Some(session) = self.files.sessions.get_mut(file) {
                    session.waits += 1;
                    if let Some(waiters) = session.open.get_mut(sequence) {
                        waiters.push(token);
                    }
                }
            }
            What::Await { blob, .. } => {
                if let Some(blob) = self.blobs.by_name.get_mut(blob) {
                    blob.awaited.push(token);
                }
            }
            What::Create { .. } | What::Read { .. } => {}
        }
    }

    /// It is answered, and needs no notice.
    pub(super) fn forget(&mut self, token: Token, what: &What) {
        self.parked.count = self.parked.count.saturating_sub(1);
        if what.timeout().is_some() {
            self.parked.deadlines.retain(|(_, of)| *of != token);
        }
        match what {
            What::Wait { file, sequence, .. } => {
                if let Some(session) = self.files.sessions.get_mut(file) {
                    session.waits = session.waits.saturating_sub(1);
                    if let Some(waiters) = session.open.get_mut(sequence) {
                        waiters.retain(|of| *of != token);
                    }
                }
            }
            What::Await { blob, .. } => {
                if let Some(blob) = self.blobs.by_name.get_mut(blob) {
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
        self.parked.free_room(&ticket, &what);
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
        self.parked.free_room(&ticket, &what);
        answers.answer(ticket, &bytes(unique));
        true
    }

    /// Ends waits that take too long.
    pub(super) fn look_at_deadlines(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        let now = Instant::now();
        while let Some((at, token)) = self.parked.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.parked.deadlines.remove(&(at, token));
            let waited = |unique| answer::reply_with(unique, &Waited::default());
            if !self.take_back(vgpu, token, answers, waited) && vgpu.waiting.command(token).is_some() {
                self.parked.deadlines.insert((now + AGAIN, token));
            }
        }
        vgpu.session.wake_front(self.parked.deadlines.first().map(|(at, _)| *at));
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

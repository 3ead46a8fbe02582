//! Memory that the device moves, in order: one request at a time, to the copy engine of the first physical adapter.
//!
//! ```text
//!   push ─▶ queue ─▶ next: a step of it is sent ─▶ answered ─▶ next step … ─▶ the whole is done: what was to follow is due
//!                      ▲                              │
//!                      └── the engine was replaced ◀──┘   the same step again, at most ATTEMPTS times in a row
//! ```

use std::collections::VecDeque;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::MoveSide;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Request;

use super::pending::Action;
use super::slot::EngineSlot;
use crate::vgpu::memory::vidmm::device_memory::DeviceCopy;

/// Bytes of a step: what else an engine is asked meanwhile waits no longer than that takes.
const STEP: u64 = 64 << 20;
/// How often a step is sent, before it counts as what cannot be done.
pub(super) const ATTEMPTS: u32 = 3;

/// What follows when memory has moved.
#[derive(Debug)]
pub enum Then {
    /// A piece of local memory is zero.
    Clean {
        /// Where in the video memory, bytes.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// An allocation is where it was to go.
    Arrived(Action),
}

#[derive(Debug)]
struct Job {
    copy: DeviceCopy,
    done: u64,
    attempts: u32,
    then: Then,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    serial: u64,
    pid: u32,
    bytes: u64,
}

/// What there is to move.
#[derive(Debug, Default)]
pub struct DeviceMoves {
    jobs: VecDeque<Job>,
    sent: Option<Sent>,
    serial: u64,
    /// The engine did not come up: it is not started for moves alone until it has.
    is_unavailable: bool,
}

/// What to do next.
#[derive(Debug)]
#[must_use]
pub enum Next {
    /// Nothing: there is nothing to move, or an answer is awaited.
    Nothing,
    /// Send this to the engine.
    Send(Request),
    /// The first of all was sent too often: it cannot be done.
    GiveUp(Then),
}

impl DeviceMoves {
    /// Has the device copy, after all that was pushed before.
    pub fn push(&mut self, copy: DeviceCopy, then: Then) {
        self.jobs.push_back(Job { copy, done: 0, attempts: 0, then });
    }

    /// Has the device zero a piece of local memory, after all that was pushed before.
    pub fn zero(&mut self, offset: u64, bytes: u64) {
        let copy = DeviceCopy { from: MoveSide::Zero, to: MoveSide::Local(offset), bytes };
        self.push(copy, Then::Clean { offset, bytes });
    }

    /// Whether there is nothing to move.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether an allocation is on its way: something waits for that.
    pub fn has_arrivals(&self) -> bool {
        self.jobs.iter().any(|job| matches!(job.then, Then::Arrived(_)))
    }

    /// Whether the engine may be started, where it is not.
    pub fn is_available(&self) -> bool {
        !self.is_unavailable
    }

    /// Whether the engine comes up.
    pub fn set_available(&mut self, is_available: bool) {
        self.is_unavailable = !is_available;
    }

    /// What is to be sent to the process `pid`, which runs. What another process was sent, and has not answered, is sent again.
    pub fn next(&mut self, pid: u32) -> Next {
        if self.sent.is_some_and(|sent| sent.pid == pid) {
            return Next::Nothing;
        }
        let Some(job) = self.jobs.front_mut() else { return Next::Nothing };
        if job.attempts == ATTEMPTS {
            self.sent = None;
            return self.jobs.pop_front().map_or(Next::Nothing, |job| Next::GiveUp(job.then));
        }
        job.attempts += 1;
        self.serial += 1;
        let bytes = STEP.min(job.copy.bytes - job.done);
        self.sent = Some(Sent { serial: self.serial, pid, bytes });
        let (from, to) = (job.copy.from.advanced(job.done), job.copy.to.advanced(job.done));
        Next::Send(Request::Move { serial: self.serial, from, to, bytes })
    }

    /// A step is done; what follows, where it was the last of its job.
    #[must_use]
    pub fn moved(&mut self, serial: u64) -> Option<Then> {
        let sent = self.sent.take_if(|sent| sent.serial == serial)?;
        let job = self.jobs.front_mut()?;
        job.done += sent.bytes;
        job.attempts = 0;
        if job.done < job.copy.bytes {
            return None;
        }
        self.jobs.pop_front().map(|job| job.then)
    }

    /// The next allocation that is on its way, where no engine runs any more: what of it is still to be copied, and what follows. What
    /// is only to be zeroed waits.
    #[must_use]
    pub fn next_arrival(&mut self) -> Option<(DeviceCopy, Then)> {
        self.sent = None;
        let at = self.jobs.iter().position(|job| matches!(job.then, Then::Arrived(_)))?;
        let Job { copy: DeviceCopy { from, to, bytes }, done, then, .. } = self.jobs.remove(at)?;
        Some((DeviceCopy { from: from.advanced(done), to: to.advanced(done), bytes: bytes - done }, then))
    }

    /// Nothing is moved any more, and no engine runs: what was to follow.
    #[must_use]
    pub fn abandon(&mut self) -> Vec<Then> {
        self.sent = None;
        self.jobs.drain(..).map(|job| job.then).collect()
    }
}

/// The engine that moves memory. All physical adapters of a vGPU are one device.
pub(in crate::vgpu) fn mover() -> EngineAddress {
    EngineAddress::new(0, NodeKind::Copy)
}

/// Whether an engine may be ended now although it moves memory.
pub(in crate::vgpu) fn is_free(slot: &EngineSlot, at: EngineAddress, has_arrivals: bool) -> bool {
    at != mover() || !slot.has_begun() || !has_arrivals
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::engine::message::MoveSide;
    use campanile_host_gpu::engine::message::Request;

    use super::ATTEMPTS;
    use super::Action;
    use super::DeviceCopy;
    use super::DeviceMoves;
    use super::Next;
    use super::STEP;
    use super::Then;
    use crate::vgpu::objects::timeline::Token;

    const MIB: u64 = 1 << 20;

    fn sent(next: Next) -> (u64, MoveSide, u64) {
        match next {
            Next::Send(Request::Move { serial, to, bytes, .. }) => (serial, to, bytes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_long_goes_in_steps_and_is_done_with_the_last() {
        let mut moves = DeviceMoves::default();
        assert!(moves.is_empty() && matches!(moves.next(1), Next::Nothing));
        moves.zero(MIB, STEP + MIB);
        moves.zero(0, MIB);
        let (first, to, bytes) = sent(moves.next(1));
        assert_eq!((to, bytes), (MoveSide::Local(MIB), STEP));
        assert!(matches!(moves.next(1), Next::Nothing), "one at a time");
        assert!(moves.moved(first + 1).is_none(), "that was not asked");
        assert!(moves.moved(first).is_none(), "it is not all");
        let (second, to, bytes) = sent(moves.next(1));
        assert_eq!((to, bytes), (MoveSide::Local(MIB + STEP), MIB));
        assert!(
            matches!(moves.moved(second), Some(Then::Clean { offset: MIB, bytes }) if bytes == STEP + MIB)
        );
        let (third, to, _) = sent(moves.next(1));
        assert_eq!(to, MoveSide::Local(0));
        assert!(moves.moved(third).is_some() && moves.is_empty());
    }

    #[test]
    fn a_step_is_sent_again_to_the_next_process_and_given_up_after_some_of_them() {
        let mut moves = DeviceMoves::default();
        moves.zero(0, STEP + MIB);
        let (first, ..) = sent(moves.next(1));
        assert!(moves.moved(first).is_none());
        let (lost, ..) = sent(moves.next(1));
        for pid in 2..=ATTEMPTS {
            let (_, to, bytes) = sent(moves.next(pid));
            assert_eq!((to, bytes), (MoveSide::Local(STEP), MIB), "what was done stays done");
        }
        assert!(moves.moved(lost).is_none(), "an answer of a process that is gone");
        assert!(matches!(moves.next(9), Next::GiveUp(Then::Clean { offset: 0, .. })));
        assert!(moves.is_empty() && matches!(moves.next(9), Next::Nothing));
    }

    #[test]
    fn lm_64_what_is_half_moved_when_all_stands_still_goes_on_where_it_was() {
        let mut moves = DeviceMoves::default();
        moves.zero(0, MIB);
        let copy = DeviceCopy { from: MoveSide::Local(MIB), to: MoveSide::Evicted(0), bytes: STEP + MIB };
        moves.push(copy, Then::Arrived(Action::Answer(Token(1))));
        for _ in 0..2 {
            let (serial, ..) = sent(moves.next(1));
            let _cleaned = moves.moved(serial);
        }
        moves.zero(0, MIB);
        let (rest, _then) = moves.next_arrival().unwrap();
        let (from, to) = (MoveSide::Local(MIB + STEP), MoveSide::Evicted(STEP));
        assert_eq!(rest, DeviceCopy { from, to, bytes: MIB });
        assert!(moves.next_arrival().is_none() && !moves.is_empty(), "what is to be zeroed waits");
    }

    #[test]
    fn an_engine_that_does_not_come_up_is_not_started_for_moves_alone() {
        let mut moves = DeviceMoves::default();
        assert!(moves.is_available() && !moves.has_arrivals());
        moves.zero(0, MIB);
        assert!(!moves.has_arrivals(), "nothing waits for that");
        let copy = DeviceCopy { from: MoveSide::Local(0), to: MoveSide::Evicted(0), bytes: MIB };
        moves.push(copy, Then::Arrived(Action::Answer(Token(1))));
        assert!(moves.has_arrivals());
        moves.set_available(false);
        assert!(!moves.is_available() && !moves.is_empty());
        moves.set_available(true);
        assert!(moves.is_available());
        assert_eq!(moves.abandon().len(), 2);
        assert!(moves.is_empty());
    }
}

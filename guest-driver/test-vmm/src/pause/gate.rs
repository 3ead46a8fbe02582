//! Who the virtual CPUs of a VM are, and how all of them are stopped.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::thread::futex;

use super::lock::Lock;
use super::slot;
use super::slot::ENDED;
use super::slot::Slot;
use super::stop_signal;

/// The virtual CPUs of one VM.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    roster: Lock<Roster>,
}

#[derive(Debug, Default)]
struct Roster {
    /// Odd while the gate is closed.
    pause: u32,
    members: Vec<Member>,
}

#[derive(Debug, Clone)]
struct Member {
    thread: rustix::thread::Pid,
    slot: Arc<Slot>,
}

/// Not every virtual CPU stood still in time.
#[derive(Debug, thiserror::Error)]
#[error("a virtual CPU did not stand still within {0:?}")]
pub(crate) struct StillRunning(Duration);

impl Gate {
    pub(super) fn admit(&self, slot: &Arc<Slot>) {
        stop_signal::install();
        let mut roster = self.roster.lock();
        slot.wanted.store(roster.pause, Ordering::SeqCst);
        roster.members.push(Member { thread: rustix::thread::gettid(), slot: Arc::clone(slot) });
    }

    pub(super) fn dismiss(&self, slot: &Arc<Slot>) {
        self.roster.lock().members.retain(|member| !Arc::ptr_eq(&member.slot, slot));
    }

    /// Stops all virtual CPUs. Returns when each stands still; where one does not within `limit`, all go on.
    /// Nothing where the gate is closed already.
    pub(crate) fn close(&self, limit: Duration) -> Result<(), StillRunning> {
        let begun = Instant::now();
        let (pause, members) = {
            let mut roster = self.roster.lock();
            if !roster.pause.is_multiple_of(2) {
                return Ok(());
            }
            roster.pause = roster.pause.wrapping_add(1);
            let pause = roster.pause;
            for member in &roster.members {
                member.slot.wanted.store(pause, Ordering::SeqCst);
            }
            (pause, roster.members.clone())
        };
        for member in &members {
            stop_signal::send(member.thread);
        }
        for member in &members {
            let left = || limit.saturating_sub(begun.elapsed());
            if !await_acknowledgement(&member.slot.acknowledged, pause, left) {
                self.open();
                return Err(StillRunning(limit));
            }
        }
        Ok(())
    }

    /// Lets all virtual CPUs go on.
    pub(crate) fn open(&self) {
        let mut roster = self.roster.lock();
        if roster.pause.is_multiple_of(2) {
            return;
        }
        roster.pause = roster.pause.wrapping_add(1);
        for member in &roster.members {
            member.slot.wanted.store(roster.pause, Ordering::SeqCst);
            slot::wake(&member.slot.wanted);
        }
    }
}

fn await_acknowledgement(word: &AtomicU32, pause: u32, left: impl Fn() -> Duration) -> bool {
    loop {
        let seen = word.load(Ordering::SeqCst);
        if seen == pause || seen == ENDED {
            return true;
        }
        let left = left();
        let Some(timeout) = Timespec::try_from(left).ok().filter(|_| !left.is_zero()) else { return false };
        // Any reason to wake up is a reason to look again.
        let _looked_again = futex::wait(word, futex::Flags::PRIVATE, seen, Some(&timeout));
    }
}

//! Which threads sleep on a queue, and which is woken.
//!
//! ```text
//!   leader    the one thread that sleeps on the call eventfd; it takes used entries for all
//!   follower  a thread that sleeps in `park`, until its request is done or the lead is free
//! ```
//!
//! A lone waiter is the leader, so its answer costs one wake-up. A waiter that leaves wakes a follower where there is
//! no leader, so a follower never sleeps without a leader.

use std::sync::Arc;
use std::thread::Thread;

use super::request::Request;

/// The sleepers of one queue.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// A thread sleeps on the call eventfd.
    pub(super) led: bool,
    followers: Vec<Follower>,
    next_id: u64,
}

#[derive(Debug)]
struct Follower {
    id: u64,
    thread: Thread,
    /// What it waits for; `None`: room on the ring.
    request: Option<Arc<Request>>,
}

impl Waiters {
    /// Wakes the followers that have what they wait for, and those that may find room.
    pub(super) fn wake_satisfied(&self) {
        for follower in &self.followers {
            if follower.request.as_ref().is_none_or(|request| request.is_done()) {
                follower.thread.unpark();
            }
        }
    }

    /// Wakes every follower.
    pub(super) fn wake_all(&self) {
        for follower in &self.followers {
            follower.thread.unpark();
        }
    }

    /// Wakes one follower to take the lead, where there is no leader.
    pub(super) fn hand_over(&self) {
        if !self.led
            && let Some(follower) = self.followers.first()
        {
            follower.thread.unpark();
        }
    }

    /// The calling thread becomes a follower; the number that it leaves by.
    pub(super) fn enter(&mut self, request: Option<&Arc<Request>>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.followers.push(Follower { id, thread: std::thread::current(), request: request.cloned() });
        id
    }

    /// A follower has woken up.
    pub(super) fn leave(&mut self, id: u64) {
        self.followers.retain(|follower| follower.id != id);
    }
}

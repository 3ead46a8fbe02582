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
use std::time::Instant;

use super::request::Request;
use super::virt_queue::QueueState;
use super::virt_queue::VirtQueue;
use crate::transport::error::TransportError;

/// The sleepers of one queue.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    led: bool,
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
    fn hand_over(&self) {
        if !self.led
            && let Some(follower) = self.followers.first()
        {
            follower.thread.unpark();
        }
    }

    fn enter(&mut self, request: Option<&Arc<Request>>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.followers.push(Follower { id, thread: std::thread::current(), request: request.cloned() });
        id
    }

    fn leave(&mut self, id: u64) {
        self.followers.retain(|follower| follower.id != id);
    }
}

impl VirtQueue {
    /// Sleeps until `ready` gives something, which it must do once the queue is lost or `request` is done.
    pub(super) fn wait_until<T>(
        &self,
        request: Option<&Arc<Request>>,
        what: &'static str,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut QueueState) -> Option<T>,
    ) -> Result<T, TransportError> {
        let begin = deadline.map(|_| Instant::now());
        let mut state = self.state();
        let result = loop {
            state.reap();
            if let Some(result) = ready(&mut state) {
                break Ok(result);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                let after = begin.map_or_else(Default::default, |begin| begin.elapsed());
                break Err(TransportError::Timeout { what, after });
            }
            if state.waiters.led {
                let id = state.waiters.enter(request);
                drop(state);
                match deadline {
                    None => std::thread::park(),
                    Some(deadline) => {
                        std::thread::park_timeout(deadline.saturating_duration_since(Instant::now()));
                    }
                }
                state = self.state();
                state.waiters.leave(id);
            } else if state.ring.arm() || state.loss.is_some() {
                state.waiters.led = true;
                let events = Arc::clone(&state.events);
                drop(state);
                events.interrupt().sleep(deadline);
                state = self.state();
                state.waiters.led = false;
            }
        };
        state.waiters.hand_over();
        drop(state);
        result
    }
}

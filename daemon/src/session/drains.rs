//! The orderly end of a doorbell: what was rung still runs (UMS-126, UMS-146).
//!
//! ```text
//!   DESTROY_DOORBELL ─▶ RETRY, slot freed ─▶ completed < last-queued? ── no ──▶ destroyed, answered
//!                                                  │ yes                          ▲
//!                                                  ▼                              │
//!                                              DRAINING ─── completed, nothing left to run, device in error,
//!                                                           or no step within the timeout (UMS-127)
//! ```
//!
//! Last-queued is the guest's word. One that is ahead of all that was ever rung costs a last look of the engine, and no
//! time (UMS-148); one that is behind is counted, and means that nothing is pending (UMS-88).

use campanile_host_gpu::engine::address::node_index;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;

use super::counters::count;
use super::reply::Origin;
use super::reply::Refused;
use super::state::Session;
use crate::doorbell::slots::Holder;

/// A doorbell that is about to end, and the message that waits for it.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    pub(super) holder: Holder,
    pub(super) origin: Origin,
    pub(super) last_queued: u64,
    pub(super) completed: u64,
    /// When `completed` was last seen to move.
    pub(super) since: Instant,
    /// How long it may stand still: that of its node.
    pub(super) timeout: Duration,
}

impl Session {
    /// Begins to wait for what was rung through a doorbell, which is disconnected. False where there is nothing to wait
    /// for.
    pub(super) fn drain(&mut self, origin: Origin, holder: Holder) -> Result<bool, Refused> {
        let device = self.device(holder.context)?;
        let doorbell = device.doorbells.get(holder.doorbell).ok_or(Status::InvalidHandle)?;
        let queue = device.queues.get(doorbell.queue).ok_or(Status::InvalidHandle)?;
        let is_held = device.contexts.get(queue.context).is_some_and(|context| context.held.any());
        let Some(hw_queue) = doorbell.hw_queue else { return Ok(false) };
        let (at, was_connected) = (doorbell.at, doorbell.was_connected);
        let last_queued = self
            .page(holder.context)
            .and_then(|page| {
                Some(page.word(device_page::last_queued(doorbell.queue.index()))?.load(Ordering::Acquire))
            })
            .unwrap_or(0);
        let Some(process) = self.engines[at.index()].process_mut() else { return Ok(false) };
        let completed = process.queue_completed(hw_queue);
        if last_queued < completed {
            count(&self.counters.last_queued_errors);
        }
        // What is held would be waited for until it is resumed.
        if last_queued <= completed || is_held || !was_connected {
            return Ok(false);
        }
        process.drain_queue(hw_queue);
        let origin = self.park_end(origin);
        if let Some(doorbell) = self.device_mut(holder.context)?.doorbells.get_mut(holder.doorbell) {
            doorbell.is_draining = true;
        }
        let (since, timeout) = (Instant::now(), self.config.timeouts[node_index(at.node)]);
        self.drains.push(Drain { holder, origin, last_queued, completed, since, timeout });
        self.set_timer();
        Ok(true)
    }

    /// Ends the doorbells that have nothing more to wait for.
    pub(super) fn look_at_drains(&mut self) {
        if self.drains.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut over = Vec::new();
        for mut drain in std::mem::take(&mut self.drains) {
            if self.is_over(&mut drain, now) {
                over.push(drain);
            } else {
                self.drains.push(drain);
            }
        }
        for Drain { holder, origin, .. } in over {
            self.remove_doorbell(origin, holder);
        }
    }

    fn is_over(&self, drain: &mut Drain, now: Instant) -> bool {
        let device = self.device(drain.holder.context).ok();
        let Some(doorbell) = device.and_then(|device| device.doorbells.get(drain.holder.doorbell)) else {
            return true;
        };
        // A device in error has taken its queues off the engines.
        let process = self.engines[doorbell.at.index()].process();
        let Some((process, hw_queue)) = process.zip(doorbell.hw_queue) else { return true };
        let completed = process.queue_completed(hw_queue);
        if completed != drain.completed {
            (drain.completed, drain.since) = (completed, now);
        }
        completed >= drain.last_queued
            || process.queue_is_drained(hw_queue)
            || now.saturating_duration_since(drain.since) >= drain.timeout
    }

    /// Everything goes on after a standstill: it has all its time, and the engine is asked again.
    pub(super) fn restart_drains(&mut self) {
        let now = Instant::now();
        let mut asked = Vec::new();
        for drain in &mut self.drains {
            drain.since = now;
            asked.push(drain.holder);
        }
        for holder in asked {
            let device = self.device(holder.context).ok();
            let doorbell = device.and_then(|device| device.doorbells.get(holder.doorbell));
            let Some((at, hw_queue)) = doorbell.and_then(|it| Some((it.at, it.hw_queue?))) else { continue };
            if let Some(process) = self.engines[at.index()].process_mut() {
                process.drain_queue(hw_queue);
            }
        }
    }

    /// When a doorbell that waits must be looked at though nobody signals.
    pub(super) fn next_drain(&self) -> Option<Instant> {
        self.drains.iter().map(|drain| drain.since + drain.timeout).min()
    }
}

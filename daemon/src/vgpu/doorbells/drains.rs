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
use std::time::Instant;

use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;

use super::drain::Drain;
use super::room::Doorbells;
use super::room::Parts;
use super::slots::Holder;
use crate::vgpu::counters::count;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::processes::Objects;

impl Doorbells {
    /// Begins to wait for what was rung through a doorbell, which is disconnected. False where there is nothing to wait
    /// for; where it is true, [`Self::next_drain`] may be sooner than before.
    ///
    /// # Errors
    /// There is no such doorbell; nothing was changed.
    pub fn drain(
        &mut self,
        parts: &mut Parts<'_>,
        origin: Origin,
        holder: Holder,
        now: Instant,
    ) -> Result<bool, Refused> {
        let device = parts.objects.device(holder.context)?;
        let doorbell = device.doorbells.get(holder.doorbell).ok_or(Status::InvalidHandle)?;
        let queue = device.queues.get(doorbell.queue).ok_or(Status::InvalidHandle)?;
        let is_held = device.contexts.get(queue.context).is_some_and(|context| context.held.any());
        let Some(hw_queue) = doorbell.hw_queue else { return Ok(false) };
        let (at, was_connected) = (doorbell.at, doorbell.was_connected);
        let last_queued = parts
            .memory
            .page(parts.objects, holder.context)
            .and_then(|page| {
                Some(page.word(device_page::last_queued(doorbell.queue.index()))?.load(Ordering::Acquire))
            })
            .unwrap_or(0);
        let Some(process) = parts.engines[at.index()].process_mut() else { return Ok(false) };
        let completed = process.tables.queue_completed(hw_queue);
        if last_queued < completed {
            count(&parts.counters.last_queued_errors);
        }
        // What is held would be waited for until it is resumed.
        if last_queued <= completed || is_held || !was_connected {
            return Ok(false);
        }
        process.tables.drain_queue(hw_queue);
        let origin = parts.objects.park_end(origin);
        if let Some(doorbell) = parts.objects.device_mut(holder.context)?.doorbells.get_mut(holder.doorbell) {
            doorbell.is_draining = true;
        }
        let timeout = parts.config.timeouts[node_index(at.node)];
        self.drains.push(Drain { holder, origin, last_queued, completed, since: now, timeout });
        Ok(true)
    }

    /// Takes the doorbells out that have nothing more to wait for, in the order in which their waits began.
    #[must_use]
    pub fn take_drained(&mut self, objects: &Objects, engines: &[EngineSlot], now: Instant) -> Vec<Drain> {
        self.drains.extract_if(.., |drain| drain.is_over(objects, engines, now)).collect()
    }

    /// The session goes on after a quiesce: each drain has all its time again, and its engine is asked again.
    pub fn restart_drains(&mut self, objects: &Objects, engines: &mut [EngineSlot], now: Instant) {
        for drain in &mut self.drains {
            drain.since = now;
            let device = objects.device(drain.holder.context).ok();
            let doorbell = device.and_then(|device| device.doorbells.get(drain.holder.doorbell));
            let Some((at, hw_queue)) = doorbell.and_then(|it| Some((it.at, it.hw_queue?))) else { continue };
            if let Some(process) = engines[at.index()].process_mut() {
                process.tables.drain_queue(hw_queue);
            }
        }
    }

    /// When a doorbell that waits must be looked at without a signal.
    pub fn next_drain(&self) -> Option<Instant> {
        self.drains.iter().map(|drain| drain.since + drain.timeout).min()
    }
}

impl Drain {
    fn is_over(&mut self, objects: &Objects, engines: &[EngineSlot], now: Instant) -> bool {
        let device = objects.device(self.holder.context).ok();
        let Some(doorbell) = device.and_then(|device| device.doorbells.get(self.holder.doorbell)) else {
            return true;
        };
        // A device in error has taken its queues off the engines.
        let process = engines[doorbell.at.index()].process();
        let Some((process, hw_queue)) = process.zip(doorbell.hw_queue) else { return true };
        let completed = process.tables.queue_completed(hw_queue);
        if completed != self.completed {
            (self.completed, self.since) = (completed, now);
        }
        completed >= self.last_queued
            || process.tables.queue_is_drained(hw_queue)
            || now.saturating_duration_since(self.since) >= self.timeout
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    use std::time::Instant;

    use campanile_host_gpu::memory::bits;
    use campanile_protocol::device_page;
    use campanile_protocol::engine::block;
    use campanile_protocol::handle::Handle;

    use crate::vgpu::config::Config;
    use crate::vgpu::control::deferred::Deferred;
    use crate::vgpu::doorbells::slots::Holder;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::counted;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::load;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::shared;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;

    /// The doorbell of the golden state that was rung, and has served one of two rings.
    const HOLDER: Holder = Holder { context: OWNER, doorbell: Handle::new(0, 1) };
    const ORIGIN: Origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };
    const TIMEOUTS: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(600)];

    /// A session whose guest says that this was queued, without the doorbell that already ends.
    fn with_last_queued(value: u64) -> Session {
        let mut session = restored(Config { timeouts: TIMEOUTS, ..startable() });
        session.vm.doorbells.drains.clear();
        let page = session.vm.memory.page(&session.vm.objects, OWNER).unwrap();
        page.word(device_page::last_queued(0)).unwrap().store(value, Ordering::Release);
        session
    }

    fn hw_queue(session: &mut Session) -> u64 {
        let doorbell = device(session, OWNER).doorbells.get(HOLDER.doorbell).unwrap();
        block::queue(u32::from(doorbell.hw_queue.unwrap().get()))
    }

    fn drains(session: &mut Session) -> bool {
        let (doorbells, mut parts) = session.vm.doorbells();
        doorbells
            .drain(&mut parts, ORIGIN, HOLDER, Instant::now())
            .unwrap_or_else(|refused| panic!("{}", refused.text))
    }

    #[test]
    fn ums_87_ums_88_what_was_queued_is_waited_for_and_a_last_queued_that_went_back_is_an_error() {
        for (last_queued, waits, errors) in [(2, true, 0), (u64::MAX, true, 0), (1, false, 0), (0, false, 1)]
        {
            let mut session = with_last_queued(last_queued);
            assert_eq!(drains(&mut session), waits, "{last_queued}");
            assert_eq!(counted(&session.vm.counters.last_queued_errors), errors, "{last_queued}");
            assert_eq!(session.vm.doorbells.drains.len(), usize::from(waits));
            let doorbell = device(&mut session, OWNER).doorbells.get(HOLDER.doorbell).unwrap();
            assert_eq!(doorbell.is_draining, waits, "it is connected no more");
            let asked = hw_queue(&mut session) + block::QUEUE_DRAIN;
            assert_eq!(load(&session, COPY, asked), u64::from(waits), "its engine says when nothing is left");
        }
    }

    #[test]
    fn nothing_is_waited_for_that_is_held_or_reached_nobody() {
        let mut session = with_last_queued(2);
        session
            .vm
            .engines
            .hold(&mut session.vm.objects, &*session.vm.config.schedule, OWNER, CONTEXT, |held| {
                held.by_guest = true
            })
            .unwrap();
        assert!(!drains(&mut session), "its context is suspended");
        let mut session = with_last_queued(2);
        device(&mut session, OWNER).doorbells.get_mut(HOLDER.doorbell).unwrap().was_connected = false;
        assert!(!drains(&mut session), "it was never connected");
    }

    #[test]
    fn ums_127_the_wait_is_as_long_as_the_timeout_of_its_node_from_the_last_step_on() {
        let mut session = with_last_queued(4);
        assert!(drains(&mut session));
        assert_eq!(session.vm.doorbells.drains[0].timeout, TIMEOUTS[1]);
        let queue = hw_queue(&mut session);
        session.vm.doorbells.drains[0].since = Instant::now().checked_sub(TIMEOUTS[1]).unwrap();
        let late = session.vm.doorbells.drains[0].since;
        // It has made a step since: it has all its time again.
        store(&session, COPY, queue + block::QUEUE_COMPLETED, 2);
        Deferred::of(&mut session.vm).look_at_drains();
        assert!(session.vm.doorbells.drains[0].since > late);
        assert_eq!(
            session.vm.doorbells.next_drain(),
            Some(session.vm.doorbells.drains[0].since + TIMEOUTS[1])
        );
        session.vm.doorbells.drains[0].since = late;
        Deferred::of(&mut session.vm).look_at_drains();
        assert!(session.vm.doorbells.drains.is_empty(), "none since: it is over");
        assert!(device(&mut session, OWNER).doorbells.get(HOLDER.doorbell).is_none());
    }

    #[test]
    fn ums_148_a_doorbell_ends_when_its_engine_says_that_nothing_is_left() {
        let mut session = with_last_queued(u64::MAX);
        assert!(drains(&mut session));
        Deferred::of(&mut session.vm).look_at_drains();
        assert_eq!(session.vm.doorbells.drains.len(), 1);
        let queue = hw_queue(&mut session);
        store(&session, COPY, queue + block::QUEUE_DRAINED, 1);
        Deferred::of(&mut session.vm).look_at_drains();
        assert!(session.vm.doorbells.drains.is_empty());
    }

    #[test]
    fn lm_55_a_wait_begins_anew_after_a_standstill_and_the_engine_is_asked_again() {
        let mut session = with_last_queued(2);
        assert!(drains(&mut session));
        let queue = hw_queue(&mut session);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(100)).unwrap();
        session.vm.doorbells.drains[0].since = long_ago;
        // As another process finds it.
        store(&session, COPY, queue + block::QUEUE_DRAIN, 0);
        bits::take(&shared(&session, COPY), block::LOOK, block::LOOK_WORDS);
        session.vm.doorbells.restart_drains(&session.vm.objects, &mut session.vm.engines, Instant::now());
        assert!(session.vm.doorbells.drains[0].since > long_ago);
        assert_eq!(load(&session, COPY, queue + block::QUEUE_DRAIN), 1);
        assert_eq!(bits::take(&shared(&session, COPY), block::LOOK, block::LOOK_WORDS).len(), 1);
    }
}

//! Everything of a vGPU stands still, so that its state can be taken or given (LM-25, LM-31, LM-64; design §10.7).
//!
//! ```text
//!            all contexts suspended                 every suspend is reported, or its engine is ended by force
//!   RUNNING ───────────────────────▶ FREEZING ─────────────────────────────────────────────────────────▶ FROZEN
//!      ▲                                 │           doorbells RETRY, engine processes ended, what they    │  │
//!      │                                 │           left is collected, what waited for them is done       │  └─▶ save
//!      └──────────────── thaw ───────────┴────────────────────────── thaw ─────────────────────────────────┘
//!                                                                     ▲
//!                                          a session without anything ┴─ restore
//! ```
//!
//! Built on what D3 does. While it is FROZEN no engine process of this vGPU runs (one that was stopped, seen through and
//! killed may still be on its way out), and the session writes neither
//! guest memory nor video memory, whatever signals: what has happened meanwhile is looked at when it is thawed. What is
//! due to be answered then stays due, and is part of the state.
//!
//! An engine that has not reported after [`Config::freeze_limit`](crate::vgpu::config::Config::freeze_limit) is stopped where
//! it is, ended, and the device lost whose work it ran: the timeout of TDR, which is longer than a migration may stand,
//! plays no part. A reset is never under way when this begins or ends: the session's thread carries each out in one
//! piece, and a process that only comes up after one has run nothing yet and is ended like any other.
//!
//! Clocks of hangs and of drains start anew with the thaw (LM-55).

use std::time::Duration;

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::handle::Handle;
use log::Level;

use super::freeze::Freeze;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::counters::count;
use crate::vgpu::doorbells::requests::DoorbellRequests;
use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::engines::suspending::Suspending;
use crate::vgpu::power::d3::Power;
use crate::vgpu::power::d3::Transitions;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::waits::Waits;
use crate::vgpu::tdr::reason::Reason;
use crate::vgpu::tdr::recovery::Recovery;
use crate::vgpu::vm::Vm;

/// How long engines may take to stop where the operator says nothing (design §10.7).
pub const FREEZE_LIMIT: Duration = Duration::from_millis(100);

/// Brings a vGPU to a standstill, and out of it.
#[derive(Debug)]
pub struct Quiesce<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
    pub(in crate::vgpu) power: &'a mut Power,
}

impl<'a> Quiesce<'a> {
    /// Over these.
    pub fn of(vm: &'a mut Vm, power: &'a mut Power) -> Self {
        Self { vm, power }
    }
}

impl Quiesce<'_> {
    /// Begins to bring everything to a standstill. False, and nothing is changed, where that was begun before (LM-29).
    pub fn freeze(&mut self) -> bool {
        if self.vm.freeze.is_stopping() {
            return false;
        }
        // What was done until now counts.
        for at in self.vm.engines.addresses() {
            Recovery::of(self.vm).collect_reports(at);
        }
        Recovery::of(self.vm).replace_condemned();
        let mut suspends = Vec::new();
        for (context, handle) in self.vm.objects.all_contexts() {
            suspends.extend(self.vm.engines.hold(
                &mut self.vm.objects,
                &*self.vm.config.schedule,
                context,
                handle,
                |held| held.by_freeze = true,
            ));
        }
        self.vm.freeze = Freeze::Freezing(suspends, clock::now() + self.vm.config.freeze_limit);
        count(&self.vm.counters.freezes);
        Transitions::of(self.vm, self.power).give_up_d3();
        // An engine that was never given its node has run nothing, and may not be up.
        for at in self.vm.engines.addresses() {
            if self.vm.engines[at.index()].hears() && self.vm.engines[at.index()].supervised.is_none() {
                self.stop_for_freeze(at);
            }
        }
        if let Some(at) = self.vm.freeze.limit() {
            self.vm.timer.set(at);
        }
        self.look_at_freeze();
        true
    }

    /// Has the driver of each engine opened ahead that the thaw will start, where it is known that there will be one:
    /// the processes touch no memory of the vGPU before.
    pub fn warm_up(&mut self) {
        let stopped = |at: &EngineAddress| {
            self.vm.engines[at.index()].is_parked() && self.vm.engines[at.index()].is_stopped
        };
        let stopped: Vec<EngineAddress> = self.vm.engines.addresses().filter(stopped).collect();
        if self.vm.freeze.is_frozen() {
            stopped.into_iter().for_each(|at| Lifecycle::of(self.vm).start_spare(at));
        }
    }

    /// Whether everything has stopped by now.
    pub(in crate::vgpu) fn look_at_freeze(&mut self) {
        let Freeze::Freezing(suspends, limit) = &self.vm.freeze else { return };
        let late: Vec<EngineAddress> =
            suspends.iter().filter(|of| !self.vm.engines.is_reported(of)).map(Suspending::engine).collect();
        if late.is_empty() {
            return self.stand_still();
        }
        if clock::now() < *limit {
            return;
        }
        for at in self.vm.engines.addresses().filter(|at| late.contains(at)) {
            count(&self.vm.counters.freezes_forced);
            if let Some(process) = self.vm.engines[at.index()].process() {
                // Nothing is written from here on, so that what it has written can be told before it ends.
                process.hold();
            }
            Recovery::of(self.vm).recover_engine(
                at,
                Reason::EngineTimeout,
                "it did not stand still in time",
                None,
            );
        }
        // Its successors have run nothing: each suspend is reported in their place.
        if matches!(self.vm.freeze, Freeze::Freezing(..)) {
            self.stand_still();
        }
    }

    /// All contexts are off the engines: nothing of them is left, and what waited for them is done.
    fn stand_still(&mut self) {
        // First, since what engines report at their end is looked at as ever.
        self.vm.freeze = Freeze::Frozen { is_restored: false };
        for at in self.vm.engines.addresses() {
            // What an engine says at its end may be a reason to replace it; that process is ended in turn. A second one
            // has run nothing that it could report.
            for _ in 0..3 {
                if self.vm.engines[at.index()].hears() {
                    self.stop_for_freeze(at);
                }
            }
            if self.vm.engines[at.index()].hears() {
                self.vm
                    .journal
                    .line(Level::Error, format_args!("{at} engine could not be brought to an end"));
                Lifecycle::of(self.vm).stop_engine(at);
            }
        }
        // An engine that has ended has let go of everything.
        Deferred::of(self.vm).run_pending();
        Lifecycle::of(self.vm).finish_moves();
        Recovery::of(self.vm).replace_condemned();
        self.vm.journal.line(Level::Info, format_args!("stands still"));
    }

    /// Ends an engine process, and collects what it left.
    fn stop_for_freeze(&mut self, at: EngineAddress) {
        self.vm.doorbells().1.disconnect_all(at);
        self.vm.engines.unwatch(at);
        if let Err(error) = self.vm.engines[at.index()].stop() {
            self.vm.engines.condemn(at, &error.to_string());
            return Recovery::of(self.vm).replace_condemned();
        }
        if let Some(id) = self.vm.engines[at.index()].supervised.take() {
            self.vm.config.schedule.remove(id);
        }
        Recovery::of(self.vm).collect_reports(at);
        Recovery::of(self.vm).replace_condemned();
    }

    /// Goes on. False, and nothing is changed, where it did not stand still, nor was on its way there (LM-29).
    pub fn thaw(&mut self) -> bool {
        let is_restored = match std::mem::replace(&mut self.vm.freeze, Freeze::Running) {
            Freeze::Running => return false,
            Freeze::Freezing(..) => false,
            Freeze::Frozen { is_restored } => is_restored,
        };
        self.vm.is_fresh = false;
        if is_restored {
            Devices::of(self.vm).settle_guest_memory();
            self.publish_all();
            self.vm.memory.publish_budget(&self.vm.objects, &self.vm.config.account);
        }
        for at in self.vm.engines.addresses() {
            if self.vm.engines[at.index()].is_parked()
                && self.vm.engines[at.index()].is_stopped
                && let Err(error) = Lifecycle::of(self.vm).start_next_process(at)
            {
                self.vm.journal.line(Level::Error, format_args!("{at} engine: {error}"));
                self.vm.engines.condemn(at, "it could not be started again");
            }
        }
        self.start_for_waiting();
        for (context, handle) in self.vm.objects.all_contexts() {
            Submission::of(self.vm).unhold(context, handle, |held| held.by_freeze = false);
        }
        self.vm.doorbells.restart_drains(&self.vm.objects, &mut self.vm.engines, clock::now());
        for (resource, offset, token) in std::mem::take(&mut self.vm.memory.residency.deferred) {
            if let Err(refusal) = Deferred::of(self.vm).map_blob(resource, offset, token) {
                self.vm.objects.due.push((token, Err(refusal)));
            }
        }
        Waits::of(self.vm).release_all_waiters();
        Deferred::of(self.vm).run_pending();
        self.vm.memory.residency.look_again();
        Pager::of(self.vm).serve_residency();
        for at in self.vm.engines.addresses() {
            DoorbellRequests::of(self.vm).serve_connects(at);
        }
        self.power.quiet_since = self.power.quiet_since.map(|_| clock::now());
        self.vm.journal.line(Level::Info, format_args!("goes on"));
        true
    }

    /// Starts engines that messages wait for, and that have nothing yet. What an engine or a message waited for may have come
    /// while everything was to stand still.
    fn start_for_waiting(&mut self) {
        for at in self.vm.engines.addresses() {
            if !self.vm.engines[at.index()].waiting.is_empty()
                && let Err(refused) = Lifecycle::of(self.vm).ensure_engine(at)
            {
                Recovery::of(self.vm).refuse_waiting_for(at, &refused);
            }
            Kernels::of(self.vm).retry_waiting(at);
        }
    }

    /// Writes what guests read of the daemon's truth into their device pages (design §10.5).
    fn publish_all(&self) {
        let devices = self
            .vm
            .objects
            .processes
            .iter()
            .filter_map(|(of, process)| Some((*of, process.device.as_ref()?)));
        for (context, device) in devices {
            let words: Vec<(Handle, u64)> = device
                .doorbells
                .iter()
                .map(|(_, doorbell)| (doorbell.queue, doorbell.state.status().word()))
                .collect();
            for (queue, status) in words {
                let at = campanile_protocol::device_page::status(queue.index());
                self.vm.memory.store_page_word(&self.vm.objects, context, at, status);
            }
            let page = [
                (campanile_protocol::device_page::PAGING_FENCE, device.paging.done()),
                (campanile_protocol::device_page::DEVICE_STATUS, device.status),
            ];
            for (at, value) in page {
                self.vm.memory.store_page_word(&self.vm.objects, context, at, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    use std::time::Instant;

    use campanile_protocol::device_page::DEVICE_HUNG;
    use campanile_protocol::device_page::DEVICE_STATUS;
    use campanile_protocol::device_page::PAGING_FENCE;
    use campanile_protocol::device_page::status;
    use campanile_protocol::engine::block;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::handshake::power;

    use crate::vgpu::config::Config;
    use crate::vgpu::doorbells::drain::Drain;
    use crate::vgpu::doorbells::line::WaitingConnect;
    use crate::vgpu::doorbells::slots::Holder;
    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::objects::doorbell_state::DoorbellState;
    use crate::vgpu::objects::doorbell_state::Place;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::objects::process::Device;
    use crate::vgpu::objects::timeline::Token;
    use crate::vgpu::power::freeze::Freeze;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::counted;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::load;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;
    use campanile_host_gpu::ids::ContextIndex;
    use campanile_host_gpu::ids::DoorbellIndex;

    const ORIGIN: Origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };
    const DOORBELL: Handle = Handle::new(0, 1);

    /// A session that has been running, and stands still.
    fn frozen() -> Session {
        let mut session = restored(startable());
        assert!(session.freeze());
        // Its engine has never had its node: it is ended at once.
        session.event();
        assert!(session.is_frozen());
        session
    }

    fn word(session: &Session, at: u64) -> u64 {
        session.vm.memory.page(&session.vm.objects, OWNER).unwrap().word(at).unwrap().load(Ordering::Acquire)
    }

    #[test]
    fn what_an_engine_has_said_before_a_standstill_counts() {
        let mut session = restored(startable());
        store(&session, COPY, block::POWER, power::HUNG);
        assert!(session.freeze());
        assert_eq!(
            counted(&session.vm.counters.engines_reset),
            1,
            "it was replaced, and that one stands still"
        );
        let mut session = restored(startable());
        session.vm.engines.condemn(COPY, "a test");
        assert!(session.quiesce().freeze());
        assert_eq!(counted(&session.vm.counters.engines_reset), 1);
    }

    #[test]
    fn engines_that_have_run_nothing_do_not_keep_a_standstill_waiting() {
        let mut session = restored(Config { freeze_limit: Duration::from_secs(3600), ..startable() });
        let device = device(&mut session, OWNER);
        device
            .contexts
            .iter_mut()
            .for_each(|(_, context)| (context.at, context.entry) = (COPY, Some(ContextIndex::new(0))));
        assert!(session.freeze());
        assert!(session.is_frozen(), "its engine was never given its node");
    }

    #[test]
    fn doorbells_are_on_retry_in_a_standstill_and_connects_that_wait_are_served_after_it() {
        let mut session = restored(startable());
        let state = |session: &mut Session| device(session, OWNER).doorbells.get(DOORBELL).unwrap().state;
        let connect = |session: &mut Session| {
            let waiting = WaitingConnect { origin: ORIGIN, doorbell: DOORBELL };
            session.vm.engines[COPY.index()].line.push(OWNER, waiting);
        };
        connect(&mut session);
        crate::vgpu::doorbells::requests::DoorbellRequests::of(&mut session.vm).serve_connects(COPY);
        assert_eq!(state(&mut session), DoorbellState::Connected(Place::Own(DoorbellIndex::new(0))));
        assert!(session.freeze() && session.is_frozen());
        assert_eq!(state(&mut session), DoorbellState::Retry);
        connect(&mut session);
        assert!(session.thaw());
        assert_eq!(state(&mut session), DoorbellState::Connected(Place::Own(DoorbellIndex::new(0))));
    }

    #[test]
    fn lm_55_drains_have_all_their_time_again_after_a_standstill() {
        let mut session = frozen();
        let began = Instant::now().checked_sub(Duration::from_secs(30)).unwrap();
        session.vm.doorbells.drains.push(Drain {
            holder: Holder { context: OWNER, doorbell: DOORBELL },
            origin: ORIGIN,
            last_queued: u64::MAX,
            completed: 0,
            since: began,
            timeout: Duration::from_secs(60),
        });
        assert!(session.thaw());
        let next = session.vm.doorbells.next_drain().unwrap();
        assert!(next >= began + Duration::from_secs(90), "its clock has stood still");
        let hw_queue = device(&mut session, OWNER).doorbells.get(DOORBELL).unwrap().hw_queue.unwrap();
        let asked = block::queue(u32::from(hw_queue.get())) + block::QUEUE_DRAIN;
        assert_eq!(load(&session, COPY, asked), 1, "the next process is asked, too");
    }

    #[test]
    fn a_guest_that_comes_from_elsewhere_reads_what_the_daemon_knows_in_its_device_pages() {
        for is_restored in [false, true] {
            let mut session = frozen();
            session.vm.freeze = Freeze::Frozen { is_restored };
            let of = device(&mut session, OWNER);
            of.status = DEVICE_HUNG;
            of.paging.done = 99;
            let queue = of.doorbells.get(DOORBELL).unwrap().queue;
            let retry = DoorbellState::Retry.status().word();
            session.vm.memory.store_page_word(&session.vm.objects, OWNER, status(queue.index()), !retry);
            assert!(session.thaw());
            let seen = [DEVICE_STATUS, PAGING_FENCE, status(queue.index())].map(|at| word(&session, at));
            // Where guest memory is not there either, its doorbells are dead by now.
            let told = device(&mut session, OWNER).doorbells.get(DOORBELL).unwrap().state.status().word();
            let expected = if is_restored { [DEVICE_HUNG, 99, told] } else { [0, 0, !retry] };
            assert_eq!(seen, expected, "{is_restored}");
            assert!(!session.vm.is_fresh);
        }
    }

    #[test]
    fn what_waited_for_engines_is_done_in_a_standstill() {
        let mut session = restored(startable());
        let barrier = Barrier::raise(&mut session.vm.engines);
        crate::vgpu::control::deferred::Deferred::of(&mut session.vm)
            .after(barrier, Action::Answer(Token(5)));
        assert!(session.vm.objects.due.is_empty());
        assert!(session.freeze() && session.is_frozen());
        assert!(session.vm.objects.due.contains(&(Token(5), Ok(()))));
        assert!(session.take_due().is_empty(), "it is due when all goes on");
        assert!(session.vm.objects.device(OWNER).is_ok_and(Device::is_active));
    }
}

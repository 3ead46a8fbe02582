//! Power: F1 of engines (UMS-118, UMS-119), D0 and D3 of the device (UMS-123 to UMS-125).
//!
//! ```text
//!        operator, or all engines asleep for long            every suspend is reported
//!   D0 ───────────────────────────────────────────▶ LEAVING ───────────────────────────▶ D3
//!    ▲         suspends all contexts                   │      disconnects all doorbells,  │
//!    │                                                 │      ends the engine processes   │
//!    └──── operator, or a message that needs an engine ┴──────────────────────────────────┘
//!          starts the engine processes, then does what the message says, then resumes all contexts
//! ```
//!
//! Guests see RETRY and a connect that takes longer; handles, addresses and queued work stay. Video memory stays where it
//! is: it is evicted in D3.

use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use log::Level;
use serde_json::json;

use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::orders::OrderError;
use crate::vgpu::control::orders::PendingOrder;
use crate::vgpu::counters::count;
use crate::vgpu::doorbells::room::connected_on;
use crate::vgpu::engines::device_moves::is_free;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::engines::suspending::Suspending;
use crate::vgpu::power::freeze::standing_still;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::tdr::recovery::Recovery;
use crate::vgpu::vm::Vm;

/// How long a device is idle at least before it goes to D3 by itself, however short the operator wants it.
const SHORTEST_IDLENESS: Duration = Duration::from_millis(1);

/// Where a device stands.
#[derive(Debug, Default)]
pub enum State {
    /// On.
    #[default]
    D0,
    /// On the way to D3: these suspends are not reported yet, and these orders wait for it.
    Leaving(Vec<Suspending>, Vec<PendingOrder>),
    /// Off: no engine process runs.
    D3,
}

/// The power state of a device.
#[derive(Debug, Default)]
pub struct Power {
    /// Where it stands.
    pub state: State,
    /// Since when engines may all be asleep.
    pub quiet_since: Option<Instant>,
}

impl Power {
    /// The name of its state, for people.
    pub const fn name(&self) -> &'static str {
        match self.state {
            State::D0 => "D0",
            State::Leaving(..) => "leaving D0",
            State::D3 => "D3",
        }
    }
}

/// F1, D0 and D3, and what they work on.
#[derive(Debug)]
pub struct Transitions<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
    pub(in crate::vgpu) power: &'a mut Power,
}

impl<'a> Transitions<'a> {
    /// Over these.
    pub fn of(vm: &'a mut Vm, power: &'a mut Power) -> Self {
        Self { vm, power }
    }
}

impl Transitions<'_> {
    /// TRANSITION_TO_F1: every doorbell of the engine is disconnected first, then it may sleep (UMS-118). Other
    /// engines' doorbells stay (UMS-119).
    pub(in crate::vgpu) fn engine_to_f1(&mut self, at: EngineAddress) {
        self.vm.doorbells().1.disconnect_all(at);
        let process = self.vm.engines[at.index()].process_mut();
        if process.is_some_and(|process| process.power.allow_f1()) {
            count(&self.vm.counters.f1_transitions);
            self.power.quiet_since = Some(clock::now());
            if let Some(at) = self.next_idleness() {
                self.vm.timer.set(at);
            }
        }
    }

    /// Begins to go to D3. `pending` is answered when it is there.
    pub(in crate::vgpu) fn enter_d3(&mut self, pending: Option<PendingOrder>) {
        if self.vm.freeze.is_stopping() {
            return pending.into_iter().for_each(|pending| pending.answer(Err(standing_still())));
        }
        match &mut self.power.state {
            State::D0 => {
                let mut suspends = Vec::new();
                for (context, handle) in self.vm.objects.all_contexts() {
                    suspends.extend(self.vm.engines.hold(
                        &mut self.vm.objects,
                        &*self.vm.config.schedule,
                        context,
                        handle,
                        |held| held.by_power = true,
                    ));
                }
                self.power.state = State::Leaving(suspends, pending.into_iter().collect());
            }
            State::Leaving(_, waiting) => waiting.extend(pending),
            State::D3 => {
                if let Some(pending) = pending {
                    pending.answer(Ok(json!({ "power": self.power.name() })));
                }
            }
        }
        self.look_at_power();
    }

    /// Whether all contexts are off the engines by now.
    pub(in crate::vgpu) fn look_at_power(&mut self) {
        let State::Leaving(suspends, _) = &self.power.state else { return };
        if !suspends.iter().all(|of| self.vm.engines.is_reported(of)) {
            return;
        }
        // First, since what engines report at their end is looked at as ever.
        let State::Leaving(_, pending) = std::mem::replace(&mut self.power.state, State::D3) else { return };
        count(&self.vm.counters.d3_transitions);
        for at in self.vm.engines.addresses() {
            self.vm.doorbells().1.disconnect_all(at);
            self.park_engine(at);
        }
        for pending in pending {
            pending.answer(Ok(json!({ "power": self.power.name() })));
        }
        // An engine that has ended has let go of everything.
        Deferred::of(self.vm).run_pending();
    }

    /// Ends an engine process that runs nothing. One that compiles, or that a message waits for, goes on.
    fn park_engine(&mut self, at: EngineAddress) {
        let slot = &self.vm.engines[at.index()];
        if !slot.is_running() || !slot.compiling.is_empty() || !slot.waiting.is_empty() {
            return;
        }
        // What waits for memory that it moves may be all that a guest waits for.
        if !is_free(slot, at, self.vm.engines.moves.has_arrivals()) {
            return;
        }
        self.vm.engines.unwatch(at);
        let slot = &mut self.vm.engines[at.index()];
        if let Err(error) = slot.park() {
            return self.vm.engines.condemn(at, &error.to_string());
        }
        if let Some(id) = slot.supervised.take() {
            self.vm.config.schedule.remove(id);
        }
        // What was done before the end counts.
        Recovery::of(self.vm).collect_reports(at);
    }

    /// D0 again, with engine processes on their way, and contexts still suspended. False in D0.
    pub(in crate::vgpu) fn leave_d3(&mut self) -> bool {
        match std::mem::replace(&mut self.power.state, State::D0) {
            State::D0 => return false,
            State::Leaving(_, pending) => {
                for pending in pending {
                    let text = "a guest has work, and has woken it".to_owned();
                    pending.answer(Err(OrderError::Refused(text)));
                }
            }
            State::D3 => {}
        }
        for at in self.vm.engines.addresses() {
            if self.vm.engines[at.index()].is_parked()
                && let Err(error) = Lifecycle::of(self.vm).start_next_process(at)
            {
                self.vm.journal.line(Level::Error, format_args!("{at} engine: {error}"));
                self.vm.engines.condemn(at, "it could not be started again");
            }
        }
        true
    }

    /// Does not go to D3 after all, since everything is to stand still. Contexts stay suspended for that.
    pub(in crate::vgpu) fn give_up_d3(&mut self) {
        if !matches!(self.power.state, State::Leaving(..)) {
            return;
        }
        let State::Leaving(_, pending) = std::mem::replace(&mut self.power.state, State::D0) else { return };
        pending.into_iter().for_each(|pending| pending.answer(Err(standing_still())));
        for (context, handle) in self.vm.objects.all_contexts() {
            Submission::of(self.vm).unhold(context, handle, |held| held.by_power = false);
        }
    }

    /// All contexts may run again, and their engines find what came meanwhile.
    pub(in crate::vgpu) fn resume_from_d3(&mut self) {
        for (context, handle) in self.vm.objects.all_contexts() {
            Submission::of(self.vm).unhold(context, handle, |held| held.by_power = false);
        }
    }

    /// Whether all engines sleep, and nothing is under way. A doorbell that is connected may have been rung, though its
    /// engine has not woken yet.
    fn is_idle(&self) -> bool {
        let sleeps = |at: EngineAddress| {
            let slot = &self.vm.engines[at.index()];
            slot.in_flight.is_empty()
                && connected_on(&self.vm.objects, at).is_empty()
                && slot.process().is_none_or(|process| process.power.is_asleep() && process.is_up_to_date())
        };
        matches!(self.power.state, State::D0)
            && self.vm.doorbells.drains.is_empty()
            && !self.vm.engines.moves.has_arrivals()
            && self.vm.engines.addresses().all(sleeps)
            && self.vm.engines.iter().any(|slot| slot.hears())
    }

    /// When the device may have been idle for long enough.
    pub(in crate::vgpu) fn next_idleness(&self) -> Option<Instant> {
        Some(self.power.quiet_since? + self.vm.config.d3_after?.max(SHORTEST_IDLENESS))
    }

    /// Goes to D3 when it has been idle for long enough. Where a doorbell is connected by now, the next engine that falls
    /// asleep begins anew; where something is only under way, such as an engine that may sleep but does not yet, or a
    /// standstill, it is looked at again after as long.
    pub(in crate::vgpu) fn look_at_idleness(&mut self) {
        if self.next_idleness().is_none_or(|at| at > clock::now()) {
            return;
        }
        self.power.quiet_since = None;
        let may_become_idle = |of: &Self| {
            matches!(of.power.state, State::D0)
                && of.vm.engines.iter().any(EngineSlot::hears)
                && of.vm.engines.addresses().all(|at| connected_on(&of.vm.objects, at).is_empty())
        };
        if !self.vm.freeze.is_stopping() && self.is_idle() {
            self.enter_d3(None);
        } else if self.vm.freeze.is_stopping() || may_become_idle(self) {
            self.power.quiet_since = Some(clock::now());
        }
    }

    /// An engine signalled.
    pub(in crate::vgpu) fn engine_event(&mut self, at: EngineAddress) {
        let Some(process) = self.vm.engines[at.index()].process() else { return };
        process.drain_event();
        let sleepy = process.power.wishes_f1();
        Recovery::of(self.vm).collect_reports(at);
        if sleepy {
            self.engine_to_f1(at);
        }
        Deferred::of(self.vm).run_pending();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::engine::block;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::handshake::power;

    use super::State;
    use crate::vgpu::control::deferred::Deferred;
    use crate::vgpu::doorbells::drain::Drain;
    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::engines::pending_kernel::PendingKernel;
    use crate::vgpu::engines::slot::WaitingMessage;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::objects::timeline::Token;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::end;
    use crate::vgpu::testing::give;
    use crate::vgpu::testing::load;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::run;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;

    const ORIGIN: Origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };

    fn asleep() -> Session {
        let mut session = session(&Arc::new(startable()));
        run(&mut session, COPY);
        store(&session, COPY, block::POWER, power::ASLEEP);
        store(&session, COPY, block::WATCH_ACK, load(&session, COPY, block::WATCH_SEQUENCE));
        session
    }

    #[test]
    fn ums_123_a_device_is_idle_when_its_engines_sleep_and_nothing_is_under_way() {
        assert!(asleep().power().is_idle());
        let mut session = asleep();
        store(&session, COPY, block::POWER, power::ACTIVE);
        assert!(!session.power().is_idle(), "one is awake");
        session = asleep();
        session.vm.engines[COPY.index()].process_mut().unwrap().ask_acknowledgement();
        assert!(!session.power().is_idle(), "one owes something");
        session = asleep();
        give(&mut session, None);
        assert!(!session.power().is_idle(), "one has a buffer that it has not seen");
        session = asleep();
        let holder = crate::vgpu::doorbells::slots::Holder { context: OWNER, doorbell: Handle::new(0, 1) };
        let (since, timeout) = (std::time::Instant::now(), std::time::Duration::from_secs(600));
        session.vm.doorbells.drains.push(Drain {
            holder,
            origin: ORIGIN,
            last_queued: 2,
            completed: 1,
            since,
            timeout,
        });
        assert!(!session.power().is_idle(), "a doorbell ends");
        session = asleep();
        session.power.state = State::D3;
        assert!(!session.power().is_idle(), "it is off");
    }

    #[test]
    fn ums_123_an_engine_that_compiles_or_is_waited_for_goes_on_in_d3() {
        for why in 0..3 {
            let mut session = asleep();
            let slot = &mut session.vm.engines[COPY.index()];
            match why {
                0 => {}
                1 => drop(slot.compiling.insert((1, 1), PendingKernel::new(ORIGIN, Handle(1), 1))),
                _ => slot.waiting.push(WaitingMessage {
                    origin: ORIGIN,
                    opcode: 0,
                    body: Vec::new(),
                    charge: None,
                }),
            }
            session.power().park_engine(COPY);
            assert_eq!(session.vm.engines[COPY.index()].is_parked(), why == 0, "{why}");
            assert_eq!(session.vm.engines[COPY.index()].hears(), why != 0);
        }
    }

    #[test]
    fn ums_123_what_an_engine_had_done_and_what_waited_for_it_counts_in_d3() {
        let mut session = asleep();
        let barrier = Barrier::raise(&mut session.vm.engines);
        Deferred::of(&mut session.vm).after(barrier, Action::Answer(Token(5)));
        assert!(session.vm.objects.due.is_empty(), "its engine has not looked");
        let fence = give(&mut session, None);
        end(&session, 0, fence, 0);
        session.power().enter_d3(None);
        assert!(matches!(session.power.state, State::D3) && session.vm.engines[COPY.index()].is_parked());
        assert_eq!(session.vm.engines[COPY.index()].fences.completed(), fence);
        assert_eq!(session.vm.objects.due, [(Token(5), Ok(()))]);
    }

    #[test]
    fn ums_124_a_device_that_is_on_its_way_to_d3_is_called_back() {
        let mut session = restored(startable());
        session.power().enter_d3(None);
        assert!(matches!(session.power.state, State::Leaving(..)), "its engine has not reported");
        let held = |session: &Session| {
            let device = session.vm.objects.processes[&OWNER].device.as_ref().unwrap();
            device.contexts.get(CONTEXT).unwrap().held.by_power
        };
        assert!(held(&session));
        assert!(session.power().leave_d3());
        session.power().resume_from_d3();
        assert!(matches!(session.power.state, State::D0) && !held(&session));
        assert!(!session.power().leave_d3(), "it is there");
    }

    #[test]
    fn lm_27_a_standstill_calls_a_device_back_that_is_on_its_way_to_d3_and_holds_contexts_for_itself_alone() {
        let mut session = restored(startable());
        session.power().enter_d3(None);
        assert!(matches!(session.power.state, State::Leaving(..)) && session.freeze());
        let held = |session: &Session| {
            let device = session.vm.objects.processes[&OWNER].device.as_ref().unwrap();
            device.contexts.get(CONTEXT).unwrap().held
        };
        assert!(matches!(session.power.state, State::D0));
        assert_eq!((held(&session).by_power, held(&session).by_freeze), (false, true));
        assert!(session.thaw());
        assert!(!held(&session).any(), "and lets them go");
    }
}

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

use super::quiesce::standing_still;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::orders::Errand;
use crate::vgpu::control::orders::OrderError;
use crate::vgpu::counters::count;
use crate::vgpu::doorbells::room::connected_on;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::engines::suspending::Suspending;
use crate::vgpu::session::Session;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::tdr::recovery::Recovery;

/// How long a device is idle at least before it goes to D3 by itself, however short the operator wants it.
const SHORTEST_IDLENESS: Duration = Duration::from_millis(1);

/// Where a device stands.
#[derive(Debug)]
pub enum Power {
    /// On.
    D0,
    /// On the way to D3: these suspends are not reported yet, and these orders wait for it.
    Leaving(Vec<Suspending>, Vec<Errand>),
    /// Off: no engine process runs.
    D3,
}

impl Power {
    /// Its name, for people.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::D0 => "D0",
            Self::Leaving(..) => "leaving D0",
            Self::D3 => "D3",
        }
    }
}

impl Session {
    /// TRANSITION_TO_F1: every doorbell of the engine is disconnected first, then it may sleep (UMS-118). Other
    /// engines' doorbells stay (UMS-119).
    pub(in crate::vgpu) fn engine_to_f1(&mut self, at: EngineAddress) {
        self.rooms.doorbells().1.disconnect_all(at);
        let process = self.rooms.engines[at.index()].process_mut();
        if process.is_some_and(|process| process.power.allow_f1()) {
            count(&self.rooms.counters.f1_transitions);
            self.quiet_since = Some(clock::now());
            self.set_timer();
        }
    }

    /// Begins to go to D3. `errand` is answered when it is there.
    pub(in crate::vgpu) fn enter_d3(&mut self, errand: Option<Errand>) {
        if self.rooms.freeze.is_stopping() {
            return errand.into_iter().for_each(|errand| errand.answer(Err(standing_still())));
        }
        match &mut self.power {
            Power::D0 => {
                let mut suspends = Vec::new();
                for (context, handle) in self.rooms.objects.all_contexts() {
                    suspends.extend(self.rooms.engines.hold(
                        &mut self.rooms.objects,
                        &self.rooms.config.supervisor,
                        context,
                        handle,
                        |held| held.by_power = true,
                    ));
                }
                self.power = Power::Leaving(suspends, errand.into_iter().collect());
            }
            Power::Leaving(_, errands) => errands.extend(errand),
            Power::D3 => {
                if let Some(errand) = errand {
                    errand.answer(Ok(json!({ "power": self.power.name() })));
                }
            }
        }
        self.look_at_power();
    }

    /// Whether all contexts are off the engines by now.
    pub(in crate::vgpu) fn look_at_power(&mut self) {
        let Power::Leaving(suspends, _) = &self.power else { return };
        if !suspends.iter().all(|of| self.rooms.engines.is_reported(of)) {
            return;
        }
        // First, since what engines report at their end is looked at as ever.
        let Power::Leaving(_, errands) = std::mem::replace(&mut self.power, Power::D3) else { return };
        count(&self.rooms.counters.d3_transitions);
        for at in self.rooms.engines.addresses() {
            self.rooms.doorbells().1.disconnect_all(at);
            self.park_engine(at);
        }
        for errand in errands {
            errand.answer(Ok(json!({ "power": self.power.name() })));
        }
        // An engine that has ended has let go of everything.
        Deferred::of(&mut self.rooms).run_pending();
    }

    /// Ends an engine process that runs nothing. One that compiles, or that a message waits for, goes on.
    fn park_engine(&mut self, at: EngineAddress) {
        let slot = &self.rooms.engines[at.index()];
        if !slot.is_running() || !slot.compiling.is_empty() || !slot.waiting.is_empty() {
            return;
        }
        self.rooms.engines.unwatch(at);
        let slot = &mut self.rooms.engines[at.index()];
        if let Err(error) = slot.park() {
            return self.rooms.engines.condemn(at, &error.to_string());
        }
        if let Some(id) = slot.supervised.take() {
            self.rooms.config.supervisor.remove(id);
        }
        // What was done before the end counts.
        Recovery::of(&mut self.rooms).collect_reports(at);
    }

    /// D0 again, with engine processes on their way, and contexts still suspended. False in D0.
    pub(in crate::vgpu) fn leave_d3(&mut self) -> bool {
        match std::mem::replace(&mut self.power, Power::D0) {
            Power::D0 => return false,
            Power::Leaving(_, errands) => {
                for errand in errands {
                    let text = "a guest has work, and has woken it".to_owned();
                    errand.answer(Err(OrderError::Refused(text)));
                }
            }
            Power::D3 => {}
        }
        for at in self.rooms.engines.addresses() {
            if self.rooms.engines[at.index()].is_parked()
                && let Err(error) = Lifecycle::of(&mut self.rooms).start_next_process(at)
            {
                self.rooms.journal.line(Level::Error, format_args!("{at} engine: {error}"));
                self.rooms.engines.condemn(at, "it could not be started again");
            }
        }
        true
    }

    /// Does not go to D3 after all, since everything is to stand still. Contexts stay suspended for that.
    pub(in crate::vgpu) fn give_up_d3(&mut self) {
        if !matches!(self.power, Power::Leaving(..)) {
            return;
        }
        let Power::Leaving(_, errands) = std::mem::replace(&mut self.power, Power::D0) else { return };
        errands.into_iter().for_each(|errand| errand.answer(Err(standing_still())));
        for (context, handle) in self.rooms.objects.all_contexts() {
            Submission::of(&mut self.rooms).unhold(context, handle, |held| held.by_power = false);
        }
    }

    /// All contexts may run again, and their engines find what came meanwhile.
    pub(in crate::vgpu) fn resume_from_d3(&mut self) {
        for (context, handle) in self.rooms.objects.all_contexts() {
            Submission::of(&mut self.rooms).unhold(context, handle, |held| held.by_power = false);
        }
    }

    /// Whether all engines sleep, and nothing is under way. A doorbell that is connected may have been rung, though its
    /// engine has not woken yet.
    fn is_idle(&self) -> bool {
        let sleeps = |at: EngineAddress| {
            let slot = &self.rooms.engines[at.index()];
            slot.in_flight.is_empty()
                && connected_on(&self.rooms.objects, at).is_empty()
                && slot.process().is_none_or(|process| process.power.is_asleep() && process.is_up_to_date())
        };
        matches!(self.power, Power::D0)
            && self.rooms.doorbells.drains.is_empty()
            && self.rooms.engines.addresses().all(sleeps)
            && self.rooms.engines.iter().any(|slot| slot.hears())
    }

    /// When the device may have been idle for long enough.
    pub(in crate::vgpu) fn next_idleness(&self) -> Option<Instant> {
        Some(self.quiet_since? + self.rooms.config.d3_after?.max(SHORTEST_IDLENESS))
    }

    /// Goes to D3 when it has been idle for long enough. Where a doorbell is connected by now, the next engine that falls
    /// asleep begins anew; where something is only under way, such as an engine that may sleep but does not yet, or a
    /// standstill, it is looked at again after as long.
    pub(in crate::vgpu) fn look_at_idleness(&mut self) {
        if self.next_idleness().is_none_or(|at| at > clock::now()) {
            return;
        }
        self.quiet_since = None;
        let may_become_idle = |of: &Self| {
            matches!(of.power, Power::D0)
                && of.rooms.engines.iter().any(EngineSlot::hears)
                && of.rooms.engines.addresses().all(|at| connected_on(&of.rooms.objects, at).is_empty())
        };
        if !self.rooms.freeze.is_stopping() && self.is_idle() {
            self.enter_d3(None);
        } else if self.rooms.freeze.is_stopping() || may_become_idle(self) {
            self.quiet_since = Some(clock::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::engine::block;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::handshake::power;

    use super::Power;
    use super::Session;
    use crate::vgpu::doorbells::drain::Drain;
    use crate::vgpu::engines::slot::PendingKernel;
    use crate::vgpu::engines::slot::WaitingMessage;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
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
        assert!(asleep().is_idle());
        let mut session = asleep();
        store(&session, COPY, block::POWER, power::ACTIVE);
        assert!(!session.is_idle(), "one is awake");
        session = asleep();
        session.rooms.engines[COPY.index()].process_mut().unwrap().ask_acknowledgement();
        assert!(!session.is_idle(), "one owes something");
        session = asleep();
        give(&mut session, None);
        assert!(!session.is_idle(), "one has a buffer that it has not seen");
        session = asleep();
        let holder = crate::vgpu::doorbells::slots::Holder { context: OWNER, doorbell: Handle::new(0, 1) };
        let (since, timeout) = (std::time::Instant::now(), std::time::Duration::from_secs(600));
        session.rooms.doorbells.drains.push(Drain {
            holder,
            origin: ORIGIN,
            last_queued: 2,
            completed: 1,
            since,
            timeout,
        });
        assert!(!session.is_idle(), "a doorbell ends");
        session = asleep();
        session.power = Power::D3;
        assert!(!session.is_idle(), "it is off");
    }

    #[test]
    fn ums_123_an_engine_that_compiles_or_is_waited_for_goes_on_in_d3() {
        for why in 0..3 {
            let mut session = asleep();
            let slot = &mut session.rooms.engines[COPY.index()];
            match why {
                0 => {}
                1 => drop(
                    slot.compiling
                        .insert((1, 1), PendingKernel { origin: ORIGIN, handle: Handle(1), number: 1 }),
                ),
                _ => slot.waiting.push(WaitingMessage {
                    origin: ORIGIN,
                    opcode: 0,
                    body: Vec::new(),
                    charge: None,
                }),
            }
            session.park_engine(COPY);
            assert_eq!(session.rooms.engines[COPY.index()].is_parked(), why == 0, "{why}");
            assert_eq!(session.rooms.engines[COPY.index()].hears(), why != 0);
        }
    }

    #[test]
    fn ums_124_a_device_that_is_on_its_way_to_d3_is_called_back() {
        let mut session = restored(startable());
        session.enter_d3(None);
        assert!(matches!(session.power, Power::Leaving(..)), "its engine has not reported");
        let held = |session: &Session| {
            let device = session.rooms.objects.processes[&OWNER].device.as_ref().unwrap();
            device.contexts.get(CONTEXT).unwrap().held.by_power
        };
        assert!(held(&session));
        assert!(session.leave_d3());
        session.resume_from_d3();
        assert!(matches!(session.power, Power::D0) && !held(&session));
        assert!(!session.leave_d3(), "it is there");
    }

    #[test]
    fn lm_27_a_standstill_calls_a_device_back_that_is_on_its_way_to_d3_and_holds_contexts_for_itself_alone() {
        let mut session = restored(startable());
        session.enter_d3(None);
        assert!(matches!(session.power, Power::Leaving(..)) && session.freeze());
        let held = |session: &Session| {
            let device = session.rooms.objects.processes[&OWNER].device.as_ref().unwrap();
            device.contexts.get(CONTEXT).unwrap().held
        };
        assert!(matches!(session.power, Power::D0));
        assert_eq!((held(&session).by_power, held(&session).by_freeze), (false, true));
        assert!(session.thaw());
        assert!(!held(&session).any(), "and lets them go");
    }
}

//! Suspend and resume of contexts (UMS-102 to UMS-114).
//!
//! ```text
//!   SUSPEND_CONTEXT ─▶ off the run list, request word of the engine (fence n) ─▶ PENDING
//!     engine: puts its queues aside, gives its kernel-mode buffers back, reports n ─▶ SUSPENDED: answered
//!   RESUME_CONTEXT ─▶ request word ─▶ every ring is looked at again (UMS-105), the software queue is listed again
//! ```
//!
//! Doorbells stay connected and rings stay where they are; what comes meanwhile is held (UMS-103, UMS-104, UMS-107). The
//! supervisor has the engine reset that does not report in time (UMS-112).

use super::room::Engines;
use super::suspending::Suspending;
use crate::ids::GuestProcess;
use crate::sched::schedule::Schedule;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::processes::Objects;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::control::reply::Suspended;

use crate::vgpu::objects::holds::Holds;
use crate::vgpu::objects::message::Origin;

/// A context that no reason holds any more: it is listed again, and the hardware queue of its engine is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Resumed {
    /// The guest process.
    pub context: GuestProcess,
    /// The context.
    pub handle: ContextHandle,
    /// Its engine.
    pub at: EngineAddress,
}

impl Engines {
    /// Suspends a context for one more reason. `None` where its engine is lost.
    pub(in crate::vgpu) fn hold(
        &mut self,
        objects: &mut Objects,
        schedule: &dyn Schedule,
        context: GuestProcess,
        handle: ContextHandle,
        reason: impl Fn(&mut Holds),
    ) -> Option<Suspending> {
        let object = objects.device_mut(context).ok()?.contexts.get_mut(handle)?;
        let (at, entry, was_held) = (object.at, object.entry?, object.held.any());
        reason(&mut object.held);
        let slot = &mut self[at.index()];
        let supervised = slot.supervised;
        let process = slot.process_mut()?;
        let fence = if was_held { process.contexts.suspends(entry) } else { process.suspend_context(entry) };
        if let Some(id) = supervised.filter(|_| !was_held) {
            schedule.expect_suspend(id, entry, fence);
        }
        Some(Suspending { context, handle, at, entry, fence, origin: None })
    }

    /// Takes one reason back; with the last one gone, the context runs again, and its engine looks at its rings.
    pub(in crate::vgpu) fn unhold(
        &mut self,
        objects: &mut Objects,
        context: GuestProcess,
        handle: ContextHandle,
        reason: impl Fn(&mut Holds),
    ) -> Option<Resumed> {
        let device = objects.device_mut(context).ok()?;
        let object = device.contexts.get_mut(handle)?;
        let was_held = object.held.any();
        reason(&mut object.held);
        if !was_held || object.held.any() {
            return None;
        }
        let (at, entry) = (object.at, object.entry);
        let rings = device
            .doorbells
            .iter()
            .filter(|(_, bell)| {
                bell.was_connected
                    && device.queues.get(bell.queue).is_some_and(|queue| queue.context == handle)
            })
            .filter_map(|(_, bell)| bell.hw_queue);
        if let Some((process, entry)) = self[at.index()].process_mut().zip(entry) {
            for hw_queue in rings {
                process.ask_look(hw_queue);
            }
            process.resume_context(entry);
        }
        Some(Resumed { context, handle, at })
    }

    /// Whether nothing of the context is on the GPU any more (UMS-110).
    pub(in crate::vgpu) fn is_reported(&self, suspending: &Suspending) -> bool {
        let process = self[suspending.at.index()].process();
        process.is_none_or(|process| process.contexts.suspend_reported(suspending.entry) >= suspending.fence)
    }

    /// Takes the suspends that an engine has reported, each with the message to answer, where there is one.
    ///
    /// # Errors
    /// What the engine reports cannot be.
    pub(in crate::vgpu) fn take_reported(
        &mut self,
        at: EngineAddress,
    ) -> Result<Vec<(Option<Origin>, Suspended)>, String> {
        let Some(process) = self[at.index()].process() else { return Ok(Vec::new()) };
        process.contexts.take_suspend_reports().map_err(|violation| violation.to_string())?;
        let (done, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.suspending).into_iter().partition(|of| self.is_reported(of));
        self.suspending = waiting;
        Ok(done.into_iter().map(|of| (of.origin, Suspended { fence: of.fence })).collect())
    }
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::memory::bits;
    use campanile_protocol::control::message::Named;
    use campanile_protocol::control::status::Status;
    use campanile_protocol::engine::block;

    use crate::vgpu::engines::suspending::Suspending;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::objects::process::MAX_WAITS;
    use crate::vgpu::objects::waits::GpuWait;
    use crate::vgpu::session::Session;
    use crate::vgpu::submission::buffers::Submission;
    use crate::vgpu::submission::reports::EngineReports;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::entry;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::shared;
    use crate::vgpu::testing::startable;

    fn suspends(session: &mut Session) -> u64 {
        let entry = entry(session);
        session.vm.engines[COPY.index()].process().unwrap().contexts.suspends(entry)
    }

    fn looks(session: &Session) -> Vec<u32> {
        bits::take(&shared(session, COPY), block::LOOK, block::LOOK_WORDS)
    }

    #[test]
    fn ums_105_ums_109_a_context_with_two_reasons_is_suspended_once_and_runs_when_both_are_gone() {
        let mut session = restored(startable());
        let before = suspends(&mut session);
        let first = session
            .vm
            .engines
            .hold(&mut session.vm.objects, &*session.vm.config.schedule, OWNER, CONTEXT, |held| {
                held.by_guest = true
            })
            .unwrap();
        let second = session
            .vm
            .engines
            .hold(&mut session.vm.objects, &*session.vm.config.schedule, OWNER, CONTEXT, |held| {
                held.by_power = true
            })
            .unwrap();
        assert_eq!((suspends(&mut session), second.fence), (before + 1, first.fence));
        looks(&session);
        Submission::of(&mut session.vm).fill_hw_queue(COPY);
        Submission::of(&mut session.vm).unhold(OWNER, CONTEXT, |held| held.by_guest = false);
        assert_eq!((looks(&session), session.vm.engines[COPY.index()].in_flight.len()), (Vec::new(), 0));
        Submission::of(&mut session.vm).unhold(OWNER, CONTEXT, |held| held.by_power = false);
        let bells = device(&mut session, OWNER).doorbells.iter().filter(|(_, bell)| bell.was_connected);
        let mut expected: Vec<u32> =
            bells.filter_map(|(_, bell)| bell.hw_queue.map(|queue| u32::from(queue.get()))).collect();
        expected.sort_unstable();
        assert!(!expected.is_empty());
        assert_eq!(looks(&session), expected, "its rings are looked at again");
        assert_eq!(session.vm.engines[COPY.index()].in_flight.len(), 2, "and its buffers go on");
        assert_eq!(suspends(&mut session), before + 1);
    }

    #[test]
    fn suspends_that_wait_are_bounded() {
        let mut session = restored(startable());
        let of = session
            .vm
            .engines
            .hold(&mut session.vm.objects, &*session.vm.config.schedule, OWNER, CONTEXT, |held| {
                held.by_guest = true
            })
            .unwrap();
        session.vm.engines.suspending = vec![Suspending { context: OWNER, ..of }; MAX_WAITS];
        let origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };
        let outcome =
            EngineReports::of(&mut session.vm).suspend_context(origin, &Named { handle: CONTEXT.get() });
        assert_eq!(outcome.err().map(|refused| refused.status), Some(Status::OutOfResources));
    }

    #[test]
    fn what_a_queue_holds_is_cancelled_where_its_guest_suspended_it_and_kept_where_another_did() {
        for by_guest in [false, true] {
            let mut session = restored(startable());
            session
                .vm
                .engines
                .hold(&mut session.vm.objects, &*session.vm.config.schedule, OWNER, CONTEXT, |held| {
                    (held.by_guest, held.by_power) = (by_guest, !by_guest)
                })
                .unwrap();
            let its_device = device(&mut session, OWNER);
            let context = its_device.contexts.get_mut(CONTEXT).unwrap();
            (context.is_parked, context.listed) = (true, true);
            let queue = context.software_queue[0].queue;
            its_device.gpu_waits.push(GpuWait { context: CONTEXT, index: 0, value: 900 });
            session.vm.objects.cancel_held(OWNER, queue).unwrap();
            let its_device = device(&mut session, OWNER);
            let context = its_device.contexts.get(CONTEXT).unwrap();
            let left = if by_guest { (0, false, 0) } else { (4, true, 1) };
            assert_eq!((context.software_queue.len(), context.is_parked, its_device.gpu_waits.len()), left);
        }
    }
}

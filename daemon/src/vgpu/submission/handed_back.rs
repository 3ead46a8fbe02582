//! Kernel-mode buffers that the engine has not done: handed back, to go on later from where they are.
//!
//! ```text
//!   engine: blocked, and another behind it ──▶ front of its context's software queue, with how far it is
//!                                               ├─ waits for a native fence ─▶ PARKED until the value is there:
//!                                               │                              MonitoredValue, interrupt, run list
//!                                               └─ waits for any other word ─▶ run list, after a while
//!   engine: told to put back what it has ─────▶ front of its context's software queue ─▶ run list
//!   engine: its context is suspended ─────────▶ front of its context's software queue ─▶ run list, when it is resumed
//! ```
//!
//! So a buffer that waits holds up its own context alone. One with none behind it stays in the engine, which looks
//! at its word. The engine slows itself down where all that there is waits, so that two blocked contexts are not handed
//! to and fro all the time.

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_protocol::engine::hw_queue::HW_BLOCKED;
use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;

use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::process::Buffer;
use crate::vgpu::objects::waits::GpuWait;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::reports::EngineReports;
use crate::vgpu::submission::waits::Waits;

impl EngineReports<'_> {
    /// The engine has handed a buffer back, which it was given after so many suspends of its context.
    pub(in crate::vgpu) fn buffer_handed_back(
        &mut self,
        at: EngineAddress,
        suspends: u64,
        of: GuestProcess,
        buffer: Buffer,
        result: &HwResult,
    ) {
        let handle = buffer.context;
        let is_unasked = match result.fault {
            HW_SUSPENDED => self.suspends_of(of, handle) == Some(suspends),
            HW_PREEMPTED => {
                !self.vm.engines[at.index()].process().is_some_and(|process| process.hw_queue.is_preempting())
            }
            _ => false,
        };
        if is_unasked {
            self.vm.objects.end_item(of, buffer.ring, buffer.item);
            self.vm.engines.condemn(at, "it handed a buffer back unasked");
            return;
        }
        let device = self.vm.objects.device_mut(of).ok().filter(|device| device.is_active());
        let wanted = device.and_then(|device| {
            let fence = device.fences.iter().find(|(_, fence)| fence.va == result.fault_va);
            let index = fence.map(|(_, fence)| fence.index).filter(|_| result.fault == HW_BLOCKED);
            let context = device.contexts.get_mut(handle)?;
            // In the order of submission: the one before it may have been handed back too.
            let place = context.software_queue.partition_point(|other| other.order < buffer.order);
            context
                .software_queue
                .insert(place, Buffer { is_saved: result.is_saved != 0, is_resubmitted: true, ..buffer });
            Some((index.filter(|_| place == 0), context.is_parked))
        });
        match wanted {
            None => self.vm.objects.end_item(of, buffer.ring, buffer.item),
            // What is parked waits for the first buffer, whatever comes behind it.
            Some((_, true)) => {}
            Some((Some(index), false)) => {
                Submission::of(self.vm).unlist_context(of, handle);
                if let Ok(device) = self.vm.objects.device_mut(of) {
                    device.gpu_waits.push(GpuWait { context: handle, index, value: result.value });
                    if let Some(context) = device.contexts.get_mut(handle) {
                        // Listed or not: nothing but the fence brings it back.
                        (context.is_parked, context.listed) = (true, true);
                    }
                }
                Waits::of(self.vm).release_native_waiters(index);
            }
            Some((None, false)) if result.fault == HW_BLOCKED => {
                Submission::of(self.vm).block_context(of, handle)
            }
            Some((None, false)) => Submission::of(self.vm).list_context(of, handle),
        }
    }

    /// Suspends of a context so far; none where it, or its engine, is gone.
    fn suspends_of(&self, of: GuestProcess, handle: ContextHandle) -> Option<u64> {
        let context = self.vm.objects.device(of).ok()?.contexts.get(handle)?;
        Some(self.vm.engines[context.at.index()].process()?.contexts.suspends(context.entry?))
    }
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::adapter::Adapter;
    use campanile_host_gpu::adapter::scheduling::Preemption;
    use campanile_protocol::engine::hw_queue::HW_BLOCKED;
    use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
    use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
    use campanile_protocol::engine::hw_queue::HwResult;
    use campanile_protocol::engine::scheduling::PREEMPT_LAST_COMPLETED;
    use campanile_protocol::engine::scheduling::PREEMPT_REPORT;

    use crate::vgpu::objects::process::Buffer;
    use crate::vgpu::session::Session;
    use crate::vgpu::submission::reports::EngineReports;
    use crate::vgpu::submission::waits::Waits;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::counted;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::end;
    use crate::vgpu::testing::end_with;
    use crate::vgpu::testing::give;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;
    use crate::vgpu::testing::take_buffer;

    fn queued(session: &mut Session) -> Vec<Buffer> {
        device(session, OWNER).contexts.get(CONTEXT).unwrap().software_queue.iter().copied().collect()
    }

    /// A session whose engine has two buffers of a context that has two more; their fence ids.
    fn with_two() -> (Session, [u64; 2]) {
        let mut session = restored(startable());
        let ids = [(); 2].map(|()| {
            let buffer = Buffer { is_saved: false, is_resubmitted: false, ..take_buffer(&mut session) };
            give(&mut session, Some((OWNER, buffer)))
        });
        assert_eq!(queued(&mut session).iter().map(|buffer| buffer.order).collect::<Vec<_>>(), [3, 4]);
        (session, ids)
    }

    #[test]
    fn mcdm_14_pre_45_what_comes_back_is_first_again_with_how_far_it_is() {
        let (mut session, ids) = with_two();
        let process = session.vm.engines[COPY.index()].process_mut().unwrap();
        assert!(matches!(process.preempt_command(), Preemption::Requested(_)));
        for (count, fence_id) in (0..).zip(ids) {
            let is_saved = u32::from(count == 0);
            end_with(
                &session,
                count,
                HwResult { fence_id, fault: HW_PREEMPTED, is_saved, ..HwResult::default() },
            );
        }
        EngineReports::of(&mut session.vm).collect_completions(COPY);
        let queued = queued(&mut session);
        assert_eq!(queued.iter().map(|buffer| buffer.order).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!([0, 1].map(|index| queued[index].is_saved), [true, false]);
        assert!(queued[..2].iter().all(|buffer| buffer.is_resubmitted));
        assert_eq!(counted(&session.vm.counters.engines_reset), 0);
    }

    #[test]
    fn mcdm_14_buffers_that_come_back_in_another_order_are_in_that_of_their_submission() {
        let (mut session, ids) = with_two();
        let slot = &mut session.vm.engines[COPY.index()];
        assert!(matches!(slot.process_mut().unwrap().preempt_command(), Preemption::Requested(_)));
        slot.in_flight.swap(0, 1);
        slot.in_flight.iter_mut().zip(ids).for_each(|(flight, id)| flight.fence_id = id);
        for (count, id) in (0..).zip(ids) {
            end(&session, count, id, HW_PREEMPTED);
        }
        EngineReports::of(&mut session.vm).collect_completions(COPY);
        let orders: Vec<u64> = queued(&mut session).iter().map(|buffer| buffer.order).collect();
        assert_eq!(orders, [1, 2, 3, 4]);
    }

    #[test]
    fn pre_21_a_buffer_that_comes_back_though_nobody_asked_for_it_ends_its_engine() {
        for (fault, asks) in [
            (HW_PREEMPTED, false),
            (HW_PREEMPTED, true),
            (HW_SUSPENDED, false),
            (HW_SUSPENDED, true),
            (HW_BLOCKED, false),
        ] {
            let (mut session, ids) = with_two();
            match fault {
                HW_PREEMPTED if asks => {
                    let process = session.vm.engines[COPY.index()].process_mut().unwrap();
                    let _asked = process.preempt_command();
                }
                HW_SUSPENDED if asks => {
                    session
                        .vm
                        .engines
                        .hold(&mut session.vm.objects, &*session.vm.config.schedule, OWNER, CONTEXT, |held| {
                            held.by_guest = true
                        })
                        .unwrap();
                }
                _ => {}
            }
            end(&session, 0, ids[0], fault);
            EngineReports::of(&mut session.vm).collect_completions(COPY);
            session.settle();
            let is_lie = !asks && fault != HW_BLOCKED;
            assert_eq!(counted(&session.vm.counters.engines_reset), u64::from(is_lie), "{fault:#x}, {asks}");
        }
    }

    #[test]
    fn a_context_is_parked_for_what_its_first_buffer_waits_for_and_for_no_other() {
        for is_first in [true, false] {
            let (mut session, ids) = with_two();
            let (_, fence) = device(&mut session, OWNER).fences.iter().next().unwrap();
            let waits = HwResult { fault: HW_BLOCKED, fault_va: fence.va, value: 900, ..HwResult::default() };
            if !is_first {
                // The first comes back before it, for another reason, and nothing is given meanwhile.
                let process = session.vm.engines[COPY.index()].process_mut().unwrap();
                assert!(matches!(process.preempt_command(), Preemption::Requested(_)));
                end(&session, 0, ids[0], HW_PREEMPTED);
            }
            let (count, fence_id) = if is_first { (0, ids[0]) } else { (1, ids[1]) };
            end_with(&session, count, HwResult { fence_id, ..waits });
            EngineReports::of(&mut session.vm).collect_completions(COPY);
            let device = device(&mut session, OWNER);
            assert_eq!(device.contexts.get(CONTEXT).unwrap().is_parked, is_first);
            assert_eq!(device.gpu_waits.len(), usize::from(is_first));
        }
    }

    #[test]
    fn a_parked_context_goes_on_when_the_value_is_there() {
        let (mut session, ids) = with_two();
        let (_, fence) = device(&mut session, OWNER).fences.iter().next().unwrap();
        let (va, index) = (fence.va, fence.index);
        for (count, fence_id) in (0..).zip(ids) {
            let value = if count == 0 { 900 } else { 0 };
            let fault_va = if count == 0 { va } else { 0 };
            end_with(
                &session,
                count,
                HwResult { fence_id, fault: HW_BLOCKED, fault_va, value, ..HwResult::default() },
            );
        }
        EngineReports::of(&mut session.vm).collect_completions(COPY);
        assert!(session.vm.engines[COPY.index()].in_flight.is_empty(), "parked, with all behind it");
        session.vm.fences.value(index).unwrap().store(900, std::sync::atomic::Ordering::Release);
        Waits::of(&mut session.vm).release_native_waiters(index);
        let flying = session.vm.engines[COPY.index()].in_flight.iter().filter_map(|flight| flight.owner);
        assert_eq!(flying.map(|(_, buffer)| buffer.order).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn tdr_41_a_preemption_after_the_last_buffer_that_was_given_is_believed() {
        let (mut session, ids) = with_two();
        let process = session.vm.engines[COPY.index()].process_mut().unwrap();
        let Preemption::Requested(number) = process.preempt_command() else { panic!("none is under way") };
        for (count, id) in (0..).zip(ids) {
            end(&session, count, id, 0);
        }
        store(&session, COPY, PREEMPT_LAST_COMPLETED, ids[1]);
        store(&session, COPY, PREEMPT_REPORT, number);
        EngineReports::of(&mut session.vm).collect_completions(COPY);
        session.settle();
        let counters = &session.vm.counters;
        assert_eq!([&counters.engines_reset, &counters.adapters_reset].map(counted), [0, 0]);
        let process = session.vm.engines[COPY.index()].process().unwrap();
        assert!(!process.hw_queue.is_preempting());
    }
}

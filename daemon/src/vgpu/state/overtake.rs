//! A state that was taken while engines ran becomes that of the moment in which the last of them had ended.
//!
//! | engine, when it ended | its user-mode queues | the process whose work it ran |
//! |---|---|---|
//! | had put all aside | go on from where they are | — |
//! | had stopped a queue at a fault, or lost its driver | the others go on from where they are | its device is lost |
//! | was killed within a buffer | the others go on from where they are | its device is lost: a buffer that ran half is not to run again |
//!
//! Kernel-mode buffers that an engine had are known to have been run or not by a session alone: the devices of their processes are lost.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use campanile_host_gpu::adapter::remnant::Remnant;
use campanile_host_gpu::ids::QueueIndex;
use campanile_protocol::engine::progress::Work;

use super::saved::SavedSession;
use super::saved::at_work::SavedAtWork;
use super::saved::at_work::SavedWatch;
use super::saved::process::SavedQueuePlace;
use crate::ids::GuestProcess;

/// Why a state cannot be brought up to date.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OvertakeError {
    /// What an engine has left is not there.
    #[error("the block of engine {0} is missing")]
    Block(u32),
    /// A native fence whose value is not there.
    #[error("the value of native fence {0} is missing")]
    Fence(u32),
    /// The queue of a doorbell that there is not.
    #[error("process {0} has no doorbell {1}")]
    Doorbell(GuestProcess, u32),
}

/// Brings a state up to date by what engines have left, each by its place, and by the values of native fences, `now` by the host's clock in milliseconds.
/// The guest processes whose devices are to be lost.
///
/// # Errors
/// Something is missing, or does not fit: nothing is known of the session then.
pub fn overtake(
    saved: &mut SavedSession,
    at_work: &SavedAtWork,
    engines: &BTreeMap<u32, Remnant>,
    value: impl Fn(u32) -> Option<u64>,
    now: u64,
) -> Result<BTreeSet<GuestProcess>, OvertakeError> {
    let mut lost: BTreeSet<GuestProcess> = at_work.interrupted.iter().copied().collect();
    for place in &at_work.engines {
        let engine = engines.get(place).ok_or(OvertakeError::Block(*place))?;
        match engine.work() {
            // Whose kernel-mode buffer it was, is among these.
            Work::Nothing | Work::HwQueue => {}
            // One that the state does not have is of a device that was lost before.
            Work::UserQueue(queue) => {
                let its = |watch: &&SavedWatch| (watch.2, watch.3) == (*place, queue);
                lost.extend(at_work.queues.iter().find(its).map(|watch| watch.0));
            }
        }
    }
    for SavedWatch(process, doorbell, engine, queue) in &at_work.queues {
        let engine = engines.get(engine).ok_or(OvertakeError::Block(*engine))?;
        let device = saved.processes.iter_mut().find(|saved| saved.context == *process);
        let mut doorbells =
            device.and_then(|process| process.device.as_mut()).map(|device| &mut device.doorbells.0);
        let place = usize::try_from(*doorbell).unwrap_or(usize::MAX);
        let found = doorbells.as_mut().and_then(|doorbells| doorbells.get_mut(place)?.1.as_mut());
        let found = found.ok_or(OvertakeError::Doorbell(*process, *doorbell))?;
        let queue = QueueIndex::new(*queue);
        if engine.is_stopped(queue) {
            lost.insert(*process);
        }
        let at = engine.queue_place(queue);
        found.place = Some(SavedQueuePlace {
            consumed: at.consumed,
            completed: at.completed,
            is_saved: at.is_saved,
            progress: None,
        });
    }
    // What counts for a while has been there for longer.
    let passed = now.saturating_sub(at_work.taken);
    let of_processes = saved.processes.iter_mut().flat_map(|process| &mut process.offences);
    let of_engines = saved.engines.iter_mut().flat_map(|engine| &mut engine.resets);
    for age in of_processes.chain(of_engines).chain(&mut saved.adapter_resets) {
        *age = age.saturating_add(passed);
    }
    for fence in &mut saved.fences {
        fence.3 = value(fence.0).ok_or(OvertakeError::Fence(fence.0))?;
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use campanile_host_gpu::adapter::remnant::Remnant;
    use campanile_host_gpu::ids::QueueIndex;
    use campanile_protocol::engine::block;
    use campanile_protocol::engine::progress::Work;

    use super::OvertakeError;
    use super::overtake;
    use crate::ids::GuestProcess;
    use crate::vgpu::objects::process::Device;
    use crate::vgpu::objects::process::MAX_SOFTWARE_QUEUE;
    use crate::vgpu::session::Session;
    use crate::vgpu::state::save::at_work::blocks;
    use crate::vgpu::state::save::at_work::save_at_work;
    use crate::vgpu::state::save::snapshot::SaveError;
    use crate::vgpu::state::saved::SavedSession;
    use crate::vgpu::state::saved::at_work::SavedAtWork;
    use crate::vgpu::state::saved::at_work::SavedWatch;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::give;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;
    use crate::vgpu::testing::store_progress;
    use crate::vgpu::testing::take_buffer;

    /// What the engines of a session have left.
    fn remnants(session: &Session) -> BTreeMap<u32, Remnant> {
        blocks(session)
            .map(|(place, block)| (place, Remnant::open(block.try_clone().unwrap()).unwrap()))
            .collect()
    }

    /// Where in a state what a row speaks of is, and how far it is.
    fn place(state: &SavedSession, watch: &SavedWatch) -> (u64, u64, bool) {
        let process = state.processes.iter().find(|process| process.context == watch.0).unwrap();
        let doorbell = &process.device.as_ref().unwrap().doorbells.0[watch.1 as usize].1;
        let place = doorbell.as_ref().unwrap().place.unwrap();
        (place.consumed, place.completed, place.is_saved)
    }

    #[test]
    fn cont_21_queues_and_fences_are_where_engines_left_them_and_a_session_goes_on_from_there() {
        let session_at_work = restored(startable());
        let (mut state, at_work) = save_at_work(&session_at_work).unwrap();
        let of_copy = |watch: &&SavedWatch| watch.2 as usize == COPY.index();
        let watch = *at_work.queues.iter().find(of_copy).unwrap();
        let before: Vec<_> = at_work.queues.iter().map(|watch| place(&state, watch)).collect();
        let words = [(block::QUEUE_CONSUMED, 31), (block::QUEUE_COMPLETED, 77), (block::QUEUE_SAVED, 32)];
        for (word, value) in words {
            store(&session_at_work, COPY, block::queue(u32::from(watch.3)) + word, value);
        }
        let lost = overtake(
            &mut state,
            &at_work,
            &remnants(&session_at_work),
            |fence| Some(u64::from(fence) + 900),
            0,
        );
        assert_eq!(lost, Ok(BTreeSet::new()), "all was put aside");
        let after: Vec<_> = at_work.queues.iter().map(|watch| place(&state, watch)).collect();
        for ((watched, before), after) in at_work.queues.iter().zip(before).zip(after) {
            assert_eq!(after, if *watched == watch { (31, 77, true) } else { before });
        }
        assert!(
            !state.fences.is_empty() && state.fences.iter().all(|fence| fence.3 == u64::from(fence.0) + 900)
        );
        let mut next = session(&Arc::new(config()));
        next.restore(&state).unwrap();
        let process = next.vm.engines[COPY.index()].process().unwrap();
        let doorbells: Vec<_> = next
            .vm
            .objects
            .device(watch.0)
            .map(|device| device.doorbells.iter())
            .unwrap_or_else(|_| panic!("its device"))
            .collect();
        let reached = doorbells.iter().filter_map(|(_, doorbell)| doorbell.hw_queue);
        let reached: Vec<_> = reached.map(|queue| process.tables.queue_place(queue).consumed).collect();
        assert!(reached.contains(&31), "{reached:?}");
    }

    #[test]
    fn cont_21_the_process_whose_work_an_engine_ran_when_it_was_killed_loses_its_device_and_no_other() {
        let session_at_work = restored(startable());
        let (state, at_work) = save_at_work(&session_at_work).unwrap();
        let watch = *at_work.queues.iter().find(|watch| watch.2 as usize == COPY.index()).unwrap();
        let after = |work: Work| {
            store_progress(&session_at_work, work);
            let mut state = state.clone();
            overtake(&mut state, &at_work, &remnants(&session_at_work), |_| Some(0), 0)
        };
        assert_eq!(after(Work::UserQueue(watch.3)), Ok([watch.0].into()));
        for of_no_device in [Work::UserQueue(1000), Work::HwQueue] {
            assert_eq!(after(of_no_device), Ok(BTreeSet::new()));
        }
        let mut next = session(&Arc::new(config()));
        next.restore(&state).unwrap();
        next.recovery().lose_interrupted(&[watch.0]);
        for (process, its) in &next.vm.objects.processes {
            let is_active = its.device.as_ref().is_some_and(Device::is_active);
            assert_eq!(is_active, *process != watch.0, "process {process}");
        }
    }

    #[test]
    fn cont_21_kernel_mode_work_that_an_engine_had_costs_its_device_and_is_in_the_state_in_its_order() {
        let mut session_at_work = restored(startable());
        let first = take_buffer(&mut session_at_work);
        give(&mut session_at_work, Some((OWNER, first)));
        let (mut state, at_work) = save_at_work(&session_at_work).unwrap();
        assert_eq!(at_work.interrupted, [OWNER]);
        let owner = state.processes.iter().find(|process| process.context == OWNER).unwrap();
        let buffers = &owner.device.as_ref().unwrap().contexts.0[0].1.as_ref().unwrap().buffers;
        let orders: Vec<u64> = buffers.iter().map(|buffer| buffer.order).collect();
        assert!(orders.is_sorted() && orders[0] == first.order, "{orders:?}");
        // It may have been at work on it.
        store_progress(&session_at_work, Work::HwQueue);
        let lost = overtake(&mut state, &at_work, &remnants(&session_at_work), |_| Some(0), 0);
        assert_eq!(lost, Ok([OWNER].into()));
        let mut next = session(&Arc::new(config()));
        next.restore(&state).unwrap();
        next.recovery().lose_interrupted(&[OWNER]);
        let device = device(&mut next, OWNER);
        assert!(!device.is_active());
        assert!(
            device.contexts.iter().all(|(_, context)| context.software_queue.is_empty()),
            "none is run again"
        );
    }

    #[test]
    fn cont_21_what_counts_for_a_while_is_older_by_the_time_since_the_state_was_taken() {
        let session_at_work = restored(startable());
        let (mut state, mut at_work) = save_at_work(&session_at_work).unwrap();
        at_work.taken = 1000;
        state.adapter_resets = vec![1];
        state.processes[0].offences = vec![2];
        state.engines[0].resets = vec![3];
        assert!(overtake(&mut state, &at_work, &remnants(&session_at_work), |_| Some(0), 1500).is_ok());
        let ages = [&state.adapter_resets, &state.processes[0].offences, &state.engines[0].resets];
        assert_eq!(ages, [&vec![501], &vec![502], &vec![503]]);
    }

    #[test]
    fn cont_21_a_queue_that_an_engine_had_stopped_at_a_fault_costs_its_device() {
        let session_at_work = restored(startable());
        let (mut state, at_work) = save_at_work(&session_at_work).unwrap();
        let watch = *at_work.queues.iter().find(|watch| watch.2 as usize == COPY.index()).unwrap();
        store(&session_at_work, COPY, block::queue(u32::from(watch.3)) + block::QUEUE_FAULT, 1);
        let lost = overtake(&mut state, &at_work, &remnants(&session_at_work), |_| Some(0), 0);
        assert_eq!(lost, Ok([watch.0].into()));
    }

    #[test]
    fn cont_14_a_state_to_which_something_is_missing_or_does_not_fit_is_refused_by_what_it_is() {
        let session_at_work = restored(startable());
        let (state, at_work) = save_at_work(&session_at_work).unwrap();
        let (all, first) = (remnants(&session_at_work), at_work.queues[0]);
        let refused = |at_work: &SavedAtWork, engines: &BTreeMap<u32, Remnant>, value: Option<u64>| {
            overtake(&mut state.clone(), at_work, engines, |_| value, 0).unwrap_err()
        };
        let missing = refused(&at_work, &BTreeMap::new(), Some(0));
        assert_eq!(missing, OvertakeError::Block(at_work.engines[0]));
        assert_eq!(refused(&at_work, &all, None), OvertakeError::Fence(state.fences[0].0));
        for (process, doorbell) in [(GuestProcess::new(99), first.1), (first.0, 4000)] {
            let mut other = at_work.clone();
            other.queues[0] = SavedWatch(process, doorbell, first.2, first.3);
            assert_eq!(refused(&other, &all, Some(0)), OvertakeError::Doorbell(process, doorbell));
        }
        let mut other = at_work.clone();
        other.queues[0].2 = 77;
        assert_eq!(refused(&other, &all, Some(0)), OvertakeError::Block(77));
        // A queue that no block has says that it is at its beginning, as any engine could say.
        other.queues[0] = SavedWatch(first.0, first.1, first.2, QueueIndex::new(u16::MAX).get());
        assert!(overtake(&mut state.clone(), &other, &all, |_| Some(0), 0).is_ok());
    }

    #[test]
    fn cont_21_nothing_is_taken_of_a_session_that_stands_still_or_in_which_something_is_under_way() {
        let mut session_at_work = restored(startable());
        assert!(save_at_work(&session_at_work).is_ok());
        let id = session_at_work.vm.memory.allocations.iter().next().unwrap().0;
        session_at_work.vm.memory.allocations.get_mut(id).unwrap().is_moving = true;
        assert_eq!(save_at_work(&session_at_work).unwrap_err(), SaveError::NotSettled("an eviction"));
        session_at_work.vm.memory.allocations.get_mut(id).unwrap().is_moving = false;
        assert!(save_at_work(&session_at_work).is_ok());
        let buffer = take_buffer(&mut session_at_work);
        let full = vec![buffer; MAX_SOFTWARE_QUEUE];
        device(&mut session_at_work, OWNER).contexts.get_mut(CONTEXT).unwrap().software_queue = full.into();
        assert!(save_at_work(&session_at_work).is_ok());
        give(&mut session_at_work, Some((OWNER, buffer)));
        assert_eq!(save_at_work(&session_at_work).unwrap_err(), SaveError::NotSettled("a full queue"));
        session_at_work.vm.engines[COPY.index()].in_flight.clear();
        assert!(session_at_work.freeze());
        assert_eq!(save_at_work(&session_at_work).unwrap_err(), SaveError::NotSettled("a standstill"));
    }
}

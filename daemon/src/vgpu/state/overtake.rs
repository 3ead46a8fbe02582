//! A state that was taken while engines ran becomes that of the moment in which the last of them had ended.
//!
//! | engine, when it ended | its user-mode queues | the process whose work it ran |
//! |---|---|---|
//! | had put all aside | go on from where they are | — |
//! | had stopped a queue at a fault, or lost its driver | the others go on from where they are | its device is lost |
//! | was killed within a buffer | the others go on from where they are | its device is lost: a buffer that ran half is not to run again |
//!
//! | kernel-mode buffer that the engine had | in the state |
//! |---|---|
//! | was run | its place on its timeline has ended, its fence id is completed |
//! | was put aside, handed back, or not begun | the first of its context still |
//! | faulted, ran in part, or the engine does not say | the device of its process is lost |

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use campanile_host_gpu::adapter::remnant::BufferEnd;
use campanile_host_gpu::adapter::remnant::Remnant;
use campanile_host_gpu::ids::QueueIndex;
use campanile_protocol::engine::progress::Work;

use super::saved::SavedSession;
use super::saved::at_work::SavedAtWork;
use super::saved::at_work::SavedFlight;
use super::saved::at_work::SavedWatch;
use super::saved::process::SavedBuffer;
use super::saved::process::SavedProcess;
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
    /// A kernel-mode buffer that is not in the state.
    #[error("process {0} has no buffer {1} that engine {2} had")]
    Buffer(GuestProcess, u64, u32),
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
    let mut lost = BTreeSet::new();
    for place in &at_work.engines {
        let engine = engines.get(place).ok_or(OvertakeError::Block(*place))?;
        match engine.work() {
            // Of a kernel-mode buffer, see below.
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
    for (index, flight) in at_work.flights.iter().enumerate() {
        let rest = at_work.flights.get(index + 1..).unwrap_or_default();
        let behind = rest.iter().filter(|other| other.0 == flight.0).count() as u64;
        let engine = engines.get(&flight.0).ok_or(OvertakeError::Block(flight.0))?;
        lost.extend(land(saved, flight, engine.buffer(flight.1, behind))?);
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

/// Brings a state up to date by what has become of a kernel-mode buffer. The process whose device is lost by that.
fn land(
    saved: &mut SavedSession,
    &SavedFlight(engine, fence_id, order, owner): &SavedFlight,
    end: BufferEnd,
) -> Result<Option<GuestProcess>, OvertakeError> {
    if end == BufferEnd::Done
        && let Some(engine) = saved.engines.get_mut(usize::try_from(engine).unwrap_or(usize::MAX))
    {
        engine.completed = engine.completed.max(fence_id);
    }
    // Of a device that has ended nothing is in the state.
    let Some((of, its_context)) = owner else { return Ok(None) };
    if end == BufferEnd::Unknown {
        return Ok(Some(of));
    }
    let missing = || OvertakeError::Buffer(of, order, engine);
    let process = saved.processes.iter_mut().find(|process| process.context == of).ok_or_else(missing)?;
    let buffers = buffers(process, its_context).ok_or_else(missing)?;
    let place = buffers.iter().position(|buffer| buffer.order == order).ok_or_else(missing)?;
    if let BufferEnd::Left { is_saved } = end {
        let buffer = buffers.get_mut(place).ok_or_else(missing)?;
        (buffer.is_resubmitted, buffer.is_saved) = (true, buffer.is_saved || is_saved);
        return Ok(None);
    }
    let done = buffers.remove(place);
    let Some(timeline) = process.timelines.iter_mut().find(|timeline| timeline.ring == done.ring) else {
        return Ok(None);
    };
    timeline.open.retain(|item| Some(*item) != done.item);
    let oldest = timeline.open.iter().min().copied();
    let due = timeline.fences.iter().take_while(|(behind, _)| oldest.is_none_or(|oldest| oldest > *behind));
    let due = due.count();
    saved.due.extend(timeline.fences.drain(..due).map(|(_, token)| (token, 0)));
    Ok(None)
}

/// The kernel-mode buffers of the context in this place of a process.
fn buffers(process: &mut SavedProcess, place: u32) -> Option<&mut Vec<SavedBuffer>> {
    let contexts = &mut process.device.as_mut()?.contexts.0;
    let (_, context) = contexts.get_mut(usize::try_from(place).ok()?)?;
    Some(&mut context.as_mut()?.buffers)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use campanile_host_gpu::adapter::remnant::Remnant;
    use campanile_host_gpu::ids::QueueIndex;
    use campanile_protocol::engine::block;
    use campanile_protocol::engine::hw_queue::HW_BLOCKED;
    use campanile_protocol::engine::hw_queue::HwResult;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::handshake::power;

    use super::OvertakeError;
    use super::overtake;
    use crate::ids::GuestProcess;
    use crate::vgpu::objects::process::Buffer;
    use crate::vgpu::objects::process::Device;
    use crate::vgpu::objects::process::MAX_SOFTWARE_QUEUE;
    use crate::vgpu::session::Session;
    use crate::vgpu::state::save::at_work::blocks;
    use crate::vgpu::state::save::at_work::save_at_work;
    use crate::vgpu::state::save::snapshot::SaveError;
    use crate::vgpu::state::saved::SavedSession;
    use crate::vgpu::state::saved::at_work::SavedAtWork;
    use crate::vgpu::state::saved::at_work::SavedWatch;
    use crate::vgpu::state::saved::process::SavedTimeline;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::end;
    use crate::vgpu::testing::end_with;
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

    /// Buffers of the context that [`give`] gives buffers of: their places in the order, whether they are half run, and were with an engine.
    fn queued(state: &SavedSession) -> Vec<(u64, bool, bool)> {
        let owner = state.processes.iter().find(|process| process.context == OWNER).unwrap();
        let context = owner.device.as_ref().unwrap().contexts.0[0].1.as_ref().unwrap();
        context.buffers.iter().map(|buffer| (buffer.order, buffer.is_saved, buffer.is_resubmitted)).collect()
    }

    /// A session whose engine has two buffers of a context that has two more, taken so, and the ids of the two.
    fn with_two() -> (Session, SavedSession, SavedAtWork, [u64; 2]) {
        let mut session = restored(startable());
        let ids = [(); 2].map(|()| {
            let buffer = Buffer { is_saved: false, is_resubmitted: false, ..take_buffer(&mut session) };
            give(&mut session, Some((OWNER, buffer)))
        });
        let (state, at_work) = save_at_work(&session).unwrap();
        assert_eq!(queued(&state).iter().map(|buffer| buffer.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
        (session, state, at_work, ids)
    }

    #[test]
    fn cont_21_a_kernel_mode_buffer_that_was_run_is_not_run_again_and_the_next_daemon_answers_what_waits_for_it()
     {
        let (session_at_work, mut state, at_work, ids) = with_two();
        let owner = state.processes.iter().position(|process| process.context == OWNER).unwrap();
        let process = &mut state.processes[owner];
        let first = &mut process.device.as_mut().unwrap().contexts.0[0].1.as_mut().unwrap().buffers[0];
        (first.ring, first.item) = (9, Some(900));
        process.timelines.push(SavedTimeline {
            ring: 9,
            next: 901,
            open: vec![900, 901],
            fences: vec![(899, 7776), (900, 7777), (901, 7778)],
        });
        let before = state.due.len();
        end(&session_at_work, 0, ids[0], 0);
        let lost = overtake(&mut state, &at_work, &remnants(&session_at_work), |_| Some(0), 0);
        assert_eq!(lost, Ok(BTreeSet::new()));
        assert_eq!(
            queued(&state),
            [(2, false, true), (3, false, false), (4, false, false)],
            "the one behind it was not begun"
        );
        assert_eq!(state.engines[COPY.index()].completed, ids[0]);
        let timeline = state.processes[owner].timelines.last().unwrap();
        assert_eq!((&timeline.open, &timeline.fences), (&vec![901], &vec![(901, 7778)]));
        assert_eq!(state.due[before..], [(7776, 0), (7777, 0)], "each stands behind nothing that is open");
    }

    #[test]
    fn cont_21_kernel_mode_buffers_that_were_put_aside_or_handed_back_are_the_first_again_from_where_they_are()
     {
        for (is_handed_back, is_saved) in [(true, true), (true, false), (false, true), (false, false)] {
            let (session_at_work, mut state, at_work, ids) = with_two();
            if is_handed_back {
                let is_saved = u32::from(is_saved);
                let result =
                    HwResult { fence_id: ids[0], fault: HW_BLOCKED, is_saved, ..HwResult::default() };
                end_with(&session_at_work, 0, result);
            } else if is_saved {
                store(&session_at_work, COPY, block::HW_QUEUE_SAVED, 1);
            }
            let lost = overtake(&mut state, &at_work, &remnants(&session_at_work), |_| Some(0), 0);
            assert_eq!(lost, Ok(BTreeSet::new()));
            assert_eq!(queued(&state)[..2], [(1, is_saved, true), (2, false, true)]);
            let completed = session_at_work.vm.engines[COPY.index()].fences.completed();
            assert_eq!(state.engines[COPY.index()].completed, completed);
            let mut next = session(&Arc::new(config()));
            next.restore(&state).unwrap();
        }
    }

    #[test]
    fn cont_21_a_kernel_mode_buffer_that_ran_in_part_or_faulted_or_that_an_engine_lies_about_costs_its_device()
     {
        let cases: [fn(&Session, [u64; 2]); 5] = [
            |session, _| store_progress(session, Work::HwQueue),
            |session, ids| end(session, 0, ids[0], 4),
            // The result of another one, and a block of which the buffer is another.
            |session, ids| end(session, 0, ids[0] + 7, 0),
            |session, _| store(session, COPY, block::HW_QUEUE_SUBMITTED, 1),
            |session, _| store(session, COPY, block::POWER, power::HUNG),
        ];
        for (case, change) in cases.into_iter().enumerate() {
            let (session_at_work, mut state, at_work, ids) = with_two();
            change(&session_at_work, ids);
            let lost = overtake(&mut state, &at_work, &remnants(&session_at_work), |_| Some(0), 0);
            assert_eq!(lost, Ok([OWNER].into()), "case {case}");
            let mut next = session(&Arc::new(config()));
            next.restore(&state).unwrap();
            next.recovery().lose_interrupted(&[OWNER]);
            let device = device(&mut next, OWNER);
            assert!(!device.is_active());
            let mut contexts = device.contexts.iter();
            assert!(contexts.all(|(_, context)| context.software_queue.is_empty()), "none is run again");
        }
    }

    #[test]
    fn cont_21_of_two_kernel_mode_buffers_the_one_that_was_begun_costs_the_device_and_the_one_before_it_was_run()
     {
        let (session_at_work, mut state, at_work, ids) = with_two();
        end(&session_at_work, 0, ids[0], 0);
        store_progress(&session_at_work, Work::HwQueue);
        let lost = overtake(&mut state, &at_work, &remnants(&session_at_work), |_| Some(0), 0);
        assert_eq!(lost, Ok([OWNER].into()), "it was begun");
        assert_eq!(queued(&state)[0].0, 2, "and the first was run");
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
        let mut session_at_work = session_at_work;
        let buffer = take_buffer(&mut session_at_work);
        give(&mut session_at_work, Some((OWNER, buffer)));
        let (state, mut at_work) = save_at_work(&session_at_work).unwrap();
        at_work.flights[0].2 = 99;
        let landed = overtake(&mut state.clone(), &at_work, &remnants(&session_at_work), |_| Some(0), 0);
        let engine = u32::try_from(COPY.index()).unwrap();
        assert_eq!(landed.unwrap_err(), OvertakeError::Buffer(OWNER, 99, engine));
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

//! The hardware queue in an engine: runs kernel-mode buffers in order.

use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::device_page;
use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HW_BLOCKED;
use campanile_protocol::engine::hw_queue::HW_EXEMPT;
use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
use campanile_protocol::engine::hw_queue::HW_SAVED;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::scheduling::PREEMPT_LAST_COMPLETED;
use campanile_protocol::packet::Fault;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::machine::Machine;
use super::process::Process;
use super::progress;
use super::save_area;
use super::save_area::Owner;
use super::save_area::Slot;
use super::suspension;
use super::user_queue::Outcome;
use super::watch::Watch;
use super::words::load;
use crate::ids::ContextIndex;
use crate::memory::mapping::Mapping;
use crate::memory::wants::Missing;
use crate::node::buffer::Buffer;
use crate::node::buffer::Step;
use crate::node::space::Space;
use crate::node::space::Stop;

/// How long a blocked buffer stays where handing back has led to nothing but other blocked ones.
const HOLD: Duration = Duration::from_millis(1);

/// The consumer's side of the hardware queue.
#[derive(Debug, Default)]
pub struct KernelQueue {
    completed: u64,
    running: Option<(Buffer, HwSubmission)>,
    /// The slot of a context in its save area, while that is known.
    slot: Option<(ContextIndex, Slot)>,
    /// An address that was not resident, or on the move, when it was last blocked.
    missing: Option<Missing>,
    /// When a buffer was handed back that nothing has completed since.
    handed_back: Option<Instant>,
}

impl KernelQueue {
    /// Goes on where the shared block says that an earlier process stopped.
    pub fn new(shared: &Mapping) -> Self {
        Self {
            completed: load(shared, block::HW_QUEUE_COMPLETED),
            running: None,
            slot: None,
            missing: None,
            handed_back: None,
        }
    }

    /// Whether a buffer is there.
    pub fn has_work(&self, shared: &Mapping) -> bool {
        self.running.is_some() || load(shared, block::HW_QUEUE_SUBMITTED) != self.completed
    }

    /// The context of its oldest buffer.
    pub fn context(&self, shared: &Mapping) -> Option<ContextIndex> {
        match &self.running {
            Some((_, submission)) => Some(ContextIndex::new(submission.context)),
            None if self.has_work(shared) => {
                submission(shared, self.completed).map(|it| ContextIndex::new(it.context))
            }
            None => None,
        }
    }

    /// Gives all that it has back to the daemon, which asked for it; oldest first (MCDM-30, MCDM-33).
    pub fn put_back(&mut self, shared: &Mapping) {
        while self.has_work(shared) {
            let submission = match self.running.take() {
                Some((_, submission)) => submission,
                None => match submission(shared, self.completed) {
                    Some(submission) => submission,
                    None => return,
                },
            };
            let _told_by_the_report = self.end(shared, self.handed_back(shared, &submission, HW_PREEMPTED));
        }
    }

    /// Whether a blocked buffer can go on, or back.
    pub fn is_ready(&self, machine: &Machine, watch: &mut Watch) -> bool {
        let shared = &machine.shared;
        let submission = match &self.running {
            Some((_, submission)) => *submission,
            None if self.missing.is_none() => return true,
            None => match submission(shared, self.completed) {
                Some(submission) => submission,
                None => return true,
            },
        };
        if must_go_back(shared, &submission) {
            return true;
        }
        let Some(process) = watch.process_of(&submission) else { return true };
        let space = process.space(&machine.tables, &machine.segments);
        machine.segments.wants.begin(block::MAX_QUEUES.into(), self.completed);
        if let Some((buffer, _)) = &self.running {
            buffer.show_progress(&space);
        }
        let is_missing = self.missing.is_some_and(|missing| space.is_missing(missing));
        !is_missing && self.running.as_ref().is_none_or(|(buffer, _)| buffer.is_ready(&space))
    }

    /// Runs at most one buffer. `WakeWaiter` means: a result is there for the daemon.
    pub fn turn(
        &mut self,
        machine: &mut Machine,
        watch: &mut Watch,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Outcome {
        machine.segments.wants.begin(block::MAX_QUEUES.into(), self.completed);
        let outcome = self.run(machine, watch, should_pause);
        let is_blocked = outcome == Outcome::Blocked;
        self.missing = if is_blocked { machine.segments.wants.take_missing() } else { None };
        outcome
    }

    fn run(
        &mut self,
        machine: &mut Machine,
        watch: &mut Watch,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Outcome {
        let Machine { shared, tables, segments, node, signals } = machine;
        if self.running.is_none() {
            if load(shared, block::HW_QUEUE_SUBMITTED) == self.completed {
                return Outcome::Idle;
            }
            let Some(submission) = submission(shared, self.completed) else { return Outcome::Idle };
            if must_go_back(shared, &submission) {
                return self.end(shared, self.handed_back(shared, &submission, HW_SUSPENDED));
            }
            let Some(process) = watch.process_of(&submission) else {
                if watch.is_stale(shared) {
                    // It came up after the tables were last read, and before this buffer.
                    return Outcome::More;
                }
                return self.report(shared, &submission, Some((Fault::PageFault, submission.buffer_va)));
            };
            match self.begin(shared, process, &process.space(tables, segments), &submission) {
                Ok(buffer) => self.running = Some((buffer, submission)),
                Err(Stop::Moving) => return Outcome::Blocked,
                Err(Stop::Fault(fault, address)) => {
                    return self.report(shared, &submission, Some((fault, address)));
                }
            }
        }
        let Some((_, submission)) = self.running.as_ref() else { return Outcome::Idle };
        let submission = *submission;
        if must_go_back(shared, &submission) {
            return self.end(shared, self.handed_back(shared, &submission, HW_SUSPENDED));
        }
        progress::begin(shared, Work::HwQueue, submission.flags & HW_EXEMPT != 0);
        let Some(process) = watch.process_of(&submission) else {
            return self.report(shared, &submission, Some((Fault::PageFault, submission.buffer_va)));
        };
        let space = process.space(tables, segments);
        match open_slot(&mut self.slot, shared, process, &space, &submission) {
            Ok(_) => {}
            Err(Stop::Moving) => return Outcome::Blocked,
            Err(Stop::Fault(fault, address)) => {
                return self.report(shared, &submission, Some((fault, address)));
            }
        }
        let Some((buffer, _)) = self.running.as_mut() else { return Outcome::Idle };
        let step = buffer.run(node, &space, signals, should_pause);
        // One that is done may still be put aside: its device page may be on the move.
        let has_page = step == Step::Done && process.page(tables, segments).err() != Some(Stop::Moving);
        if !(has_page || matches!(step, Step::Fault(..)))
            && let Some((_, slot)) = &self.slot
        {
            let saved = (block::HW_QUEUE_SAVED, self.completed);
            slot.save(segments, shared, submission.number, buffer, saved);
        }
        let fault = match step {
            Step::Done => None,
            Step::Blocked => return Outcome::Blocked,
            Step::Paused => return Outcome::More,
            Step::Fault(fault, address) => Some((fault, address)),
        };
        if fault.is_some() {
            return self.report(shared, &submission, fault);
        }
        match process.page(tables, segments) {
            Ok(page) => {
                if let Some(word) = page.word(device_page::fence(submission.fence_index)) {
                    word.store(submission.fence_value, Ordering::Release);
                }
                self.report(shared, &submission, None)
            }
            // The buffer stays, done as it is.
            Err(Stop::Moving) => Outcome::Blocked,
            Err(Stop::Fault(fault, address)) => self.report(shared, &submission, Some((fault, address))),
        }
    }

    /// Forgets what was resolved.
    pub fn drop_resolved(&mut self) {
        self.slot = None;
    }

    /// Fetches a buffer, from where it was put aside if it was; not before the save areas are there (PRE-32).
    fn begin(
        &mut self,
        shared: &Mapping,
        process: &Process,
        space: &Space<'_>,
        submission: &HwSubmission,
    ) -> Result<Buffer, Stop> {
        let is_saved = self.is_saved(shared, submission);
        let buffer = Buffer::fetch(space, submission.buffer_va, submission.length)?;
        let slot = open_slot(&mut self.slot, shared, process, space, submission)?;
        if is_saved { slot.restore(submission.number, buffer) } else { Ok(buffer) }
    }

    /// Whether the oldest buffer was put aside: before it was submitted this time, or since, by whatever process.
    fn is_saved(&self, shared: &Mapping, submission: &HwSubmission) -> bool {
        submission.flags & HW_SAVED != 0 || save_area::is_saved(shared, block::HW_QUEUE_SAVED, self.completed)
    }

    /// The oldest is not done, for a reason that is not its own: the daemon will hand it over again. How far it is was
    /// saved when it stopped.
    fn handed_back(&self, shared: &Mapping, submission: &HwSubmission, reason: u32) -> HwResult {
        HwResult {
            fence_id: submission.fence_id,
            fault: reason,
            is_saved: u32::from(self.is_saved(shared, submission)),
            ..HwResult::default()
        }
    }

    /// Whether a blocked buffer stands in the way of another.
    pub fn is_in_the_way(&self, shared: &Mapping) -> bool {
        self.running.is_some()
            && load(shared, block::HW_QUEUE_SUBMITTED).wrapping_sub(self.completed) > 1
            && self.handed_back.is_none_or(|when| when.elapsed() >= HOLD)
    }

    /// Gives a blocked buffer back to the daemon, and one of the same context behind it with it: a context's buffers
    /// run in order.
    pub fn hand_back(&mut self, shared: &Mapping) -> Outcome {
        let Some((buffer, blocked)) = self.running.take() else { return Outcome::Idle };
        self.handed_back = Some(Instant::now());
        let wait = buffer.waits_for();
        let handed_back = HwResult {
            fault_va: wait.map_or(0, |wait| wait.va),
            value: wait.map_or(0, |wait| wait.value),
            ..self.handed_back(shared, &blocked, HW_BLOCKED)
        };
        let outcome = self.end(shared, handed_back);
        let behind = if self.has_work(shared) { submission(shared, self.completed) } else { None };
        match behind.filter(|behind| behind.context == blocked.context) {
            Some(behind) => self.end(shared, self.handed_back(shared, &behind, HW_BLOCKED)),
            None => outcome,
        }
    }

    fn report(
        &mut self,
        shared: &Mapping,
        submission: &HwSubmission,
        fault: Option<(Fault, u64)>,
    ) -> Outcome {
        self.handed_back = None;
        if let Some(word) = shared.word(PREEMPT_LAST_COMPLETED) {
            word.store(submission.fence_id, Ordering::Release);
        }
        let (fault, fault_va) = fault.map_or((0, 0), |(fault, address)| (fault as u32, address));
        self.end(shared, HwResult { fence_id: submission.fence_id, fault_va, fault, ..HwResult::default() })
    }

    fn end(&mut self, shared: &Mapping, result: HwResult) -> Outcome {
        self.running = None;
        let at = hw_queue::slot(self.completed) + hw_queue::RESULT;
        if let Some(slice) = shared.slice(at, size_of::<HwResult>() as u64) {
            slice.copy_from(result.as_bytes());
        }
        self.completed += 1;
        if let Some(word) = shared.word(block::HW_QUEUE_COMPLETED) {
            // PAIRS WITH the daemon's load: the result is there first.
            word.store(self.completed, Ordering::Release);
        }
        Outcome::WakeWaiter
    }
}

/// The slot of a submission's context; it stays open.
fn open_slot<'a>(
    known: &'a mut Option<(ContextIndex, Slot)>,
    shared: &Mapping,
    process: &Process,
    space: &Space<'_>,
    submission: &HwSubmission,
) -> Result<&'a Slot, Stop> {
    let context = ContextIndex::new(submission.context);
    let slot = match known.take().filter(|(of, _)| *of == context) {
        Some((_, slot)) => slot,
        None => {
            let areas = process.areas(space.tables, space.segments);
            Slot::open(shared, &areas, context, process.area_va(), Owner::KernelMode)?
        }
    };
    Ok(&known.insert((context, slot)).1)
}

/// Whether a suspend came between: also one that is over, since what was behind the buffer may have been handed back.
fn must_go_back(shared: &Mapping, submission: &HwSubmission) -> bool {
    suspension::of(shared, ContextIndex::new(submission.context)).fence != submission.suspends
}

/// The `count`-th submission.
fn submission(shared: &Mapping, count: u64) -> Option<HwSubmission> {
    let mut bytes = [0; size_of::<HwSubmission>()];
    shared.slice(hw_queue::slot(count), bytes.len() as u64)?.copy_to(&mut bytes);
    HwSubmission::read_from_bytes(&bytes).ok()
}

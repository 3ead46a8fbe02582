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
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::saved::Saved;
use campanile_protocol::engine::scheduling::PREEMPT_LAST_COMPLETED;
use campanile_protocol::packet::Fault;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::machine::Machine;
use super::progress;
use super::saved;
use super::suspension;
use super::user_queue::Outcome;
use super::watch::Watch;
use super::watch::load;
use crate::memory::mapping::Mapping;
use crate::node::buffer::Buffer;
use crate::node::buffer::Step;
use crate::node::space::Stop;

/// How long a blocked buffer stays where handing back has led to nothing but other blocked ones.
const HOLD: Duration = Duration::from_millis(1);

/// The consumer's side of the hardware queue.
#[derive(Debug, Default)]
pub struct KernelQueue {
    completed: u64,
    running: Option<(Buffer, HwSubmission)>,
    /// An address that was not resident, or on the move, when it was last blocked; or zero.
    missing: u64,
    /// When a buffer was handed back that nothing has completed since.
    handed_back: Option<Instant>,
}

impl KernelQueue {
    /// Goes on where the shared block says that an earlier process stopped.
    pub fn new(shared: &Mapping) -> Self {
        Self {
            completed: load(shared, block::HW_QUEUE_COMPLETED),
            running: None,
            missing: 0,
            handed_back: None,
        }
    }

    /// Whether a buffer is there.
    pub fn has_work(&self, shared: &Mapping) -> bool {
        self.running.is_some() || load(shared, block::HW_QUEUE_SUBMITTED) != self.completed
    }

    /// The context of its oldest buffer.
    pub fn context(&self, shared: &Mapping) -> Option<u32> {
        match &self.running {
            Some((_, submission)) => Some(submission.context),
            None if self.has_work(shared) => submission(shared, self.completed).map(|it| it.context),
            None => None,
        }
    }

    /// Gives all that it has back to the daemon, which asked for it; oldest first (MCDM-30, MCDM-33).
    pub fn put_back(&mut self, shared: &Mapping) {
        while self.has_work(shared) {
            let (submission, saved) = match self.running.take() {
                Some((buffer, submission)) => (submission, buffer.save()),
                None => match submission(shared, self.completed) {
                    Some(submission) => (submission, saved_of(shared, self.completed, &submission)),
                    None => return,
                },
            };
            let _told_by_the_report = self.end(shared, handed_back(&submission, HW_PREEMPTED, saved));
        }
    }

    /// Whether a blocked buffer can go on, or back.
    pub fn is_ready(&self, machine: &Machine, watch: &mut Watch) -> bool {
        let shared = &machine.shared;
        let submission = match &self.running {
            Some((_, submission)) => *submission,
            None if self.missing == 0 => return true,
            None => match submission(shared, self.completed) {
                Some(submission) => submission,
                None => return true,
            },
        };
        if must_go_back(shared, &submission) {
            return true;
        }
        let Some(process) = watch.process(submission.process) else { return true };
        let space = process.space(&machine.tables, &machine.segments);
        machine.segments.wants.begin(block::MAX_QUEUES.into(), self.completed);
        if let Some((buffer, _)) = &self.running {
            buffer.show_progress(&space);
        }
        let is_missing = self.missing != 0 && space.is_missing(self.missing);
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
        self.missing = if is_blocked { machine.segments.wants.take_missing() } else { 0 };
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
                let saved = saved_of(shared, self.completed, &submission);
                return self.end(shared, handed_back(&submission, HW_SUSPENDED, saved));
            }
            let Some(process) = watch.process(submission.process) else {
                if watch.is_stale(shared) {
                    // It came up after the tables were last read, and before this buffer.
                    return Outcome::More;
                }
                return self.report(shared, &submission, Some((Fault::PageFault, submission.buffer_va)));
            };
            let fetched =
                Buffer::fetch(&process.space(tables, segments), submission.buffer_va, submission.length)
                    .and_then(|buffer| buffer.restore(submission.saved()))
                    .and_then(|buffer| saved::restore(shared, block::HW_QUEUE_SAVED, self.completed, buffer));
            match fetched {
                Ok(buffer) => self.running = Some((buffer, submission)),
                Err(Stop::Moving) => return Outcome::Blocked,
                Err(Stop::Fault(fault, address)) => {
                    return self.report(shared, &submission, Some((fault, address)));
                }
            }
        }
        let Some((buffer, submission)) = self.running.as_mut() else { return Outcome::Idle };
        let submission = *submission;
        if must_go_back(shared, &submission) {
            let saved = buffer.save();
            return self.end(shared, handed_back(&submission, HW_SUSPENDED, saved));
        }
        progress::begin(shared, Work::HwQueue, submission.flags & HW_EXEMPT != 0);
        let Some(process) = watch.process(submission.process) else {
            return self.report(shared, &submission, Some((Fault::PageFault, submission.buffer_va)));
        };
        let step = buffer.run(node, &process.space(tables, segments), signals, should_pause);
        if matches!(step, Step::Blocked | Step::Paused) {
            saved::save(shared, block::HW_QUEUE_SAVED, self.completed, buffer);
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
        let saved = buffer.save();
        let wait = buffer.waits_for();
        let outcome = self.end(
            shared,
            HwResult {
                fence_id: blocked.fence_id,
                fault_va: wait.map_or(0, |wait| wait.va),
                fault: HW_BLOCKED,
                at: saved.at,
                done_in_packet: saved.done_in_packet,
                grid: saved.grid,
                reserved: 0,
                value: wait.map_or(0, |wait| wait.value),
            },
        );
        let behind = if self.has_work(shared) { submission(shared, self.completed) } else { None };
        match behind.filter(|behind| behind.context == blocked.context) {
            Some(behind) => self.end(
                shared,
                HwResult {
                    fence_id: behind.fence_id,
                    fault: HW_BLOCKED,
                    at: behind.at,
                    done_in_packet: behind.done_in_packet,
                    grid: behind.grid,
                    ..HwResult::default()
                },
            ),
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

/// How far the `count`-th buffer is, which no process has begun, or not this one.
fn saved_of(shared: &Mapping, count: u64, submission: &HwSubmission) -> Saved {
    saved::read(shared, block::HW_QUEUE_SAVED, count).unwrap_or(submission.saved())
}

/// Not done, for a reason that is not its own: the daemon will hand it over again.
fn handed_back(submission: &HwSubmission, reason: u32, saved: Saved) -> HwResult {
    HwResult {
        fence_id: submission.fence_id,
        fault: reason,
        at: saved.at,
        done_in_packet: saved.done_in_packet,
        grid: saved.grid,
        ..HwResult::default()
    }
}

/// Whether a suspend came between: also one that is over, since what was behind the buffer may have been handed back.
fn must_go_back(shared: &Mapping, submission: &HwSubmission) -> bool {
    suspension::of(shared, submission.context).fence != submission.suspends
}

/// The `count`-th submission.
fn submission(shared: &Mapping, count: u64) -> Option<HwSubmission> {
    let mut bytes = [0; size_of::<HwSubmission>()];
    shared.slice(hw_queue::slot(count), bytes.len() as u64)?.copy_to(&mut bytes);
    HwSubmission::read_from_bytes(&bytes).ok()
}

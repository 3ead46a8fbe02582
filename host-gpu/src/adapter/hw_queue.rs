//! The hardware queue, from the daemon: kernel-mode buffers, their results, preempt commands, and what a reset leaves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HW_QUEUE_DEPTH;
use campanile_protocol::engine::hw_queue::HW_SAVED;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::scheduling;
use campanile_protocol::handshake::power;
use campanile_protocol::packet::Fault;
use zerocopy::IntoBytes;

use super::error::AdapterError;
use super::scheduling::Preemption;
use super::scheduling::PreemptionReport;
use super::shared::SharedBlock;
use crate::clock;
use crate::engine::process::low_half;
use crate::engine::save_area;

/// What an engine ran when it was decided to reset it, and how far the hardware queue was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// What it ran.
    pub progress: Progress,
    /// Kernel-mode buffers that were done, ever.
    pub(super) completed: u64,
}

/// The daemon's end of the hardware queue. What the engine stores there is bounded by what was submitted.
#[derive(Debug)]
pub struct HwQueue {
    shared: Arc<SharedBlock>,
    /// Buffers submitted, ever.
    submitted: u64,
    /// Results collected, ever.
    completed: u64,
    /// Ids of the buffers between the two, oldest first.
    fence_ids: VecDeque<u64>,
    last_submitted: u64,
    last_completed: u64,
    /// The last PreemptionFenceId.
    preemptions: u64,
    /// When the preempt command was given that is not reported yet.
    preempting_since: Option<Instant>,
    snapshot: Option<Snapshot>,
}

impl HwQueue {
    pub(super) fn new(shared: Arc<SharedBlock>) -> Self {
        Self {
            shared,
            submitted: 0,
            completed: 0,
            fence_ids: VecDeque::new(),
            last_submitted: 0,
            last_completed: 0,
            preemptions: 0,
            preempting_since: None,
            snapshot: None,
        }
    }

    /// Fence ids go on after the last submitted of the node. What was submitted after the last completed was handed back.
    pub fn continue_fences(&mut self, submitted: u64, completed: u64) {
        (self.last_submitted, self.last_completed) = (submitted, completed);
    }

    /// Ids of the last buffer submitted, and of the last that completed.
    pub(super) fn last_ids(&self) -> (u64, u64) {
        (self.last_submitted, self.last_completed)
    }

    pub(super) fn submit(&mut self, submission: HwSubmission) -> Result<(), AdapterError> {
        if self.shared.is_lost() {
            return Err(AdapterError::Lost);
        }
        if self.submitted - self.completed >= HW_QUEUE_DEPTH {
            return Err(AdapterError::HwQueueFull);
        }
        let process_generation = match submission.process {
            process if process < block::MAX_PROCESSES => low_half(self.shared.load(block::process(process))),
            _ => 0,
        };
        let submission = HwSubmission { process_generation, ..submission };
        self.shared.write(hw_queue::slot(self.submitted), submission.as_bytes());
        self.submitted += 1;
        self.fence_ids.push_back(submission.fence_id);
        self.last_submitted = submission.fence_id;
        // PAIRS WITH engine/kernel_queue.rs: the slot is there first.
        self.shared.store(block::HW_QUEUE_SUBMITTED, self.submitted);
        self.shared.poke();
        Ok(())
    }

    /// Buffers done by the engine's word, ever. An engine that claims more than was submitted is not believed.
    pub(super) fn done(&self) -> u64 {
        self.shared.load(block::HW_QUEUE_COMPLETED).min(self.submitted)
    }

    pub(super) fn collect(&mut self) -> Option<HwResult> {
        // One that takes results back is not believed either.
        if self.done() <= self.completed {
            return None;
        }
        let result: HwResult = self.result(self.completed)?;
        self.completed += 1;
        let fence_id = self.fence_ids.pop_front();
        // TDR-53: by what is returned here, however the engine changes its word.
        if !result.is_handed_back() {
            self.last_completed = fence_id.unwrap_or(self.last_completed);
        }
        Some(result)
    }

    pub(super) fn preempt(&mut self) -> Preemption {
        if self.is_preempting() {
            return Preemption::Requested(self.preemptions);
        }
        self.preemptions += 1;
        let fence_id = self.preemptions;
        if self.fence_ids.is_empty() {
            return Preemption::Reported(PreemptionReport { fence_id, last_completed: self.last_completed });
        }
        self.preempting_since = Some(clock::now());
        // PAIRS WITH engine/execution.rs `catch_up`: the submissions are there first.
        self.shared.store(scheduling::PREEMPT_REQUEST, fence_id);
        self.shared.poke();
        Preemption::Requested(fence_id)
    }

    pub(super) fn take_preemption(&mut self) -> Option<PreemptionReport> {
        let fence_id = self.preemptions;
        // PAIRS WITH engine/execution.rs `put_back`.
        let is_done = self.is_preempting() && self.shared.load(scheduling::PREEMPT_REPORT) == fence_id;
        // Results come before the report of what put the others back.
        if !is_done || self.shared.load(block::HW_QUEUE_COMPLETED) > self.completed {
            return None;
        }
        self.preempting_since = None;
        Some(PreemptionReport {
            fence_id,
            last_completed: self.shared.load(scheduling::PREEMPT_LAST_COMPLETED),
        })
    }

    /// Reports an outstanding preempt command in the place of the process that has ended: it runs nothing any more, and
    /// what it had is the next one's.
    pub(super) fn report_preemption(&self) {
        self.shared.store(scheduling::PREEMPT_REPORT, self.preemptions);
    }

    /// Whether a preempt command is not reported yet: until then nothing is submitted.
    pub fn is_preempting(&self) -> bool {
        self.preempting_since.is_some()
    }

    /// When that command was given.
    pub fn preempting_since(&self) -> Option<Instant> {
        self.preempting_since
    }

    /// Tells the engine that the next completion will be seen without a signal. False when the engine sleeps,
    /// and so will take long.
    pub fn listen(&self) -> bool {
        self.shared.store(block::LISTENER, power::ACTIVE);
        self.shared.load(block::POWER) == power::ACTIVE
    }

    /// Polls for a completion for `limit`, then has the engine signal again. True when one is there.
    pub fn stop_listening(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        let is_there = || self.shared.load(block::HW_QUEUE_COMPLETED) > self.completed;
        while !is_there() && begun.elapsed() < limit {
            std::hint::spin_loop();
        }
        // PAIRS WITH engine/steps.rs `tell_of_results`: the engine signals, or the completion is seen here.
        let sleeps = self
            .shared
            .word(block::LISTENER)
            .is_some_and(|word| power::may_block(word, power::ASLEEP, is_there));
        if !sleeps {
            self.shared.store(block::LISTENER, power::ASLEEP);
        }
        !sleeps
    }

    /// Notes what the engine runs: that context pays for the reset that follows, even if its work is done by then
    /// (TDR-37, TDR-48).
    pub fn snapshot(&mut self) -> Snapshot {
        let progress = Progress::from_word(self.shared.load(block::PROGRESS));
        let completed = self.done();
        *self.snapshot.insert(Snapshot { progress, completed })
    }

    /// What was noted, or what there is now.
    pub(super) fn noted(&mut self) -> Snapshot {
        match self.snapshot {
            Some(snapshot) => snapshot,
            None => self.snapshot(),
        }
    }

    /// Another process takes the place of the last: what that ran says nothing of the next reset.
    pub(super) fn forget_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Ends what a process ran that has ended, where it was a kernel-mode buffer and is not done; the id that the reset
    /// returns (TDR-47, TDR-48).
    pub(super) fn abort(&self, snapshot: Snapshot) -> u64 {
        let completed = self.done();
        if snapshot.progress.work == Work::HwQueue && completed == snapshot.completed {
            return self.abort_oldest(completed);
        }
        self.last_completed_of(completed)
    }

    /// Hands back, in the place of the process that has ended, every kernel-mode buffer that it had and had not done:
    /// as an engine does for a context that is suspended. They are collected like any other result.
    pub fn hand_back_all(&mut self) {
        if !self.shared.is_lost() {
            return;
        }
        for count in self.done()..self.submitted {
            let submission = self.submission(count).unwrap_or_default();
            let is_saved = submission.flags & HW_SAVED != 0 || self.is_saved(count);
            let result = HwResult {
                fence_id: submission.fence_id,
                fault: HW_SUSPENDED,
                is_saved: u32::from(is_saved),
                ..HwResult::default()
            };
            self.end_slot(count, result);
        }
        self.report_preemption();
    }

    /// The `count`-th kernel-mode buffer.
    pub(super) fn submission(&self, count: u64) -> Option<HwSubmission> {
        self.shared.read(hw_queue::slot(count))
    }

    /// The oldest buffer that is not done.
    pub(super) fn oldest(&self) -> Option<(u64, HwSubmission)> {
        let done = self.done();
        self.submission(done).filter(|_| done < self.submitted).map(|submission| (done, submission))
    }

    /// Whether the engine put the `count`-th buffer aside, by its word.
    pub(super) fn is_saved(&self, count: u64) -> bool {
        save_area::is_saved(&self.shared.mapping, block::HW_QUEUE_SAVED, count)
    }

    fn result(&self, count: u64) -> Option<HwResult> {
        self.shared.read(hw_queue::slot(count) + hw_queue::RESULT)
    }

    fn end_slot(&self, count: u64, result: HwResult) {
        self.shared.write(hw_queue::slot(count) + hw_queue::RESULT, result.as_bytes());
        self.shared.store(block::HW_QUEUE_COMPLETED, count + 1);
    }

    /// Ends the oldest kernel-mode buffer with a fault; its id, or that of the last one done where there is none.
    fn abort_oldest(&self, completed: u64) -> u64 {
        let Some(fence_id) = self.id_at(completed).filter(|_| completed < self.submitted) else {
            return self.last_completed_of(completed);
        };
        self.end_slot(completed, HwResult { fence_id, fault: Fault::Driver as u32, ..HwResult::default() });
        fence_id
    }

    /// The id of the buffer in the slot after the `count`-th, where that was submitted and is not collected: the engine
    /// is not asked.
    fn id_at(&self, count: u64) -> Option<u64> {
        let index = usize::try_from(count.checked_sub(self.completed)?).ok()?;
        self.fence_ids.get(index).copied()
    }

    /// The id of the last of `count` kernel-mode buffers that completed: not one that was handed back (TDR-53).
    fn last_completed_of(&self, count: u64) -> u64 {
        let is_done = |at: &u64| self.result(*at).is_some_and(|result| !result.is_handed_back());
        let last = (self.completed..count).rev().find(is_done);
        last.and_then(|at| self.id_at(at)).unwrap_or(self.last_completed)
    }
}

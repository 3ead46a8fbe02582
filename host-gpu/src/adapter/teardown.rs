//! The end of an engine process, by force.

use crate::log_limit::inherit;
use std::io;
use std::process::Child;
use std::thread;
use std::time::Duration;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::process::Pid;
use rustix::process::PidfdFlags;
use rustix::process::Signal;
use rustix::process::kill_process;
use rustix::process::pidfd_open;

use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::packet::Fault;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::error::AdapterError;
use super::process::EngineProcess;

/// How long a killed process may take to leave the driver (TDR-15).
pub const DDI_DELAY: Duration = Duration::from_secs(5);

/// What an engine ran when it was decided to reset it, and how far the hardware queue was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// What it ran.
    pub progress: Progress,
    /// Kernel-mode buffers that were done, ever.
    pub(super) completed: u64,
}

/// Waits for a process to end, and reaps it.
///
/// # Errors
/// `TimedOut` when it is still there after `limit`; what the system says.
pub fn reap(child: &mut Child, limit: Duration) -> io::Result<()> {
    if child.try_wait()?.is_some() {
        return Ok(());
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a process without an id"))?;
    let ends = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec::try_from(limit).unwrap_or_default();
    poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&timeout))?;
    match child.try_wait()? {
        Some(_) => Ok(()),
        None => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Has a killed process that can do nothing any more reaped by a thread of its own: one that had gigabytes mapped takes
/// long to go.
pub(super) fn bury(child: Child) {
    let id = child.id();
    let waits = move || {
        let mut child = child;
        if let Err(error) = reap(&mut child, DDI_DELAY) {
            log::warn!("reaping engine process {id}: {error}");
        }
    };
    if let Err(error) = thread::Builder::new().name("reaper".to_owned()).spawn(inherit(waits)) {
        log::warn!("engine process {id} is not reaped: {error}");
    }
}

impl EngineProcess {
    /// Notes what the engine runs: that context pays for the reset that follows, even if its work is done by then
    /// (TDR-37, TDR-48).
    pub fn snapshot(&mut self) -> Snapshot {
        let progress = Progress::from_word(self.load(block::PROGRESS));
        let completed = self.load(block::HW_QUEUE_COMPLETED).min(self.submitted);
        *self.snapshot.insert(Snapshot { progress, completed })
    }

    /// Fence ids go on after the last submitted of the node. What was submitted after the last completed was handed back.
    pub fn continue_fences(&mut self, submitted: u64, completed: u64) {
        (self.last_submitted, self.last_completed) = (submitted, completed);
    }

    /// Stops the process where it is, for a debugger; only a reset ends that.
    pub fn hold(&self) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let Some(Err(error)) = pid.filter(|_| !self.lost).map(|pid| kill_process(pid, Signal::STOP)) {
            log::debug!("stopping engine {}: {error}", self.pid());
        }
    }

    /// Has the engine acknowledge something, for no other reason than to see whether it does.
    pub fn ask_acknowledgement(&mut self) {
        self.changed();
    }

    /// See [`super::Adapter::reset_engine`]. A process that is known to stand still is not waited for until it is gone,
    /// which takes the longer the more it had mapped: no other request of its VM would be served meanwhile.
    pub(super) fn kill_and_abort(&mut self) -> Result<u64, AdapterError> {
        let snapshot = match self.snapshot {
            Some(snapshot) => snapshot,
            None => self.snapshot(),
        };
        if !self.lost {
            if let Some(mut child) = self.child.take() {
                let stands_still = self.tracking.before_kill(&child);
                // Fails only when the process is gone already.
                if let Err(error) = child.kill() {
                    log::debug!("killing engine {}: {error}", child.id());
                }
                if stands_still {
                    // No thread of it that is stopped runs another step of its own on its way out.
                    bury(child);
                } else if let Err(error) = reap(&mut child, DDI_DELAY) {
                    if error.kind() == io::ErrorKind::TimedOut {
                        let pid = child.id();
                        self.child = Some(child);
                        return Err(AdapterError::Stuck { pid, after: DDI_DELAY });
                    }
                    log::warn!("reaping engine {}: {error}", child.id());
                }
            }
            self.lost = true;
            self.tracking.after_end();
        }
        // From here on nothing of it touches memory.
        let completed = self.load(block::HW_QUEUE_COMPLETED).min(self.submitted);
        if snapshot.progress.work == Work::HwQueue && completed == snapshot.completed {
            return Ok(self.abort_oldest(completed));
        }
        Ok(self.last_completed_of(completed))
    }

    /// Ends the oldest kernel-mode buffer with a fault; its id, or that of the last one done where there is none.
    fn abort_oldest(&self, completed: u64) -> u64 {
        let Some(fence_id) = self.id_at(completed).filter(|_| completed < self.submitted) else {
            return self.last_completed_of(completed);
        };
        let result = HwResult { fence_id, fault: Fault::Driver as u32, ..HwResult::default() };
        let place = hw_queue::slot(completed) + hw_queue::RESULT;
        if let Some(slice) = self.shared.slice(place, size_of::<HwResult>() as u64) {
            slice.copy_from(result.as_bytes());
        }
        self.store(block::HW_QUEUE_COMPLETED, completed + 1);
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
        let result = |at: u64| {
            let mut bytes = [0; size_of::<HwResult>()];
            let place = hw_queue::slot(at) + hw_queue::RESULT;
            self.shared.slice(place, bytes.len() as u64)?.copy_to(&mut bytes);
            HwResult::read_from_bytes(&bytes).ok()
        };
        let is_done = |at: &u64| result(*at).is_some_and(|result| !result.is_handed_back());
        let last = (self.completed..count).rev().find(is_done);
        last.and_then(|at| self.id_at(at)).unwrap_or(self.last_completed)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::process::Command;
    use std::time::Duration;

    use std::sync::atomic::Ordering;

    use campanile_protocol::engine::block;
    use campanile_protocol::engine::hw_queue;
    use campanile_protocol::engine::hw_queue::HW_BLOCKED;
    use campanile_protocol::engine::hw_queue::HW_PREEMPTED;
    use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
    use campanile_protocol::engine::hw_queue::HwResult;
    use campanile_protocol::engine::hw_queue::HwSubmission;
    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::packet::Fault;
    use zerocopy::IntoBytes;

    use super::DDI_DELAY;
    use super::EngineProcess;
    use super::reap;
    use crate::adapter::Adapter;
    use crate::adapter::scheduling::Preemption;
    use crate::adapter::scheduling::PreemptionReport;
    use crate::engine::message::NodeKind;

    #[test]
    fn tdr_15_a_process_that_does_not_end_is_waited_for_no_longer_than_the_delay() {
        assert_eq!(DDI_DELAY, Duration::from_secs(5));
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let late = reap(&mut child, Duration::from_millis(1)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        child.kill().unwrap();
        reap(&mut child, Duration::from_secs(60)).unwrap();
        reap(&mut child, Duration::ZERO).unwrap();
    }

    /// A node without a process, whose engine the test is.
    struct Bench {
        engine: EngineProcess,
        ended: u64,
    }

    impl Bench {
        fn new(ids: &[u64]) -> Self {
            let mut engine = EngineProcess::unstarted(NodeKind::Copy).unwrap();
            engine.continue_fences(5, 5);
            // Submissions are taken as those of a process that lives.
            engine.lost = false;
            let mut bench = Self { engine, ended: 0 };
            ids.iter().for_each(|id| bench.submit(*id));
            bench
        }

        fn submit(&mut self, fence_id: u64) {
            let submission = HwSubmission { fence_id, ..HwSubmission::default() };
            self.engine.submit_command(submission).unwrap();
        }

        /// The oldest buffer ends so.
        fn end(&mut self, fault: u32) {
            let result = HwResult { fault, ..HwResult::default() };
            let place = hw_queue::slot(self.ended) + hw_queue::RESULT;
            let bytes = result.as_bytes();
            self.engine.shared.slice(place, bytes.len() as u64).unwrap().copy_from(bytes);
            self.ended += 1;
            self.store(block::HW_QUEUE_COMPLETED, self.ended);
        }

        fn store(&self, offset: u64, value: u64) {
            self.engine.shared.word(offset).unwrap().store(value, Ordering::Release);
        }

        fn run(&self) {
            let progress = Progress { steps: 1, is_exempt: false, work: Work::HwQueue };
            self.store(block::PROGRESS, progress.word());
        }

        fn last_completed(&mut self) -> u64 {
            while self.engine.completed_command().is_some() {}
            self.engine.collect_debug_info().last_completed
        }
    }

    #[test]
    fn tdr_53_tdr_56_pre_21_what_is_handed_back_does_not_advance_the_last_completed_id() {
        for fault in [HW_PREEMPTED, HW_SUSPENDED, HW_BLOCKED] {
            let mut bench = Bench::new(&[6, 7]);
            bench.end(0);
            assert_eq!(bench.last_completed(), 6);
            bench.end(fault);
            assert_eq!(bench.last_completed(), 6, "{fault:#x}");
            let report = PreemptionReport { fence_id: 1, last_completed: 6 };
            assert_eq!(bench.engine.preempt_command(), Preemption::Reported(report));
            bench.submit(8);
            bench.end(Fault::Driver as u32);
            assert_eq!(bench.last_completed(), 8, "a fault is an end");
        }
    }

    #[test]
    fn tdr_47_tdr_54_the_aborted_buffer_is_the_oldest_that_is_not_done() {
        for collected in [false, true] {
            let mut bench = Bench::new(&[6, 7]);
            bench.end(0);
            if collected {
                assert_eq!(bench.last_completed(), 6);
            }
            bench.run();
            assert_eq!(bench.engine.reset_engine().unwrap(), 7, "collected: {collected}");
            assert_eq!(bench.last_completed(), 7);
        }
    }

    #[test]
    fn tdr_47_tdr_53_a_reset_that_aborts_nothing_returns_what_completed_last() {
        // Nothing of the hardware queue ran; what ended is collected, or not yet.
        for (faults, last) in [
            (&[][..], 5),
            (&[0], 6),
            (&[HW_SUSPENDED], 5),
            (&[0, HW_SUSPENDED], 6),
            (&[HW_SUSPENDED, 0], 7),
            (&[HW_SUSPENDED, HW_PREEMPTED], 5),
        ] {
            for collected in [false, true] {
                let mut bench = Bench::new(&[6, 7]);
                faults.iter().for_each(|fault| bench.end(*fault));
                if collected {
                    assert_eq!(bench.last_completed(), last);
                }
                assert_eq!(bench.engine.reset_engine().unwrap(), last, "{faults:x?}, collected: {collected}");
            }
        }
    }

    #[test]
    fn tdr_48_a_queue_that_has_emptied_between_decision_and_reset_aborts_nothing() {
        let mut bench = Bench::new(&[6]);
        bench.run();
        let snapshot = bench.engine.snapshot();
        assert_eq!(snapshot.progress.work, Work::HwQueue);
        bench.end(0);
        assert_eq!(bench.engine.reset_engine().unwrap(), 6);
        // It ended as the engine said.
        assert_eq!(bench.engine.completed_command().map(|result| result.fault), Some(0));
        assert!(bench.engine.completed_command().is_none());
    }

    #[test]
    fn tdr_83_an_engine_that_claims_to_have_done_more_than_it_was_given_aborts_within_that() {
        let mut bench = Bench::new(&[6, 7]);
        bench.store(block::HW_QUEUE_COMPLETED, u64::MAX);
        bench.run();
        let aborted = bench.engine.reset_engine().unwrap();
        assert!((5..=7).contains(&aborted), "{aborted}");
    }
}

//! The end of an engine process, by force.

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
    if let Err(error) = thread::Builder::new().name("reaper".to_owned()).spawn(waits) {
        log::warn!("engine process {id} is not reaped: {error}");
    }
}

impl EngineProcess {
    /// Notes what the engine runs: whoever that is pays for the reset that follows, even if his work is done by then
    /// (TDR-37, TDR-48).
    pub fn snapshot(&mut self) -> Snapshot {
        let progress = Progress::from_word(self.load(block::PROGRESS));
        let completed = self.load(block::HW_QUEUE_COMPLETED).min(self.submitted);
        *self.snapshot.insert(Snapshot { progress, completed })
    }

    /// Fence ids go on after `last`, which is the last submitted and completed of the node.
    pub fn continue_fences(&mut self, last: u64) {
        (self.last_submitted, self.last_completed) = (last, last);
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
    /// which takes the longer the more it had mapped: nobody else of its VM would be served meanwhile.
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
        Ok(self.id_of(completed))
    }

    /// Ends the oldest kernel-mode buffer with a fault; its id, or that of the last one done where there is none.
    fn abort_oldest(&self, completed: u64) -> u64 {
        if completed >= self.submitted {
            return self.id_of(completed);
        }
        let fence_id = self.id_of(completed + 1);
        let result = HwResult { fence_id, fault: Fault::Driver as u32, ..HwResult::default() };
        let place = hw_queue::slot(completed) + hw_queue::RESULT;
        if let Some(slice) = self.shared.slice(place, size_of::<HwResult>() as u64) {
            slice.copy_from(result.as_bytes());
        }
        self.store(block::HW_QUEUE_COMPLETED, completed + 1);
        fence_id
    }

    /// The id of the `count`-th kernel-mode buffer, which is submitted and was not collected before the last one that
    /// was: the engine is not asked.
    fn id_of(&self, count: u64) -> u64 {
        let index = usize::try_from(count - self.completed.min(count)).unwrap_or(0);
        match index.checked_sub(1) {
            None => self.last_completed,
            Some(index) => self.fence_ids.get(index).copied().unwrap_or(self.last_submitted),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::process::Command;
    use std::time::Duration;

    use super::DDI_DELAY;
    use super::reap;

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
}

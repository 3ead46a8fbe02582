//! An engine process as a child of the daemon: how it is held, stopped and ended.

use std::io;
use std::process::Child;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::process::Pid;
use rustix::process::PidfdFlags;
use rustix::process::Signal;
use rustix::process::WaitId;
use rustix::process::WaitIdOptions;
use rustix::process::kill_process;
use rustix::process::pidfd_open;
use rustix::process::waitid;

use super::containment;
use super::containment::Containment;
use super::error::AdapterError;
use super::launcher::Instance;
use crate::log_limit::inherit;

/// How long a killed process may take to leave the driver (TDR-15).
const DDI_DELAY: Duration = Duration::from_secs(5);
/// How long a process may take to stop, before what it wrote counts as unknown.
const STOP_LIMIT: Duration = Duration::from_millis(100);
/// Between two looks whether it has.
const STOP_LOOK: Duration = Duration::from_micros(20);

/// The process, and what holds it from outside.
#[derive(Debug)]
pub(super) struct ChildProcess {
    child: Child,
    containment: Containment,
}

impl ChildProcess {
    pub(super) fn new(child: Child, containment: Containment) -> Self {
        Self { child, containment }
    }

    fn kill(&mut self) {
        // Fails only when it is gone already.
        if let Err(error) = self.child.kill() {
            log::debug!("killing engine {}: {error}", self.child.id());
        }
    }
}

impl Instance for ChildProcess {
    fn id(&self) -> u32 {
        self.child.id()
    }

    fn is_there(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn hold(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(Err(error)) = pid.map(|pid| kill_process(pid, Signal::STOP)) {
            log::debug!("stopping engine {}: {error}", self.child.id());
        }
    }

    fn ending(&self) -> String {
        containment::ending(&self.child, &self.containment)
    }

    fn stand_still(&self) -> io::Result<()> {
        stop(&self.child)
    }

    fn end(&mut self) -> Result<(), AdapterError> {
        self.kill();
        match reap(&mut self.child, DDI_DELAY) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(AdapterError::Stuck { pid: self.child.id(), after: DDI_DELAY });
            }
            Err(error) => log::warn!("reaping engine {}: {error}", self.child.id()),
            Ok(()) => {}
        }
        Ok(())
    }

    fn discard(mut self: Box<Self>) {
        self.kill();
        // No thread of it that is stopped runs another step of its own on its way out.
        bury(self.child);
    }
}

/// Waits for a process to end, and reaps it.
///
/// # Errors
/// `TimedOut` when it is still there after `limit`; what the system says.
fn reap(child: &mut Child, limit: Duration) -> io::Result<()> {
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
fn bury(child: Child) {
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

/// Stops a process, all threads of it, or waits until it has ended, all threads of it: either way none of its own steps writes
/// any more. One that is stopped keeps its pages, which are looked at before it is killed, and only root or its own user could
/// continue it; of one that has ended by itself they are gone, which the look is told (`ESRCH`), and all counts as written. A
/// thread within a system call that writes keeps the process from being stopped, and so from being known.
fn stop(child: &Child) -> io::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a process without an id"))?;
    kill_process(pid, Signal::STOP)?;
    // Nothing is taken: the later reap finds what there is to find.
    let options =
        WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let begun = Instant::now();
    loop {
        if waitid(WaitId::Pid(pid), options)?.is_some() {
            return Ok(());
        }
        if begun.elapsed() >= STOP_LIMIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(STOP_LOOK);
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

//! A process that this one has started, or has found.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::process::PidfdFlags;
use rustix::process::Signal;
use rustix::process::WaitId;
use rustix::process::WaitIdOptions;
use rustix::process::pidfd_open;
use rustix::process::pidfd_send_signal;
use rustix::process::waitid;

/// The process; its descriptor is readable when it has ended.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    handle: OwnedFd,
}

impl Process {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot be started, or not be watched.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        // It is this process's to wait for, so that the number is of no other.
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok(Self { pid, handle }),
            Err(errno) => {
                child.kill()?;
                child.wait()?;
                Err(errno.into())
            }
        }
    }

    /// One that is there, as long as `is_it` says so once its number can be no other's.
    ///
    /// # Errors
    /// The system refuses.
    pub fn find(pid: Pid, is_it: impl FnOnce() -> io::Result<bool>) -> io::Result<Option<Self>> {
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        Ok(is_it()?.then_some(Self { pid, handle }))
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends it a signal, unless it has ended.
    pub fn signal(&self, signal: Signal) {
        match pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => log::warn!("process {}: no signal reaches it: {errno}", self.pid.as_raw_nonzero()),
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(self.handle.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Waits for it, once its descriptor is readable; how it has ended, for people, and whether by itself.
    pub fn reap(self) -> (String, bool) {
        // One that a process before this one has started may be this one's child all the same: that one has executed this program.
        match waitid(WaitId::PidFd(self.handle.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => (format!("exit status {code}"), true),
                (None, Some(signal)) => (format!("signal {signal}"), false),
                (None, None) => (format!("{status:?}"), false),
            },
            Ok(None) | Err(_) => ("how is not known".to_owned(), false),
        }
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;

    use rustix::event::PollFd;
    use rustix::event::PollFlags;
    use rustix::event::poll;
    use rustix::process::Pid;
    use rustix::process::Signal;

    use super::Process;

    fn wait(process: &Process) {
        poll(&mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)], None).unwrap();
    }

    #[test]
    fn a_process_that_was_started_says_how_it_ended() {
        let process = Process::start(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        wait(&process);
        assert_eq!(process.reap(), ("exit status 3".to_owned(), true));
        let process = Process::start(Command::new("sleep").arg("1000")).unwrap();
        process.signal(Signal::KILL);
        wait(&process);
        process.signal(Signal::TERM);
        let (how, by_itself) = process.reap();
        assert!(how.starts_with("signal 9") && !by_itself);
        assert!(Process::start(&mut Command::new("/no/such/program")).is_err());
    }

    #[test]
    fn a_process_that_was_found_is_watched_and_one_that_is_not_there_or_another_is_not_taken() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(Process::find(pid, || Ok(false)).unwrap().is_none());
        let found = Process::find(pid, || Ok(true)).unwrap().unwrap();
        assert_eq!(found.pid(), pid);
        found.signal(Signal::TERM);
        wait(&found);
        assert_eq!(found.reap(), ("signal 15".to_owned(), false), "it is this process's child");
        assert!(child.wait().is_err());
        assert!(Process::find(pid, || Ok(true)).unwrap().is_none());
    }
}

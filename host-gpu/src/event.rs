//! An eventfd: one process wakes another.
//!
//! vmm-sys-util's `EventFd` takes and gives its descriptor as a number; here it has an owner.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::IntoRawFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::fs::readlink;
use vmm_sys_util::eventfd::EFD_CLOEXEC;
use vmm_sys_util::eventfd::EFD_NONBLOCK;
use vmm_sys_util::eventfd::EventFd;

/// What the kernel calls every eventfd.
const EVENTFD: &[u8] = b"anon_inode:[eventfd]";
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Checks that a descriptor of another process is an eventfd. Anything else may block where an eventfd does not: a poll of a
/// file on FUSE, for one, waits for the process that serves it.
///
/// # Errors
/// `InvalidInput` with what it is instead, and what reading its link in `/proc/self/fd` says.
pub fn check_eventfd(fd: impl AsFd) -> io::Result<()> {
    let link = readlink(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), Vec::new())?;
    if link.as_bytes() == EVENTFD {
        return Ok(());
    }
    let what = link.to_string_lossy().escape_debug().take(80).collect::<String>();
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("an eventfd is expected, and this is {what}")))
}

/// An eventfd, closed on exec. Signals of it never block, nor do reads of one that was made here.
#[derive(Debug)]
pub struct Event {
    eventfd: EventFd,
    /// Whether another process has made it, whose flags it has.
    is_foreign: bool,
}

impl Event {
    /// A new one, not signalled.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self { eventfd: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?, is_foreign: false })
    }

    /// Another name of the same one.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { eventfd: self.eventfd.try_clone()?, is_foreign: self.is_foreign })
    }

    /// One of another process, to be signalled only.
    ///
    /// That process shares its flags: some wait in `read` and need it to block, and any can change it later. So `O_NONBLOCK` is
    /// neither set nor relied on, and a full counter is recognised by poll.
    ///
    /// # Errors
    /// It is no eventfd.
    pub fn foreign(descriptor: OwnedFd) -> io::Result<Self> {
        check_eventfd(&descriptor)?;
        Ok(Self { is_foreign: true, ..Self::from(descriptor) })
    }

    /// Wakes the thread that waits. Fails only when the counter is full, and then the reader is awake.
    pub fn signal(&self) {
        if self.is_foreign && !self.takes_a_write() {
            return;
        }
        if let Err(error) = self.eventfd.write(1) {
            log::debug!("an eventfd took no signal: {error}");
        }
    }

    fn takes_a_write(&self) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::OUT)];
        let ready = rustix::event::poll(&mut fds, Some(&AT_ONCE));
        ready.is_ok_and(|count| count > 0) && fds[0].revents().contains(PollFlags::OUT)
    }

    /// Takes the signals that came; whether there were any.
    pub fn drain(&self) -> bool {
        self.eventfd.read().is_ok()
    }

    /// Waits for a signal and takes it, or for `limit`. Whether one came.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let timeout = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, timeout.as_ref()), Ok(ready) if ready > 0) && self.drain()
    }
}

impl From<OwnedFd> for Event {
    fn from(descriptor: OwnedFd) -> Self {
        // SAFETY: the number is that of an open descriptor, which has just lost its owner.
        let eventfd = unsafe { EventFd::from_raw_fd(descriptor.into_raw_fd()) };
        Self { eventfd, is_foreign: false }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self.eventfd`, which the result borrows from.
        unsafe { BorrowedFd::borrow_raw(self.eventfd.as_raw_fd()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::event::EventfdFlags;
    use rustix::event::eventfd;
    use rustix::fs::OFlags;
    use rustix::fs::fcntl_getfl;
    use rustix::io::FdFlags;
    use rustix::io::fcntl_getfd;

    use super::Event;
    use super::check_eventfd;

    #[test]
    fn one_of_another_process_is_an_eventfd_and_a_full_one_that_blocks_is_not_waited_for() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let refused = check_eventfd(&reader).unwrap_err().to_string();
        assert!(refused.contains("pipe:["), "{refused}");
        assert!(Event::foreign(reader.into()).is_err());
        let blocks = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let event = Event::foreign(blocks.try_clone().unwrap()).unwrap();
        event.signal();
        assert!(event.drain());
        rustix::io::write(&blocks, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.signal();
        event.try_clone().unwrap().signal();
    }

    #[test]
    fn it_passes_to_no_program_and_blocks_no_reader() {
        let event = Event::new().unwrap();
        for event in [event.try_clone().unwrap(), event] {
            assert!(fcntl_getfd(&event).unwrap().contains(FdFlags::CLOEXEC));
            assert!(fcntl_getfl(&event).unwrap().contains(OFlags::NONBLOCK));
        }
    }

    #[test]
    fn signals_are_taken_once_by_any_name_of_it() {
        let event = Event::new().unwrap();
        let other = Event::from(event.as_fd().try_clone_to_owned().unwrap());
        assert!(!event.drain() && !other.wait(Some(Duration::ZERO)));
        event.signal();
        event.signal();
        assert!(other.wait(None));
        assert!(!event.drain());
    }
}

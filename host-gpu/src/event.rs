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
use vmm_sys_util::eventfd::EFD_CLOEXEC;
use vmm_sys_util::eventfd::EFD_NONBLOCK;
use vmm_sys_util::eventfd::EventFd;

/// A non-blocking eventfd, closed on exec.
#[derive(Debug)]
pub struct Event {
    eventfd: EventFd,
}

impl Event {
    /// A new one, not signalled.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self { eventfd: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)? })
    }

    /// Another name of the same one.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { eventfd: self.eventfd.try_clone()? })
    }

    /// Wakes the thread that waits. Fails only when the counter is full, and then the reader is awake.
    pub fn signal(&self) {
        if let Err(error) = self.eventfd.write(1) {
            log::debug!("an eventfd took no signal: {error}");
        }
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
        Self { eventfd }
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

    use rustix::fs::OFlags;
    use rustix::fs::fcntl_getfl;
    use rustix::io::FdFlags;
    use rustix::io::fcntl_getfd;

    use super::Event;

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

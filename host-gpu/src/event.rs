//! An eventfd: one process wakes another.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;

/// A non-blocking eventfd.
#[derive(Debug)]
pub struct Event {
    descriptor: OwnedFd,
}

impl Event {
    /// A new one, not signalled.
    pub fn new() -> io::Result<Self> {
        let descriptor = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor })
    }

    /// Another name of the same one.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.try_clone()? })
    }

    /// Wakes the thread that waits. Fails only when the counter is full, and then the reader is awake.
    pub fn signal(&self) {
        if let Err(error) = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes()) {
            log::debug!("an eventfd took no signal: {error}");
        }
    }

    /// Takes the signals that came; whether there were any.
    pub fn drain(&self) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&self.descriptor, &mut count).is_ok()
    }

    /// Waits for a signal and takes it, or for `limit`. Whether one came.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let timeout = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::new(&self.descriptor, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, timeout.as_ref()), Ok(ready) if ready > 0) && self.drain()
    }
}

impl From<OwnedFd> for Event {
    fn from(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

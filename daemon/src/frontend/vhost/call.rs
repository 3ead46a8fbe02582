//! Eventfds of the front-end that interrupt the guest.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;

use campanile_host_gpu::event::Event;

/// A call (or error) eventfd of a ring.
#[derive(Debug)]
pub(super) struct Call(Event);

impl Call {
    /// # Errors
    /// It is no eventfd.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        Event::foreign(fd).map(Self)
    }

    /// Adds one to the eventfd. One that cannot take more is signalled already.
    pub(super) fn signal(&self) {
        self.0.signal();
    }
}

impl AsFd for Call {
    /// The eventfd, for another process that is to signal it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

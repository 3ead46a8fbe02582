//! The descriptor that interrupts the guest.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::fs::OFlags;
use rustix::fs::fcntl_getfl;
use rustix::io::Errno;
use rustix::io::write;

/// A call (or error) eventfd of a ring.
#[derive(Debug)]
pub(super) struct Call {
    fd: OwnedFd,
    /// The front-end shares its flags with us, and some leave it blocking: a full counter must not stop us.
    may_block: bool,
}

impl Call {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let may_block = !fcntl_getfl(&file)?.contains(OFlags::NONBLOCK);
        Ok(Self { fd: file.into(), may_block })
    }

    /// Adds one to the eventfd. One that cannot take more is signalled already.
    pub(super) fn signal(&self) {
        if self.may_block && !self.takes_a_write() {
            return;
        }
        match write(&self.fd, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => log::debug!("a call descriptor cannot be written: {error}"),
        }
    }

    fn takes_a_write(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        ready.is_ok_and(|count| count > 0) && fds[0].revents().contains(PollFlags::OUT)
    }
}

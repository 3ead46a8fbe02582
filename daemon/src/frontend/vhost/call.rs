//! Eventfds of the front-end: those that interrupt the guest, and those that say that it has kicked.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::fs::readlink;
use rustix::io::Errno;
use rustix::io::write;

/// What the kernel calls every eventfd.
const EVENTFD: &[u8] = b"anon_inode:[eventfd]";
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Checks that a descriptor of the front-end is an eventfd. Anything else may block where an eventfd does not: a poll of a
/// file on FUSE, for one, waits for the process that serves it.
///
/// # Errors
/// `InvalidInput` with what it is instead, and what reading its link in `/proc/self/fd` says.
pub(super) fn check_eventfd(fd: impl AsFd) -> io::Result<()> {
    let link = readlink(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), Vec::new())?;
    if link.as_bytes() == EVENTFD {
        return Ok(());
    }
    let what = link.to_string_lossy().escape_debug().take(80).collect::<String>();
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("an eventfd is expected, and this is {what}")))
}

/// A call (or error) eventfd of a ring.
#[derive(Debug)]
pub(super) struct Call(OwnedFd);

impl Call {
    /// # Errors
    /// It is no eventfd.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        check_eventfd(&fd)?;
        Ok(Self(fd))
    }

    /// The eventfd, for another process that is to signal it.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    /// Adds one to the eventfd. One that cannot take more is signalled already.
    ///
    /// The front-end shares the flags of its eventfd: some front-ends wait in `read` and need it to block, and any can
    /// change it later. So O_NONBLOCK is neither set nor relied on, and a full counter is recognised by poll.
    pub(super) fn signal(&self) {
        if !self.takes_a_write() {
            return;
        }
        match write(&self.0, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => log::debug!("a call descriptor cannot be written: {error}"),
        }
    }

    fn takes_a_write(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
        let ready = poll(&mut fds, Some(&AT_ONCE));
        ready.is_ok_and(|count| count > 0) && fds[0].revents().contains(PollFlags::OUT)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::EventfdFlags;
    use rustix::event::eventfd;
    use rustix::pipe::pipe;

    use super::Call;
    use super::check_eventfd;

    #[test]
    fn what_is_no_eventfd_is_named() {
        let (reader, _writer) = pipe().unwrap();
        let refused = check_eventfd(&reader).unwrap_err().to_string();
        assert!(refused.contains("pipe:["), "{refused}");
        assert!(check_eventfd(eventfd(0, EventfdFlags::CLOEXEC).unwrap()).is_ok());
        assert!(Call::new(reader).is_err());
    }
}

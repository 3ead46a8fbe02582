//! The moment at which a session must look again though nobody signals.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::Itimerspec;
use rustix::time::TimerfdClockId;
use rustix::time::TimerfdFlags;
use rustix::time::TimerfdTimerFlags;
use rustix::time::Timespec;

/// A timer descriptor.
#[derive(Debug)]
pub struct Timer {
    descriptor: OwnedFd,
}

impl Timer {
    /// Not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { descriptor: rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)? })
    }

    /// Readable after `wait`, once; never for `None`.
    pub fn set(&self, wait: Option<Duration>) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would unset it.
        let wait = wait.map(|wait| wait.max(Duration::from_nanos(1)));
        let value = wait.map_or(zero, |wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let spec = Itimerspec { it_interval: zero, it_value: value };
        if let Err(error) = rustix::time::timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &spec)
        {
            log::error!("setting a timer: {error}");
        }
    }

    /// Takes its signal.
    pub fn drain(&self) {
        let mut count = [0; 8];
        if let Err(error) = rustix::io::read(&self.descriptor, &mut count) {
            log::debug!("a timer that is not due: {error}");
        }
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

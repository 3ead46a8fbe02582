//! The session's only clock: it wakes the vGPU's thread when something that waits for a moment is due.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::time::Instant;

use campanile_host_gpu::clock;
use rustix::time::Itimerspec;
use rustix::time::TimerfdClockId;
use rustix::time::TimerfdFlags;
use rustix::time::TimerfdTimerFlags;
use rustix::time::Timespec;

/// A timer that goes off once.
#[derive(Debug)]
pub struct Timer {
    descriptor: OwnedFd,
    due: Option<Instant>,
}

impl Timer {
    /// One that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { descriptor: rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?, due: None })
    }

    /// Has it go off at `at`, or earlier where that was asked already.
    pub fn set(&mut self, at: Instant) {
        if self.due.is_some_and(|due| due <= at) {
            return;
        }
        self.due = Some(at);
        if clock::is_virtual() {
            return;
        }
        let left = at.saturating_duration_since(clock::now());
        let left = left.max(std::time::Duration::from_nanos(1));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // What waits here is due within seconds: it always fits.
        let spec = Itimerspec { it_interval: zero, it_value: Timespec::try_from(left).unwrap_or(zero) };
        if let Err(error) = rustix::time::timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &spec)
        {
            log::error!("setting a timer: {error}");
        }
    }

    /// When it goes off.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// It went off: it is not set any more.
    pub fn take(&mut self) {
        self.due = None;
        // Empty where it was set anew meanwhile.
        let _count = rustix::io::read(&self.descriptor, &mut [0; 8]);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

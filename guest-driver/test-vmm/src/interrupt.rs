//! The call eventfd of a queue, and how one thread sleeps on it.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;
use std::time::Instant;

use vmm_sys_util::epoll::ControlOperation;
use vmm_sys_util::epoll::Epoll;
use vmm_sys_util::epoll::EpollEvent;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

/// `eventfd` flag EFD_CLOEXEC.
const EFD_CLOEXEC: i32 = 0o2_000_000;
/// Sleep after a failed wait, so that a broken eventfd does not burn the CPU.
const AFTER_ERROR: Duration = Duration::from_millis(1);

/// The device's way to wake the driver. One thread at a time sleeps on it.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// Blocking, so that a sleep without deadline is one system call.
    event: EventFd,
    epoll: Epoll,
}

impl Interrupt {
    pub(crate) fn new() -> io::Result<Self> {
        let event = EventFd::new(EFD_CLOEXEC)?;
        let epoll = Epoll::new()?;
        epoll.ctl(ControlOperation::Add, event.as_raw_fd(), EpollEvent::new(EventSet::IN, 0))?;
        Ok(Self { event, epoll })
    }

    pub(crate) fn event(&self) -> &EventFd {
        &self.event
    }

    /// Ends the sleep of the threads that sleep, as an interrupt does.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.event.write(1) {
            log::warn!("a wake-up was lost: {error}");
        }
    }

    /// Sleeps until an interrupt or, at the latest, shortly after the deadline. May return early.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) {
        if deadline.is_none() {
            match self.event.read() {
                Ok(_) => return,
                // The device has made the shared description non-blocking: poll it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return,
                Err(error) => return pause(&error),
            }
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Rounded up, so that a waiter does not wake just before its deadline again and again.
        let timeout = left.map_or(-1, |left| i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX));
        match self.epoll.wait(timeout, &mut [EpollEvent::default()]) {
            Ok(0) => {}
            Ok(_) => match self.event.read() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => pause(&error),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => pause(&error),
        }
    }
}

fn pause(error: &io::Error) {
    log::warn!("waiting for an interrupt failed: {error}");
    std::thread::sleep(AFTER_ERROR);
}

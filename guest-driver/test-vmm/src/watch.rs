//! The thread that notices the end: of the connection, or of a message's time.
//!
//! The receive loop of the `vhost` crate takes a socket time-out for "try again", so only hanging up ends it.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use rustix::event::EventfdFlags;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;

use super::front_end::FrontEnd;
use super::pause::lock::Held;
use super::pause::lock::Lock;
use super::request::Loss;
use super::virt_queue::VirtQueue;
use crate::transport::error::TransportError;

/// The deadline of the message under way, and the bell that tells the watch of a change.
#[derive(Debug)]
pub(crate) struct Alarm {
    bell: OwnedFd,
    state: Lock<AlarmState>,
}

#[derive(Debug, Default)]
struct AlarmState {
    deadline: Option<Instant>,
    expired: bool,
    over: bool,
    /// The watch has ended.
    ended: bool,
    /// Nobody is told of the end.
    silent: bool,
}

/// Disarms the alarm when dropped.
#[must_use]
pub(crate) struct Armed<'a> {
    alarm: &'a Alarm,
}

impl Alarm {
    pub(crate) fn new() -> Result<Arc<Self>, TransportError> {
        let refused =
            |source: rustix::io::Errno| TransportError::System { what: "an eventfd", source: source.into() };
        let bell =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused)?;
        Ok(Arc::new(Self { bell, state: Lock::default() }))
    }

    fn state(&self) -> Held<'_, AlarmState> {
        self.state.lock()
    }

    fn ring(&self) {
        if let Err(error) = rustix::io::write(&self.bell, &1_u64.to_ne_bytes()) {
            log::debug!("the bell of the watch: {error}");
        }
    }

    /// Hangs up unless the guard is dropped in time.
    pub(crate) fn arm(&self, time: Duration) -> Armed<'_> {
        self.state().deadline = Instant::now().checked_add(time);
        self.ring();
        Armed { alarm: self }
    }

    /// From now on the end of the connection loses nothing: another device may have the rings.
    pub(crate) fn hold(&self) {
        self.state().silent = true;
    }

    /// The end of the connection is the queues' loss, and was, if it came meanwhile.
    pub(crate) fn release(&self, queues: &[Arc<VirtQueue>]) {
        let mut state = self.state();
        state.silent = false;
        if state.ended {
            drop(state);
            lose(queues);
        }
    }

    /// Ends the watch.
    pub(crate) fn end(&self) {
        self.state().over = true;
        self.ring();
    }
}

impl Armed<'_> {
    /// Whether the watch hung up because the time was over.
    pub(crate) fn expired(&self) -> bool {
        self.alarm.state().expired
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.alarm.state().deadline = None;
    }
}

/// Watches until the connection or [`Alarm::end`] ends it; then every queue is lost.
pub(crate) fn watch(front_end: &FrontEnd, alarm: &Alarm, queues: &[Arc<VirtQueue>]) {
    loop {
        let left = {
            let mut state = alarm.state();
            if state.over {
                break;
            }
            let left = state.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                state.expired = true;
                log::warn!("the device did not answer a vhost-user message in time: hanging up");
                break;
            }
            left
        };
        match sleep(front_end, alarm, left) {
            Ok(Woken::HungUp) => break,
            Ok(Woken::Again) => {}
            Err(error) => {
                log::warn!("the connection cannot be watched: {error}");
                break;
            }
        }
    }
    front_end.hang_up();
    let mut state = alarm.state();
    state.ended = true;
    if !state.silent {
        drop(state);
        lose(queues);
    }
}

fn lose(queues: &[Arc<VirtQueue>]) {
    for queue in queues {
        queue.lose(Loss::Disconnected);
    }
}

enum Woken {
    HungUp,
    Again,
}

fn sleep(front_end: &FrontEnd, alarm: &Alarm, left: Option<Duration>) -> io::Result<Woken> {
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut fds = [
        PollFd::from_borrowed_fd(front_end.socket().as_fd(), PollFlags::RDHUP),
        PollFd::from_borrowed_fd(alarm.bell.as_fd(), PollFlags::IN),
    ];
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok(Woken::Again),
        Err(error) => return Err(error.into()),
    }
    let [socket, bell] = fds.map(|fd| fd.revents());
    if bell.contains(PollFlags::IN)
        && let Err(error) = rustix::io::read(&alarm.bell, &mut [0_u8; 8])
        && error != rustix::io::Errno::AGAIN
    {
        return Err(error.into());
    }
    Ok(if socket.intersects(gone) { Woken::HungUp } else { Woken::Again })
}

//! The thread that notices the end: of the connection, or of a message's time.
//!
//! The receive loop of the `vhost` crate takes a socket time-out for "try again", so only hanging up ends it.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;

use super::alarm::Alarm;
use super::alarm::lose;
use super::front_end::FrontEnd;
use super::virt_queue::VirtQueue;

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

//! The deadline of the message under way, and what the end of the connection loses.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use rustix::event::EventfdFlags;

use super::pause::lock::Held;
use super::pause::lock::Lock;
use super::request::Loss;
use super::virt_queue::VirtQueue;
use campanile_guest_driver::transport::error::TransportError;

/// The deadline of the message under way, and the bell that tells the watch of a change.
#[derive(Debug)]
pub(crate) struct Alarm {
    pub(super) bell: OwnedFd,
    state: Lock<AlarmState>,
}

/// What the holder of the lock sees.
#[derive(Debug, Default)]
pub(super) struct AlarmState {
    pub(super) deadline: Option<Instant>,
    pub(super) expired: bool,
    pub(super) over: bool,
    /// The watch has ended.
    pub(super) ended: bool,
    /// The queues are not told of the end.
    pub(super) silent: bool,
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

    pub(super) fn state(&self) -> Held<'_, AlarmState> {
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

/// The queues have no device any more.
pub(super) fn lose(queues: &[Arc<VirtQueue>]) {
    for queue in queues {
        queue.lose(Loss::Disconnected);
    }
}

//! What tells a vGPU's thread that its engine hangs.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use campanile_host_gpu::event::Event;
use campanile_protocol::engine::progress::Progress;

/// How an engine hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hang {
    /// It did not give its node to another vGPU.
    NotYielded,
    /// It got no step further.
    NoProgress,
}

/// What the supervisor saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// How it hangs.
    pub hang: Hang,
    /// What it ran, and how far it was: who is elsewhere by now does not hang any more (TDR-38).
    pub progress: Progress,
    /// When.
    pub at: Instant,
}

/// Raised by the supervisor, read by the vGPU's thread.
#[derive(Debug)]
pub struct Alarm {
    raised: Mutex<Option<Sighting>>,
    event: Event,
}

impl Alarm {
    /// Not raised.
    ///
    /// # Errors
    /// No eventfd could be had.
    pub fn new() -> io::Result<Self> {
        Ok(Self { raised: Mutex::new(None), event: Event::new()? })
    }

    /// Raises it: the engine hangs at `progress`.
    pub fn raise(&self, hang: Hang, progress: Progress) {
        let sighting = Sighting { hang, progress, at: Instant::now() };
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(sighting);
        self.event.signal();
    }

    /// Takes it.
    pub fn take(&self) -> Option<Sighting> {
        self.event.drain();
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

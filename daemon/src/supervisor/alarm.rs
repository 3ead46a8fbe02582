//! What tells a vGPU's thread that its engine did not yield.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_host_gpu::event::Event;

/// Raised by the supervisor, read by the vGPU's thread.
#[derive(Debug)]
pub struct Alarm {
    raised: AtomicBool,
    event: Event,
}

impl Alarm {
    /// Not raised.
    pub fn new() -> io::Result<Self> {
        Ok(Self { raised: AtomicBool::new(false), event: Event::new()? })
    }

    /// Raises it.
    pub fn raise(&self) {
        // PAIRS WITH `take`.
        self.raised.store(true, Ordering::Release);
        self.event.signal();
    }

    /// Takes it.
    pub fn take(&self) -> bool {
        self.event.drain();
        self.raised.swap(false, Ordering::Acquire)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

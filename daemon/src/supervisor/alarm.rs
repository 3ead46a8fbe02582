//! What tells a vGPU's thread that its engine did not yield.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering;

use campanile_host_gpu::event::Event;

/// How an engine hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hang {
    /// It did not give its node to another vGPU.
    NotYielded,
    /// It got no step further.
    NoProgress,
    /// It did not report a suspend (UMS-112).
    NotSuspended,
}

const NOT_RAISED: u8 = 0;
const NOT_YIELDED: u8 = 1;
const NO_PROGRESS: u8 = 2;
const NOT_SUSPENDED: u8 = 3;

/// Raised by the supervisor, read by the vGPU's thread.
#[derive(Debug)]
pub struct Alarm {
    raised: AtomicU8,
    event: Event,
}

impl Alarm {
    /// Not raised.
    pub fn new() -> io::Result<Self> {
        Ok(Self { raised: AtomicU8::new(NOT_RAISED), event: Event::new()? })
    }

    /// Raises it.
    pub fn raise(&self, hang: Hang) {
        let word = match hang {
            Hang::NotYielded => NOT_YIELDED,
            Hang::NoProgress => NO_PROGRESS,
            Hang::NotSuspended => NOT_SUSPENDED,
        };
        // PAIRS WITH `take`.
        self.raised.store(word, Ordering::Release);
        self.event.signal();
    }

    /// Takes it.
    pub fn take(&self) -> Option<Hang> {
        self.event.drain();
        match self.raised.swap(NOT_RAISED, Ordering::Acquire) {
            NOT_YIELDED => Some(Hang::NotYielded),
            NO_PROGRESS => Some(Hang::NoProgress),
            NOT_SUSPENDED => Some(Hang::NotSuspended),
            _ => None,
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

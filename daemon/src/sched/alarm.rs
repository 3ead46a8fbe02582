//! The alarm by which the supervisor tells a vGPU's thread that its engine hangs.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use campanile_host_gpu::event::Event;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::handshake::grant::Breach;

/// How an engine hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hang {
    /// It did not give its node to another vGPU.
    NotYielded,
    /// It made no progress.
    NoProgress,
    /// It did not report a suspend (UMS-112).
    NotSuspended,
    /// It does not hang, but stores what no engine may store into its grant word: its word does not count any more.
    BrokenProtocol(Breach),
}

/// A hang, as the supervisor saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// How it hangs.
    pub hang: Hang,
    /// What it ran, and how far it was: an engine that is elsewhere by now does not hang any more (TDR-38).
    pub progress: Progress,
    /// When the supervisor saw it.
    pub at: Instant,
}

impl Sighting {
    /// Whether the engine, which is at `progress` now, hangs no more: then there is no reset, and no device is in error (TDR-38).
    /// `keeps_node` is what the supervisor says of a node that the engine was asked to yield.
    pub fn is_over(&self, progress: Progress, keeps_node: bool) -> bool {
        match self.hang {
            Hang::NotYielded => !keeps_node,
            Hang::NoProgress => progress != self.progress,
            // Only its report would end that, and not its progress.
            Hang::NotSuspended => false,
            // Nothing that it stores from now on ends that.
            Hang::BrokenProtocol(_) => false,
        }
    }
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::handshake::grant::Given;

    use super::Hang;
    use super::Sighting;

    #[test]
    fn tdr_38_work_that_got_done_between_detection_and_reset_is_no_hang() {
        let progress = Progress { steps: 7, is_exempt: false, work: Work::HwQueue };
        let stands = Sighting { hang: Hang::NoProgress, progress, at: Instant::now() };
        assert!(!stands.is_over(progress, false));
        assert!(stands.is_over(progress.next(Work::Nothing, false), false));
        assert!(stands.is_over(progress.next(Work::HwQueue, false), true));
        let keeps = Sighting { hang: Hang::NotYielded, ..stands };
        assert!(!keeps.is_over(progress.next(Work::HwQueue, false), true), "it works, and does not yield");
        assert!(keeps.is_over(progress, false));
        let breach = Given::default().judge(2).unwrap_err();
        let breaks = Sighting { hang: Hang::BrokenProtocol(breach), ..stands };
        assert!(!breaks.is_over(progress.next(Work::Nothing, false), false), "it is not believed");
    }
}

//! How far the worker is, for the connection thread: it may not answer some requests before.
//!
//! Each wait is bounded, and the worker does not wait here, so that neither can hang the other.

use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use thiserror::Error;

/// Why a wait ended without what was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum GateError {
    #[error("the device did not come to rest in {} s", .0.as_secs())]
    Late(Duration),
    #[error("the device has ended")]
    Over,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The mail of this serial has been read.
    Read(u64),
    /// And the device is frozen, as that mail said.
    Frozen(u64),
}

#[derive(Debug, Default)]
struct Reached {
    read: u64,
    frozen: u64,
    is_over: bool,
}

/// The worker's progress, by serial of the mail.
#[derive(Debug, Default)]
pub(super) struct Gate {
    reached: Mutex<Reached>,
    changed: Condvar,
}

impl Gate {
    /// The worker has read the mail of this serial.
    pub(super) fn read(&self, serial: u64) {
        self.change(|reached| reached.read = serial);
    }

    /// The device is frozen, and so it was told by the mail of this serial, or one before.
    pub(super) fn frozen(&self, serial: u64) {
        self.change(|reached| reached.frozen = serial);
    }

    /// The worker has ended; no thread waits any more.
    pub(super) fn end(&self) {
        self.change(|reached| reached.is_over = true);
    }

    fn change(&self, change: impl FnOnce(&mut Reached)) {
        change(&mut self.reached.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits for the worker.
    pub(super) fn wait(&self, step: Step, bound: Duration) -> Result<(), GateError> {
        let deadline = Instant::now() + bound;
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let is_there = match step {
                Step::Read(serial) => reached.read >= serial,
                Step::Frozen(serial) => reached.frozen >= serial,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if is_there {
                return Ok(());
            }
            if reached.is_over {
                return Err(GateError::Over);
            }
            if left.is_zero() {
                return Err(GateError::Late(bound));
            }
            reached = self.changed.wait_timeout(reached, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Gate;
    use super::GateError;
    use super::Step;

    #[test]
    fn wait_ends_with_the_step_or_the_worker_or_the_bound() {
        let gate = Gate::default();
        let long = Duration::from_secs(60);
        assert_eq!(gate.wait(Step::Read(1), Duration::ZERO), Err(GateError::Late(Duration::ZERO)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.wait(Step::Frozen(3), long));
            gate.read(3);
            gate.frozen(2);
            gate.frozen(4);
            assert_eq!(waiting.join().unwrap(), Ok(()));
            let waiting = scope.spawn(|| gate.wait(Step::Frozen(5), long));
            gate.end();
            assert_eq!(waiting.join().unwrap(), Err(GateError::Over));
        });
        assert_eq!(gate.wait(Step::Read(3), Duration::ZERO), Ok(()), "what was reached stays so");
    }
}

//! What the sender of a message waits for: the fence of its submission, and, where the device was taken away before that, of
//! another on the same timeline.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use crate::gate::Gate;
use crate::transport::error::TransportError;
use crate::transport::submission::Completion;
use crate::transport::submission::Submission;

/// What is waited for.
#[derive(Clone)]
enum Current {
    /// This. It may keep the device's node open, so it is let go of as soon as it is done, or the device goes.
    Submission(Submission),
    /// Nothing more.
    Done,
    /// What the device brings that is to come.
    Away,
}

/// A submission that may be replaced.
pub(crate) struct Relay {
    gate: Arc<Gate>,
    current: Mutex<Current>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

impl Relay {
    pub(crate) fn new(gate: Arc<Gate>, submission: Submission) -> Arc<Self> {
        Arc::new(Self { gate, current: Mutex::new(Current::Submission(submission)) })
    }

    fn current(&self) -> Current {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, current: Current) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = current;
    }

    /// The device goes: nothing of it is kept.
    pub(crate) fn put_away(&self) {
        self.set(Current::Away);
    }

    /// From here on this is waited for. The device is away.
    pub(crate) fn replace(&self, submission: Submission) {
        self.set(Current::Submission(submission));
    }
}

impl Completion for Relay {
    fn wait(&self, timeout: Option<Duration>) -> Result<(), TransportError> {
        let begun = Instant::now();
        let left = || timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        let late = || TransportError::Timeout { what: "SUBMIT_3D", after: timeout.unwrap_or_default() };
        loop {
            let before = self.gate.here(left()).ok_or_else(late)?;
            let waited = match self.current() {
                Current::Done => return Ok(()),
                // It has not come back, or has just gone.
                Current::Away => Err(TransportError::Disconnected),
                Current::Submission(submission) => submission.wait(left()),
            };
            // The end of a fence says nothing where the device was taken away meanwhile.
            if self.gate.is_here() == Some(before) {
                if waited.is_ok() {
                    self.set(Current::Done);
                }
                return waited;
            }
        }
    }

    fn is_done(&self) -> bool {
        let before = self.gate.is_here();
        let is_done = match self.current() {
            Current::Done => return true,
            Current::Away => true,
            Current::Submission(submission) => {
                let is_done = submission.is_done();
                // One that has failed is done, too.
                let is_over = is_done && submission.wait(Some(Duration::ZERO)).is_ok();
                if is_over && before.is_some() && self.gate.is_here() == before {
                    self.set(Current::Done);
                }
                is_done
            }
        };
        is_done && before.is_some() && self.gate.is_here() == before
    }
}

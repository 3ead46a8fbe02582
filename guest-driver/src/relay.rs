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

/// A submission that may be replaced.
pub(crate) struct Relay {
    gate: Arc<Gate>,
    current: Mutex<Submission>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}

impl Relay {
    pub(crate) fn new(gate: Arc<Gate>, submission: Submission) -> Arc<Self> {
        Arc::new(Self { gate, current: Mutex::new(submission) })
    }

    fn current(&self) -> Submission {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From here on this is waited for. The device is away.
    pub(crate) fn replace(&self, submission: Submission) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = submission;
    }
}

impl Completion for Relay {
    fn wait(&self, timeout: Option<Duration>) -> Result<(), TransportError> {
        let begun = Instant::now();
        let left = || timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        let late = || TransportError::Timeout { what: "SUBMIT_3D", after: timeout.unwrap_or_default() };
        loop {
            let before = self.gate.here(left()).ok_or_else(late)?;
            let waited = self.current().wait(left());
            // The end of a fence says nothing where the device was taken away meanwhile.
            if self.gate.is_here() == Some(before) {
                return waited;
            }
        }
    }

    fn is_done(&self) -> bool {
        let before = self.gate.is_here();
        before.is_some() && self.current().is_done() && self.gate.is_here() == before
    }
}

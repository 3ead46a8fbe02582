//! A submission under way on the file.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::fs::body::Wait;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::call::Call;

use super::context::FuseFile;
use crate::transport::error::TransportError;
use crate::transport::submission::Completion;

/// How long the device keeps one wait.
const STEP: Duration = Duration::from_millis(200);

/// A submission, by its number; 0 is done.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) file: Arc<FuseFile>,
    pub(super) sequence: u64,
    pub(super) done: AtomicBool,
}

impl Waiting {
    fn ask(&self, timeout: Duration) -> Result<bool, TransportError> {
        if self.sequence == 0 || self.done.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let waited: Waited = self.file.ask("WAIT", Call::Wait, &Wait { sequence: self.sequence, timeout })?;
        self.done.fetch_or(waited.done != 0, Ordering::Relaxed);
        Ok(waited.done != 0)
    }
}

impl Completion for Waiting {
    fn wait(&self, timeout: Option<Duration>) -> Result<(), TransportError> {
        let begun = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            if self.ask(left.unwrap_or(STEP).min(STEP))? {
                return Ok(());
            }
            if left.is_some_and(|left| left.is_zero()) {
                let after = timeout.unwrap_or_default();
                return Err(TransportError::Timeout { what: "a submission", after });
            }
        }
    }

    fn is_done(&self) -> bool {
        self.ask(Duration::ZERO).unwrap_or(true)
    }
}

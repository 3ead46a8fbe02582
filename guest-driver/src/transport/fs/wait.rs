//! What a submission came to, asked of the daemon.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::fs::body::Wait;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::call::Call;

use super::channel::FsChannel;
use crate::transport::error::TransportError;
use crate::transport::submission::Completion;

/// How long the daemon may keep one WAIT. The guest's kernel cannot interrupt it: a signal, SIGKILL too, comes through
/// after that time at the latest.
const STEP: Duration = Duration::from_millis(250);

/// A submission under way.
#[derive(Debug)]
pub(super) struct Pending {
    channel: Arc<FsChannel>,
    sequence: u64,
    /// It was done when it was looked at.
    done: AtomicBool,
}

impl Pending {
    /// The submission of this number; 0 is one of which nothing more will be heard.
    pub(super) fn new(channel: Arc<FsChannel>, sequence: u64) -> Self {
        Self { channel, sequence, done: AtomicBool::new(sequence == 0) }
    }

    /// Whether it is done, asked once; the daemon answers within `timeout`.
    fn ask(&self, timeout: Duration) -> Result<bool, TransportError> {
        if self.done.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let body = Wait { sequence: self.sequence, timeout };
        let waited: Waited = self.channel.ask("WAIT", Call::Wait, &body, &[])?;
        if waited.done != 0 {
            self.done.store(true, Ordering::Relaxed);
        }
        Ok(waited.done != 0)
    }
}

impl Completion for Pending {
    fn wait(&self, timeout: Option<Duration>) -> Result<(), TransportError> {
        let begun = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            if self.ask(left.map_or(STEP, |left| left.min(STEP)))? {
                return Ok(());
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Err(TransportError::Timeout { what: "SUBMIT", after: timeout.unwrap_or_default() });
            }
        }
    }

    fn is_done(&self) -> bool {
        // A thread that then waits is told what went wrong.
        self.ask(Duration::ZERO).unwrap_or(true)
    }
}

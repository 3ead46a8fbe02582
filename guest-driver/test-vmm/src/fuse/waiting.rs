//! A submission under way on the file.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::fs::body::Wait;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::call::Call;

use super::file::FuseFile;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::transport::submission::Completion;

/// How long the device keeps one wait.
const STEP: Duration = Duration::from_millis(200);

/// How long to leave the device alone that has no room for another wait.
pub(super) const MOMENT: Duration = Duration::from_millis(1);

/// Whether the device has no room for another wait.
pub(super) fn is_full(error: &TransportError) -> bool {
    let TransportError::System { source, .. } = error else { return false };
    source.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) == Some(AGAIN)
}

/// EAGAIN.
const AGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();

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
        let wait = Wait { sequence: self.sequence, timeout };
        let waited = match self.file.ask::<Waited, _>("WAIT", Call::Wait, &wait) {
            Err(error) if is_full(&error) => {
                std::thread::sleep(MOMENT.min(Duration::from_nanos(timeout)));
                return Ok(false);
            }
            waited => waited?,
        };
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

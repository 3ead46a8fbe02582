//! Points in a queue's progress.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::control::message;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use crate::device::Shared;
use crate::error::DriverError;

/// How long a wait polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// A value that a queue's progress fence will reach.
#[derive(Debug, Clone)]
pub struct FencePoint {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Handle,
    pub(crate) fence_offset: u64,
    pub(crate) value: u64,
}

impl FencePoint {
    /// The value.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Whether it is reached.
    pub fn is_reached(&self) -> bool {
        let word = self.shared.control.page().word(self.fence_offset);
        // PAIRS WITH the engine's release of the fence.
        word.is_some_and(|word| word.load(std::sync::atomic::Ordering::Acquire) >= self.value)
    }

    /// Polls until it is reached: the shortest wait, and a busy one.
    pub fn spin(&self) -> Result<(), DriverError> {
        self.shared.poll(self.fence_offset, self.value, None).map(|_| ())
    }

    /// Waits until it is reached: polls for a moment, then sleeps until the daemon says so.
    ///
    /// # Errors
    /// `DeviceLost` when the device is in error, `Timeout` when the time is over.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), DriverError> {
        let begun = Instant::now();
        if self.shared.poll(
            self.fence_offset,
            self.value,
            Some(timeout.map_or(SPIN, |limit| limit.min(SPIN))),
        )? {
            return Ok(());
        }
        let wait = WaitFence { queue: self.queue, value: self.value };
        let call = self.shared.control.send("WAIT_FENCE", message::WAIT_FENCE, &[wait.as_bytes()])?;
        let left = timeout.map(|limit| limit.saturating_sub(begun.elapsed()));
        match call.finish(left) {
            Ok(_) => Ok(()),
            Err(DriverError::Refused { .. }) => {
                self.shared.check().and(Err(DriverError::BadAnswer("WAIT_FENCE")))
            }
            Err(error) => Err(error),
        }
    }
}

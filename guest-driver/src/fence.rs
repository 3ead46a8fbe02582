//! Points in a queue's progress.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::control::message;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use crate::control::Call;
use crate::device::Shared;
use crate::error::DriverError;

/// How long a wait polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long a wait sleeps between two looks where the daemon cannot be asked to wake it.
const NAP: Duration = Duration::from_millis(1);

/// A value that a queue's progress fence will reach.
#[derive(Debug)]
pub struct FencePoint {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Handle,
    pub(crate) fence_offset: u64,
    pub(crate) value: u64,
    /// The daemon's answer is under way: one message a point, however often it is waited for.
    waiting: Mutex<Option<Arc<Call>>>,
}

impl Clone for FencePoint {
    fn clone(&self) -> Self {
        let waiting = Mutex::new(self.waiting().clone());
        Self { shared: Arc::clone(&self.shared), waiting, ..*self }
    }
}

impl FencePoint {
    pub(crate) fn new(shared: Arc<Shared>, queue: Handle, fence_offset: u64, value: u64) -> Self {
        Self { shared, queue, fence_offset, value, waiting: Mutex::new(None) }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Arc<Call>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
        let left = || timeout.map(|limit| limit.saturating_sub(begun.elapsed()));
        let Some(call) = self.call()? else { return self.look_again_and_again(left) };
        call.wait(left())?;
        *self.waiting() = None;
        match call.answer() {
            Ok(_) => Ok(()),
            Err(DriverError::Refused { .. }) => {
                self.shared.check().and(Err(DriverError::BadAnswer("WAIT_FENCE")))
            }
            Err(error) => Err(error),
        }
    }

    /// The message to the daemon that is answered when the point is reached; none where too many are under way.
    fn call(&self) -> Result<Option<Arc<Call>>, DriverError> {
        let mut waiting = self.waiting();
        if waiting.is_none() {
            let wait = WaitFence { queue: self.queue, value: self.value };
            let parts = [wait.as_bytes()];
            *waiting =
                self.shared.control.send_wait("WAIT_FENCE", message::WAIT_FENCE, &parts)?.map(Arc::new);
        }
        Ok(waiting.clone())
    }

    /// Waits without the daemon.
    fn look_again_and_again(&self, left: impl Fn() -> Option<Duration>) -> Result<(), DriverError> {
        while !self.shared.poll(self.fence_offset, self.value, Some(Duration::ZERO))? {
            let left = left();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(DriverError::Timeout);
            }
            std::thread::sleep(left.map_or(NAP, |left| left.min(NAP)));
        }
        Ok(())
    }
}

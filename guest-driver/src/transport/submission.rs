//! What a submitted row of control frames came to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use campanile_protocol::control::frame::MAX_CONTROL_BYTES;

use super::error::TransportError;

/// Timelines of a context (virtio 1.3, 5.7.6.7: `ring_idx` is 0 to 63).
pub const RINGS: u8 = 64;

/// What every transport sees to before it submits. Returns the bytes of the frames, of which there may be none where a fence
/// is all that is wanted.
///
/// # Errors
/// `Size` where there are no frames and no fence, or too many bytes of them, `RingIndex` where no timeline has that number.
pub fn check(frames: &[u8], fence: Option<u8>) -> Result<u32, TransportError> {
    let least = u32::from(fence.is_none());
    let size = u32::try_from(frames.len()).ok().filter(|size| (least..=MAX_CONTROL_BYTES).contains(size));
    let (bytes, limit) = (frames.len() as u64, u64::from(MAX_CONTROL_BYTES));
    let size = size.ok_or(TransportError::Size { what: "control frames", bytes, limit })?;
    match fence.filter(|ring_index| *ring_index >= RINGS) {
        Some(ring_index) => Err(TransportError::RingIndex { ring_index, limit: RINGS - 1 }),
        None => Ok(size),
    }
}

/// What a transport knows of one command under way.
pub trait Completion: Send + Sync {
    /// Blocks until the command is answered, the time is over, or the device is gone.
    fn wait(&self, timeout: Option<Duration>) -> Result<(), TransportError>;
    /// Whether [`Self::wait`] would return without blocking.
    fn is_done(&self) -> bool;
}

/// One SUBMIT_3D under way. Dropping it forgets the outcome; the command itself goes on.
#[derive(Clone)]
pub struct Submission {
    completion: Arc<dyn Completion>,
}

impl Submission {
    /// For transports: a command under way.
    pub fn new(completion: Arc<dyn Completion>) -> Self {
        Self { completion }
    }

    /// Blocks, without burning CPU, until the response or fence is there. Any number of threads may wait, any
    /// number of times; each gets the same outcome. After a timeout the command is still under way.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), TransportError> {
        self.completion.wait(timeout)
    }

    /// Whether the outcome is known, so that [`Self::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        self.completion.is_done()
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission").field("done", &self.is_done()).finish()
    }
}

//! What a state does not say that was taken while engines ran: where they say it.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::GuestProcess;

/// A user-mode queue that an engine has: the guest process, the place of its doorbell among those of the process, the place of the engine, and
/// the number of the queue in the engine's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedWatch(pub GuestProcess, pub u32, pub u32, pub u16);

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedAtWork {
    /// When it was taken, milliseconds of the host since it was started (CLOCK_BOOTTIME): ages in the state are those of then.
    pub taken: u64,
    /// Places of the engines that have a block.
    pub engines: Vec<u32>,
    /// The queues that they have.
    pub queues: Vec<SavedWatch>,
    /// Guest processes with a kernel-mode buffer in an engine: whether it was run is known to a session alone, which is there no more.
    pub interrupted: Vec<GuestProcess>,
}

//! What a state does not say that was taken while engines ran: where they say it.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::GuestProcess;

/// A user-mode queue that an engine has: the guest process, the place of its doorbell among those of the process, the place of the engine, and
/// the number of the queue in the engine's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedWatch(pub GuestProcess, pub u32, pub u32, pub u16);

/// A kernel-mode buffer that an engine has: the place of the engine, the fence id, the buffer's place in the order of the engine, and the guest process
/// and the place of the context among those of the process, where they have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFlight(pub u32, pub u64, pub u64, pub Option<(GuestProcess, u32)>);

/// All of it. What a reader does not know, it must not leave out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SavedAtWork {
    /// When it was taken, milliseconds of the host since it was started (CLOCK_BOOTTIME): ages in the state are those of then.
    pub taken: u64,
    /// Places of the engines that have a block.
    pub engines: Vec<u32>,
    /// The queues that they have.
    pub queues: Vec<SavedWatch>,
    /// The kernel-mode buffers that they have, of each the oldest first. In the state these are the first ones of their contexts.
    pub flights: Vec<SavedFlight>,
}

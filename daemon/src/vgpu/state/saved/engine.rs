//! Engines: what is known of them by place. Their processes are not kept; each starts anew (LM-56).

use serde::Deserialize;
use serde::Serialize;

use super::bytes::Bytes;
use super::row::SavedOrigin;

/// One engine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedEngine {
    /// Last submitted fence id (LM-54). All were completed or handed back.
    pub submitted: u64,
    /// Last completed fence id: not above the last submitted, and below it where the last ones were handed back.
    pub completed: u64,
    /// Kernel-mode buffers taken, ever.
    pub taken: u64,
    /// Ages of the resets that still count, milliseconds.
    pub resets: Vec<u64>,
    /// Connects in line, in the order in which they would be served: the process, and the doorbell.
    pub connects: Vec<(SavedOrigin, u64)>,
    /// Messages that wait for it to start.
    pub waiting: Vec<SavedMessage>,
    /// Kernels that it compiles, in order: the request that waits, and the handle.
    pub compiling: Vec<(SavedOrigin, u64)>,
}

/// A message that is handled anew when the engine is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedMessage(pub SavedOrigin, pub u32, pub Bytes);

//! What is told of one move.

use serde::Serialize;

/// One move, for `--json`. Times in milliseconds.
#[derive(Debug, Serialize)]
pub struct Move {
    /// The socket of the daemon that it went to.
    pub to: String,
    /// Why the guest stayed, where it did.
    pub failed: Option<String>,
    /// Frames that were rendered before it.
    pub frames_before: u64,
    /// While the virtual CPUs stood still.
    pub pause_ms: f64,
    /// Of it: until the source's rings had stopped.
    pub stop_ms: f64,
    /// Of it: the state's way out of the source.
    pub save_ms: f64,
    /// Of it: the state's way into the target.
    pub load_ms: f64,
    /// Bytes of the device's state.
    pub state_bytes: usize,
    /// Passes over guest RAM.
    pub passes: u32,
    /// Frames that were rendered meanwhile.
    pub live_frames: u64,
}

//! What the operator decided about migration.

use std::path::PathBuf;
use std::time::Duration;

use super::channel::address::Peer;
use super::channel::tls::Identity;
use super::passes::plan::Goal;

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For the peer to be reached, and for every single message to come or be taken.
    pub message: Duration,
    /// For the other side to say whether the guest may run, or runs: nothing of that vGPU works meanwhile.
    pub answer: Duration,
    /// For a complete bundle to be loaded.
    pub claim: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            message: Duration::from_secs(10),
            answer: Duration::from_secs(2),
            claim: Duration::from_secs(600),
        }
    }
}

/// What a source does.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Where vGPUs go when their front-end begins to migrate; none, and then by a side file.
    pub peer: Option<Peer>,
    /// Lines of one migration; 0 is 1.
    pub streams: u8,
    /// Level of zstd, if pages are packed.
    pub zstd: Option<i32>,
    /// Bytes per second that a brownout may take, if that is limited. What is sent while the VM is paused is not.
    pub bandwidth: Option<u64>,
    /// What it aims at.
    pub goal: Goal,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// The identity of this daemon, for TLS.
    pub identity: Option<Identity>,
    /// Where side files go.
    pub side_files: Option<PathBuf>,
    /// Whether side files stay when their guest runs again, here or elsewhere: for VMMs that take snapshots.
    pub keep_side_files: bool,
}

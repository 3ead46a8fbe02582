//! Why an engine does not start.

use super::channel::ChannelError;
use super::sandbox::error::SandboxError;
use crate::memory::mapping::MapError;

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The daemon is gone or spoke nonsense.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The first message came without what it needs.
    #[error("the start message came with {0} descriptors instead of {1}")]
    Descriptors(usize, usize),
    /// Memory could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A system call failed.
    #[error("engine start: {0}")]
    System(#[from] std::io::Error),
    /// The node cannot work on this machine.
    #[error("{0}")]
    Node(String),
    /// Privileges could not be dropped.
    #[error("engine sandbox: {0}")]
    Sandbox(#[from] SandboxError),
    /// What it would write could not be tracked.
    #[error("tracking writes: {0}; --dirty-tracking bound-ranges works everywhere")]
    Tracking(std::io::Error),
    /// What it is to work on is none of what it has opened its driver for.
    #[error("it has opened its driver for something else")]
    OpenedOther,
    /// It is not to begin: the daemon is gone.
    #[error("the engine is not needed")]
    NotNeeded,
}

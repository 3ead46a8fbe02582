//! Where a session stands between running and saved.

use super::state_transfer::Transfer;

/// What a LOAD in this epoch has come to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// There was none.
    #[default]
    None,
    /// Not asked after yet.
    Unchecked,
    /// Told the front-end that it failed.
    Failed,
    /// Told the front-end that the device is there.
    Done,
    /// The same, but the guest finds a new one.
    Anew,
}

/// Where the session stands between running and saved.
#[derive(Debug, Default)]
pub(super) struct Motion {
    /// The device is frozen, and the worker has said so.
    pub(super) is_frozen: bool,
    /// It is as it was in a process before this one, and does not go on before what a process after this one needs is written.
    pub(super) is_taken_up: bool,
    /// A state was asked for since the last ring ran.
    pub(super) is_saved: bool,
    pub(super) load: Load,
    pub(super) transfer: Option<Transfer>,
}

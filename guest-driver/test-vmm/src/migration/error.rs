//! Why a VM did not move, and where it is.

use std::fmt;

use campanile_guest_driver::transport::error::TransportError;

/// Steps of a migration, in QEMU's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The target's connection, up to its state.
    Connect,
    /// The log is switched on.
    Log,
    /// The passes.
    Passes,
    /// The virtual CPUs stop.
    Pause,
    /// The source's rings stop.
    Stop,
    /// The source's state is read.
    Save,
    /// The target takes the state.
    Load,
    /// The target's rings start.
    Start,
    /// The target's memory is shown in the window.
    Window,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Connect,
        Self::Log,
        Self::Passes,
        Self::Pause,
        Self::Stop,
        Self::Save,
        Self::Load,
        Self::Start,
        Self::Window,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connecting to the target",
            Self::Log => "switching the log on",
            Self::Passes => "copying while the guest runs",
            Self::Pause => "stopping the guest",
            Self::Stop => "stopping the source's rings",
            Self::Save => "saving the source's state",
            Self::Load => "loading the state on the target",
            Self::Start => "starting the target's rings",
            Self::Window => "showing the target's memory",
        })
    }
}

/// Where the guest is after a migration that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// On the source, where it goes on.
    Source,
    /// Its device is gone.
    Nowhere,
}

/// A migration that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}; the guest {}", if *.guest == Whereabouts::Source { "goes on on the source" } else { "has lost its device" })]
pub struct MigrationError {
    /// What was being done.
    pub step: Step,
    /// Where the guest is.
    pub guest: Whereabouts,
    /// What went wrong.
    #[source]
    pub source: TransportError,
}

/// A step that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) step: Step,
    pub(super) source: TransportError,
}

/// Says at which step something failed.
pub(super) trait At<T> {
    fn at(self, step: Step) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T, TransportError> {
    fn at(self, step: Step) -> Result<T, Failure> {
        self.map_err(|source| Failure { step, source })
    }
}

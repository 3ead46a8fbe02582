//! Whether a vGPU runs, or stands still so that its state can be moved: what requests and events ask first. [`super::quiesce`]
//! changes it.

use std::time::Instant;

use crate::vgpu::control::orders::OrderError;
use crate::vgpu::engines::suspending::Suspending;

/// Whether a vGPU runs.
#[derive(Debug)]
pub enum Freeze {
    /// It does.
    Running,
    /// On its way to a standstill: these suspends are not reported yet, and this long they may take.
    Freezing(Vec<Suspending>, Instant),
    /// It stands still.
    Frozen {
        /// Whether it came from elsewhere, so that what guests read of it is to be written anew.
        is_restored: bool,
    },
}

impl Freeze {
    /// Whether it stands still, or is on its way there: requests are refused.
    pub const fn is_stopping(&self) -> bool {
        !matches!(self, Self::Running)
    }

    /// Whether nothing runs, and nothing is written any more.
    pub const fn is_frozen(&self) -> bool {
        matches!(self, Self::Frozen { .. })
    }

    /// When engines must have stopped.
    pub const fn limit(&self) -> Option<Instant> {
        match self {
            Self::Freezing(_, limit) => Some(*limit),
            Self::Running | Self::Frozen { .. } => None,
        }
    }
}

/// The answer to an operator that wants something else meanwhile.
pub(in crate::vgpu) fn standing_still() -> OrderError {
    OrderError::Refused("the vGPU stands still for a migration".to_owned())
}

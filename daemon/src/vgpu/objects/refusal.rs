//! What a front is told of a command that was refused.

use super::budget::OverBudget;

/// Why the front must answer a command with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No memory, or a documented bound.
    OutOfMemory,
    /// No such resource, or one that exists already.
    Resource,
    /// No such context, or one that exists already.
    Context,
    /// Anything else that the guest got wrong.
    Parameter,
    /// It cannot be done here.
    Unspecified,
}

impl From<OverBudget> for Refusal {
    fn from(_: OverBudget) -> Self {
        Self::OutOfMemory
    }
}

//! What is wrong with a state, in words, and what several checks share.

use std::time::Duration;

/// What is wrong with a piece of state.
pub(super) type Invalid = String;

/// Fails with `what`, unless it holds.
pub(super) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Invalid> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Ages that cannot be are those of events that are too old to count.
pub(super) fn ages(milliseconds: &[u64]) -> Vec<Duration> {
    /// More than any policy counts.
    const KEPT: usize = 64;
    let newest = milliseconds.len().saturating_sub(KEPT);
    milliseconds[newest..].iter().map(|age| Duration::from_millis(*age)).collect()
}

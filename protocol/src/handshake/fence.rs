//! A native fence that rises against a waiter that arrives (UMS-131 to UMS-137).
//!
//! ```text
//!   engine                             daemon
//!   CurrentValue = n                   MonitoredValue = m - 1
//!   ── full fence ──                   ── full fence ──
//!   n > MonitoredValue? interrupt      CurrentValue ≥ m? release at once
//! ```

use core::sync::atomic::Ordering;

use super::word::Word;

/// MonitoredValue when nobody waits (UMS-133).
pub const NOBODY: u64 = u64::MAX;

/// Engine: stores a new CurrentValue; true when a waiter must be interrupted (UMS-134).
#[must_use]
pub fn signal<W: Word>(current: &W, monitored: &W, value: u64) -> bool {
    current.store(value, Ordering::Release);
    // PAIRS WITH `monitor`.
    W::full_fence();
    value > monitored.load(Ordering::Relaxed)
}

/// Daemon: sets MonitoredValue for the smallest value that anyone waits for, and returns the CurrentValue read
/// after it (UMS-137). `None`: nobody waits.
pub fn monitor<W: Word>(current: &W, monitored: &W, smallest: Option<u64>) -> u64 {
    monitored.store(smallest.map_or(NOBODY, |value| value.saturating_sub(1)), Ordering::Relaxed);
    // PAIRS WITH `signal`.
    W::full_fence();
    current.load(Ordering::Acquire)
}

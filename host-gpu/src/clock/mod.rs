//! The time by which decisions are made: that of the machine, or one that a test moves.
//!
//! Virtual time belongs to a thread: a session has one thread, and tests run beside each other.

use std::time::Duration;
use std::time::Instant;

#[cfg(any(test, feature = "fake"))]
pub mod virtual_time;

#[cfg(any(test, feature = "fake"))]
fn virtual_now() -> Option<Instant> {
    virtual_time::now()
}

#[cfg(not(any(test, feature = "fake")))]
const fn virtual_now() -> Option<Instant> {
    None
}

/// Now.
pub fn now() -> Instant {
    virtual_now().unwrap_or_else(Instant::now)
}

/// The time since then.
pub fn since(moment: Instant) -> Duration {
    now().saturating_duration_since(moment)
}

/// Whether time stands still until it is moved, so that no timer is to be armed.
pub fn is_virtual() -> bool {
    virtual_now().is_some()
}

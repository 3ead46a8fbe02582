//! The time by which decisions are made: that of the machine, or one that a test moves.
//!
//! Virtual time belongs to a thread: a session has one thread, and tests run beside each other.

use std::time::Duration;
use std::time::Instant;

#[cfg(any(test, feature = "fake"))]
pub mod virtual_time;

/// Now.
pub fn now() -> Instant {
    #[cfg(any(test, feature = "fake"))]
    if let Some(now) = virtual_time::now() {
        return now;
    }
    Instant::now()
}

/// The time since then.
pub fn since(moment: Instant) -> Duration {
    now().saturating_duration_since(moment)
}

/// Whether time stands still until it is moved, so that no timer is to be armed.
pub fn is_virtual() -> bool {
    #[cfg(any(test, feature = "fake"))]
    return virtual_time::now().is_some();
    #[cfg(not(any(test, feature = "fake")))]
    false
}

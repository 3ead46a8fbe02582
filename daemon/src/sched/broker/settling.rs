//! The time after the broker's start in which it gives no turns, since engines that have nodes may not be known yet.

use std::time::Duration;
use std::time::Instant;

/// How long no turns are given after the start: daemons of a broker before connect again within that.
pub(super) const SETTLES: Duration = Duration::from_millis(250);
/// The same, where a daemon says that there were others, which are not back.
pub(super) const SETTLES_AT_MOST: Duration = Duration::from_secs(2);

/// That time.
#[derive(Debug)]
pub(super) struct Settling {
    begun: Instant,
    /// Daemons that the broker before had, as far as those that are back say.
    expected: usize,
}

impl Settling {
    pub(super) const fn new(begun: Instant) -> Self {
        Self { begun, expected: 0 }
    }

    /// A daemon says that there were so many.
    pub(super) fn expect(&mut self, peers: usize) {
        self.expected = self.expected.max(peers);
    }

    /// When to look again, after `now`.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let least = self.begun + SETTLES;
        if now < least { least } else { self.begun + SETTLES_AT_MOST }
    }

    /// Whether turns are given from `now` on, with so many daemons, of which each `is_whole`.
    pub(super) fn is_over(&self, now: Instant, daemons: usize, is_whole: bool) -> bool {
        let (waited, expected) = (now.saturating_duration_since(self.begun), self.expected);
        let are_back = is_whole && daemons >= expected;
        if waited >= SETTLES_AT_MOST && !are_back {
            log::warn!("{daemons} of {expected} daemons are back: turns are given without the others");
        }
        waited >= SETTLES_AT_MOST || waited >= SETTLES && are_back
    }
}

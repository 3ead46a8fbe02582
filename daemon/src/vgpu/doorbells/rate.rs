//! How often a guest may connect: each connect changes what its engines watch, and they read it all again then.

use std::time::Duration;
use std::time::Instant;

/// Connects a guest may make at once: all the doorbells of a node, and then some.
pub const BURST: u32 = 2048;
/// Time for which one more is earned: 25,000 a second.
pub const EARNED_IN: Duration = Duration::from_micros(40);

/// A bucket of connects.
#[derive(Debug)]
pub struct Rate {
    /// When the bucket was, or will be, empty: it holds what was earned since.
    empty: Option<Instant>,
}

impl Rate {
    /// A full one.
    pub const fn new() -> Self {
        Self { empty: None }
    }

    /// When the next connect may be made: not later than `now` where it may be now.
    pub fn next(&self, now: Instant) -> Instant {
        self.empty.map_or(now, |empty| empty + EARNED_IN)
    }

    /// One was made.
    pub fn take(&mut self, now: Instant) {
        let full = now.checked_sub(EARNED_IN * BURST);
        // A clock that began less than a bucket ago has no time at which it was full: nothing is missing yet.
        let empty = match (self.empty, full) {
            (Some(empty), Some(full)) => Some(empty.max(full)),
            (empty, full) => empty.or(full),
        };
        self.empty = empty.map(|empty| empty + EARNED_IN);
    }
}

impl Default for Rate {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use super::BURST;
    use super::EARNED_IN;
    use super::Rate;

    #[test]
    fn a_guest_connects_at_its_rate_after_a_burst() {
        let begun = Instant::now() + Duration::from_secs(10);
        let mut rate = Rate::new();
        let mut now = begun;
        for _ in 0..BURST {
            assert!(rate.next(now) <= now);
            rate.take(now);
        }
        for _ in 0..1000 {
            let next = rate.next(now);
            assert!(next > now, "the bucket is empty");
            now = next;
            rate.take(now);
        }
        assert_eq!(now - begun, EARNED_IN * 1000);
        // Rest fills it, and no further than to the brim.
        now += EARNED_IN * BURST * 10;
        for _ in 0..BURST {
            assert!(rate.next(now) <= now);
            rate.take(now);
        }
        assert!(rate.next(now) > now);
    }
}

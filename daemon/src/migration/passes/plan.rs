//! Whether one more pass is worth it. Pure.

use std::time::Duration;

/// Bytes that can be sent before it is known how fast the line is, per second: a slow network.
const UNKNOWN_RATE: u64 = 100 << 20;

/// What a migration aims at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal {
    /// How long the last pass may take, with the VM paused.
    pub pause: Duration,
    /// Passes that are tried to get there.
    pub passes: u32,
}

impl Default for Goal {
    fn default() -> Self {
        Self { pause: Duration::from_millis(100), passes: 10 }
    }
}

/// What to do after a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// One more.
    Pass,
    /// What is left fits the pause: wait for it.
    Converged,
    /// It never will: wait for the pause all the same (DIRTY-59).
    GaveUp,
}

/// Bytes per second that were sent, as far as that is known.
pub fn rate(bytes: u64, time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    // A few pages say nothing about the line.
    if bytes < 64 << 10 || micros == 0 {
        return UNKNOWN_RATE;
    }
    (bytes.saturating_mul(1_000_000) / micros).max(1)
}

/// How long this many bytes take.
pub fn estimate(bytes: u64, rate: u64) -> Duration {
    Duration::from_micros(bytes.saturating_mul(1_000_000) / rate.max(1))
}

impl Goal {
    /// After `done` passes, with `left` bytes dirty again and a line of `rate` bytes per second.
    pub fn next(&self, done: u32, left: u64, rate: u64) -> Next {
        if estimate(left, rate) <= self.pause {
            Next::Converged
        } else if done < self.passes {
            Next::Pass
        } else {
            Next::GaveUp
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Goal;
    use super::Next;
    use super::estimate;
    use super::rate;

    #[test]
    fn passes_go_on_until_what_is_left_fits_the_pause_or_the_limit_is_reached() {
        let goal = Goal { pause: Duration::from_millis(100), passes: 3 };
        let line = 100 << 20;
        assert_eq!(goal.next(1, 50 << 20, line), Next::Pass);
        assert_eq!(goal.next(2, 11 << 20, line), Next::Pass);
        assert_eq!(goal.next(2, 10 << 20, line), Next::Converged);
        assert_eq!(goal.next(3, 50 << 20, line), Next::GaveUp);
        assert_eq!(goal.next(0, 0, 1), Next::Converged);
    }

    #[test]
    fn without_a_goal_the_pause_is_a_tenth_of_a_second_and_ten_passes_are_tried() {
        assert_eq!(Goal::default(), Goal { pause: Duration::from_millis(100), passes: 10 });
    }

    #[test]
    fn a_rate_is_of_what_was_sent_and_never_nothing() {
        assert_eq!(rate(1 << 20, Duration::from_secs(1)), 1 << 20);
        assert_eq!(rate(1 << 20, Duration::from_secs(1 << 40)), 1);
        assert!(rate(0, Duration::ZERO) > 0);
        // Of less than 16 pages, or in no time at all, it is that of a slow network.
        let second = Duration::from_secs(1);
        assert_eq!(rate(64 << 10, second), 64 << 10);
        assert_eq!([rate((64 << 10) - 1, second), rate(1 << 30, Duration::ZERO)], [100 << 20; 2]);
        assert_eq!(estimate(3 << 20, 1 << 20), Duration::from_secs(3));
        assert_eq!(estimate(u64::MAX, 0).as_micros(), u128::from(u64::MAX));
    }
}

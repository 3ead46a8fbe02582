//! Shorter slices for a second after urgent work preempted other work: more of it is likely to come, and it waits for the end of
//! a slice. Shorter slices cost more time in all.

use std::time::Duration;
use std::time::Instant;

/// How long a boost lasts.
const LASTS: Duration = Duration::from_secs(1);
/// How many shorter slices take as long as a whole one.
const PARTS: u32 = 2;

/// When urgent work last preempted other work.
#[derive(Debug, Clone, Copy, Default)]
pub struct LatencyBoost(Option<Instant>);

impl LatencyBoost {
    /// Urgent work preempts other work `now`.
    pub fn begin(&mut self, now: Instant) {
        self.0 = Some(now);
    }

    /// Whether slices are shorter `now`.
    pub fn is_active(self, now: Instant) -> bool {
        self.0.is_some_and(|noted| now.saturating_duration_since(noted) < LASTS)
    }

    /// How long a slice that begins `now` is to take, if otherwise `whole`.
    pub fn slice(self, whole: Duration, now: Instant) -> Duration {
        if self.is_active(now) { whole / PARTS } else { whole }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use super::LASTS;
    use super::LatencyBoost;

    #[test]
    fn slices_are_shorter_for_a_while_after_urgent_work() {
        let (mut boost, now, whole) = (LatencyBoost::default(), Instant::now(), Duration::from_millis(2));
        assert_eq!(boost.slice(whole, now), whole);
        boost.begin(now);
        assert_eq!(boost.slice(whole, now + LASTS - Duration::from_nanos(1)), whole / 2);
        assert_eq!(boost.slice(whole, now + LASTS), whole);
        assert!(boost.slice(Duration::ZERO, now).is_zero(), "not cut at all");
    }
}

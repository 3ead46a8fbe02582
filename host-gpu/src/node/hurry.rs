//! Whether urgent work has come lately. Then more of it is likely to come, and slices are shorter: they cost more, and it
//! waits for less.

use std::time::Duration;
use std::time::Instant;

/// For how long slices are shorter after urgent work.
const LASTS: Duration = Duration::from_secs(1);
/// How many of the shorter ones take as long as one.
const PARTS: u32 = 2;

/// When urgent work last took its turn from other work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hurry(Option<Instant>);

impl Hurry {
    /// It does `now`.
    pub fn note(&mut self, now: Instant) {
        self.0 = Some(now);
    }

    /// Whether it has, of late.
    pub fn is_there(self, now: Instant) -> bool {
        self.0.is_some_and(|noted| now.saturating_duration_since(noted) < LASTS)
    }

    /// How long a slice that begins `now` is to take, if otherwise `whole`.
    pub fn slice(self, whole: Duration, now: Instant) -> Duration {
        if self.is_there(now) { whole / PARTS } else { whole }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use super::Hurry;
    use super::LASTS;

    #[test]
    fn slices_are_shorter_for_a_while_after_urgent_work() {
        let (mut hurry, now, whole) = (Hurry::default(), Instant::now(), Duration::from_millis(2));
        assert_eq!(hurry.slice(whole, now), whole);
        hurry.note(now);
        assert_eq!(hurry.slice(whole, now + LASTS - Duration::from_nanos(1)), whole / 2);
        assert_eq!(hurry.slice(whole, now + LASTS), whole);
        assert!(hurry.slice(Duration::ZERO, now).is_zero(), "not cut at all");
    }
}

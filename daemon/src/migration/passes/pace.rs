//! A bandwidth limit. Pure: the time is told.

use std::time::Duration;
use std::time::Instant;

/// How much may be sent at once after a silence.
const BURST: Duration = Duration::from_millis(50);

/// A bucket that fills with what may be sent, and may owe the last record.
#[derive(Debug, Clone)]
pub struct Pace {
    rate: u64,
    /// When it is full again. Earlier than now less a burst: it is full.
    free_at: Instant,
}

impl Pace {
    /// At most `rate` bytes per second.
    pub fn new(rate: u64, now: Instant) -> Self {
        Self { rate: rate.max(1), free_at: now }
    }

    /// How long to wait before `bytes` are sent, which count from here on.
    pub fn take(&mut self, bytes: usize, now: Instant) -> Duration {
        let start = self.free_at.max(now.checked_sub(BURST).unwrap_or(now));
        self.free_at = start + super::plan::estimate(bytes as u64, self.rate);
        start.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use super::Pace;

    #[test]
    fn over_time_no_more_is_sent_than_the_rate_and_one_burst() {
        let begun = Instant::now();
        let mut pace = Pace::new(1_000_000, begun);
        let mut now = begun;
        for _ in 0..1000 {
            now += pace.take(10_000, now);
        }
        let took = now - begun;
        assert!((Duration::from_millis(9900)..=Duration::from_secs(10)).contains(&took), "{took:?}");
        // After a silence there is a burst, and no more.
        now += Duration::from_secs(60);
        let waits: Vec<Duration> = (0..8).map(|_| pace.take(10_000, now)).collect();
        assert_eq!(waits.iter().filter(|wait| wait.is_zero()).count(), 6);
    }
}

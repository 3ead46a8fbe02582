//! How often something happened of late.

use std::collections::VecDeque;
use std::time::Duration;
use std::time::Instant;

/// The times of late events; bounded, whatever happens.
#[derive(Debug, Default, Clone)]
pub struct Recent {
    times: VecDeque<Instant>,
}

impl Recent {
    /// Notes one more at `now`. True while no more than `limit` of them lie within `period`.
    pub fn note(&mut self, now: Instant, limit: usize, period: Duration) -> bool {
        self.times.retain(|time| now.saturating_duration_since(*time) < period);
        self.times.push_back(now);
        // More than one past the limit says nothing new.
        while self.times.len() > limit + 1 {
            self.times.pop_front();
        }
        self.times.len() <= limit
    }

    /// How long ago each was, at `now`; oldest first.
    pub fn ages(&self, now: Instant) -> Vec<Duration> {
        self.times.iter().map(|time| now.saturating_duration_since(*time)).collect()
    }

    /// From [`Self::ages`], oldest first. What was before this machine could tell is forgotten.
    pub fn from_ages(ages: &[Duration], now: Instant) -> Self {
        Self { times: ages.iter().filter_map(|age| now.checked_sub(*age)).collect() }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.times.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use super::Recent;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn tdr_18_five_within_a_minute_and_no_sixth() {
        let mut recent = Recent::default();
        let begun = Instant::now();
        assert!((0..5).all(|_| recent.note(begun, 5, MINUTE)));
        assert!(!recent.note(begun, 5, MINUTE));
        assert!(!recent.note(begun + MINUTE / 2, 5, MINUTE));
        assert!(recent.note(begun + MINUTE * 2, 5, MINUTE));
    }

    #[test]
    fn who_times_it_well_gets_no_more_than_the_limit_in_any_period() {
        let mut recent = Recent::default();
        let begun = Instant::now();
        let mut admitted: Vec<Duration> = Vec::new();
        for second in 0..600 {
            let at = Duration::from_secs(second);
            // It tries again only when the oldest has been forgotten.
            let of_late = admitted.iter().filter(|time| at - **time < MINUTE).count();
            if of_late < 5 {
                assert!(recent.note(begun + at, 5, MINUTE));
                admitted.push(at);
            }
        }
        for window in admitted.windows(6) {
            assert!(window[5] - window[0] >= MINUTE);
        }
        assert_eq!(admitted.len(), 50);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut recent = Recent::default();
        let begun = Instant::now();
        for _ in 0..10_000 {
            recent.note(begun, 5, MINUTE);
        }
        assert_eq!(recent.times.len(), 6);
    }
}

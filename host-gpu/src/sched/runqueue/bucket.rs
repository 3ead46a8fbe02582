//! A cap on engine time: a bucket that fills at the cap's rate.

use std::time::Duration;

use crate::sched::parameters::WHOLE_ENGINE;

/// Real time whose tokens the bucket holds.
const BURST: i128 = Duration::from_millis(100).as_nanos().cast_signed();
/// Engine time that must be there before an empty bucket counts as filled, unless it holds less than twice this.
const ENOUGH: i128 = Duration::from_millis(1).as_nanos().cast_signed();
/// Longest wait for tokens, however much too long an entity ran.
const LONGEST: i128 = Duration::from_secs(10).as_nanos().cast_signed();
const WHOLE: i128 = WHOLE_ENGINE as i128;

/// Tokens, in thousandths of nanoseconds of engine time. Times are nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    cap: i128,
    tokens: i128,
    at: u64,
}

impl Bucket {
    /// Full, at `now`. None for a cap that is none. `cap` is in thousandths and above 0.
    pub fn new(cap: u32, now: u64) -> Option<Self> {
        let cap = i128::from(cap);
        (cap < WHOLE).then(|| Self { cap, tokens: cap * BURST, at: now })
    }

    /// What `older` holds or owes, under the cap of this one.
    pub fn inherit(mut self, older: &Self) -> Self {
        self.tokens = older.tokens.clamp(-self.cap * LONGEST, self.tokens);
        self.at = older.at;
        self
    }

    /// Fills it for the time until `now`.
    pub fn fill(&mut self, now: u64) {
        let since = i128::from(now.saturating_sub(self.at));
        self.at = self.at.max(now);
        self.tokens = (self.tokens + since * self.cap).min(self.cap * BURST);
    }

    /// Takes `time` of the engine that was used until `now`.
    pub fn spend(&mut self, time: u64, now: u64) {
        self.fill(now);
        self.tokens = (self.tokens - i128::from(time) * WHOLE).max(-self.cap * LONGEST);
    }

    /// Whether there is nothing left.
    pub fn is_empty(&self) -> bool {
        self.tokens <= 0
    }

    /// When one that is empty will hold enough to go on.
    pub fn filled_at(&self) -> u64 {
        let enough = (ENOUGH * WHOLE).min(self.cap * BURST / 2);
        let wait = (enough - self.tokens).max(1).div_euclid(self.cap) + 1;
        self.at.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// How long the engine can be had in one go.
    pub fn lasts(&self) -> u64 {
        u64::try_from(self.tokens.max(0) / (WHOLE - self.cap) + 1).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::Bucket;
    use super::LONGEST;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_empty_bucket_is_filled_for_a_millisecond_or_half_of_what_it_holds() {
        let mut half = Bucket::new(500, 0).unwrap();
        assert_eq!(half.lasts(), 100_000_001, "it fills at the half of what is taken");
        assert!(!half.is_empty());
        half.spend(SECOND / 20, 0);
        assert!(half.is_empty());
        assert_eq!(half.lasts(), 1);
        assert_eq!(half.filled_at(), 2_000_001);
        half.spend(1000, 0);
        assert_eq!(half.filled_at(), 2_002_001, "what is owed comes first");
        let mut least = Bucket::new(1, 7).unwrap();
        least.spend(SECOND / 10_000, 7);
        assert_eq!(least.filled_at(), 7 + 50_000_001);
        assert!(Bucket::new(999, 0).is_some() && Bucket::new(1000, 0).is_none());
    }

    #[test]
    fn a_new_cap_inherits_what_was_used_under_the_old_one_as_far_as_it_may_be_owed() {
        let mut half = Bucket::new(500, 0).unwrap();
        half.spend(SECOND / 2, SECOND);
        assert!(half.is_empty());
        let tenth = Bucket::new(100, 2 * SECOND).unwrap().inherit(&half);
        // What is owed is engine time, whatever the cap.
        assert_eq!(tenth.tokens, half.tokens);
        assert_eq!(tenth.at, SECOND, "it fills from when the old one was filled");
        half.spend(10_000 * SECOND, 2 * SECOND);
        assert_eq!(half.tokens, -500 * LONGEST);
        let tenth = Bucket::new(100, 2 * SECOND).unwrap().inherit(&half);
        assert_eq!(tenth.tokens, -100 * LONGEST, "no more than its own rate pays in ten seconds");
        let full = Bucket::new(900, 2 * SECOND).unwrap();
        let inherited = Bucket::new(100, 2 * SECOND).unwrap().inherit(&full);
        assert_eq!(inherited.tokens, Bucket::new(100, 0).unwrap().tokens, "no more than it holds");
    }
}

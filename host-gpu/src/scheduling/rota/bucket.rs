//! A cap on engine time: a bucket that fills at the cap's rate.

use std::time::Duration;

use crate::scheduling::parameters::WHOLE_ENGINE;

/// Real time whose tokens the bucket holds.
const BURST: i128 = Duration::from_millis(100).as_nanos().cast_signed();
/// Engine time that must be there before an empty bucket counts as filled, unless it holds less than twice this.
const ENOUGH: i128 = Duration::from_millis(1).as_nanos().cast_signed();
/// Longest that is waited for tokens, however much too long somebody ran.
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

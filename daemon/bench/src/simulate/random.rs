//! Numbers that are the same for the same seed.

use std::time::Duration;

/// SplitMix64: small, and good enough to mix loads.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.number() % (high.saturating_sub(low) + 1)
    }

    /// A time from `low` to `high`.
    pub fn time(&mut self, low: Duration, high: Duration) -> Duration {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 1);
        Duration::from_nanos(self.between(nanoseconds(low), nanoseconds(high)))
    }

    /// One of these; there must be some.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let place = self.between(0, from.len() as u64 - 1);
        from[usize::try_from(place).unwrap_or(0)]
    }
}

//! Distributions of times.

use std::time::Duration;

use serde::Serialize;

/// A distribution of times.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    /// How many.
    pub count: usize,
    /// The middle one, microseconds.
    pub p50_us: f64,
    /// 99 of 100 are at most this.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Spread {
    /// None without times.
    pub fn of(times: &mut [Duration]) -> Option<Self> {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)].as_secs_f64() * 1e6;
        let max_us = times.last()?.as_secs_f64() * 1e6;
        Some(Self { count: times.len(), p50_us: at(50), p99_us: at(99), max_us })
    }
}

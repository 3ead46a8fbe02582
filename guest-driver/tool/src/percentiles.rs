//! Medians and the like.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Median and 99th percentile, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
}

impl Percentiles {
    /// Of a set of samples; zeroes for none.
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| {
            let index = (samples.len().saturating_sub(1)) * percent / 100;
            samples.get(index).map_or(0, |sample| u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX))
        };
        Self { p50: at(50), p99: at(99) }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9} ns median, {:>9} ns p99", self.p50, self.p99)
    }
}

/// The middle one of some quotients; zero of none.
pub fn median(mut quotients: Vec<f64>) -> f64 {
    quotients.sort_unstable_by(f64::total_cmp);
    quotients.get(quotients.len() / 2).copied().unwrap_or_default()
}

/// One over the other.
pub fn ratio(one: u64, other: u64) -> f64 {
    let as_float = |value: u64| f64::from(u32::try_from(value).unwrap_or(u32::MAX));
    as_float(one) / as_float(other.max(1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Percentiles;

    #[test]
    fn percentiles_are_those_of_the_sorted_samples() {
        let samples = (1..=101).rev().map(Duration::from_nanos).collect();
        assert_eq!(Percentiles::of(samples), Percentiles { p50: 51, p99: 100 });
        assert_eq!(Percentiles::of(Vec::new()), Percentiles { p50: 0, p99: 0 });
    }
}

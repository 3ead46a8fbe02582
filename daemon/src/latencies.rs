//! How long things take: counts by bucket, which any thread adds to without a lock.

use std::ops::AddAssign;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Upper ends of the buckets of [`Latencies`], in microseconds; what takes longer is in one more.
pub const BOUNDS_US: [u64; 14] = [
    10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000,
    30_000_000,
];

impl AddAssign for Distribution {
    fn add_assign(&mut self, more: Self) {
        for (count, more) in self.buckets.iter_mut().zip(more.buckets) {
            *count = count.saturating_add(more);
        }
        self.sum += more.sum;
    }
}

/// The bucket in which a time is counted.
pub fn bucket_of(time: Duration) -> usize {
    BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < time)
}

/// How often what took how long.
#[derive(Debug, Default)]
pub struct Latencies {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

/// The same, as it was at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Distribution {
    /// Counts by bucket, not summed up.
    pub buckets: [u64; BOUNDS_US.len() + 1],
    /// The sum of all times.
    pub sum: Duration,
}

impl Latencies {
    /// One more.
    pub fn note(&self, time: Duration) {
        if let Some(count) = self.buckets.get(bucket_of(time)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// So many more.
    pub fn add(&self, more: &Distribution) {
        for (count, more) in self.buckets.iter().zip(more.buckets) {
            count.fetch_add(more, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(u64::try_from(more.sum.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// As it is now.
    pub fn distribution(&self) -> Distribution {
        let mut buckets = [0; BOUNDS_US.len() + 1];
        for (count, bucket) in buckets.iter_mut().zip(&self.buckets) {
            *count = bucket.load(Ordering::Relaxed);
        }
        Distribution { buckets, sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::BOUNDS_US;
    use super::Latencies;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_holds_it() {
        let latencies = Latencies::default();
        let times = [
            Duration::ZERO,
            Duration::from_micros(10),
            Duration::from_nanos(10_001),
            Duration::from_secs(60),
        ];
        times.into_iter().for_each(|time| latencies.note(time));
        let seen = latencies.distribution();
        assert_eq!((seen.buckets[0], seen.buckets[1], seen.buckets[BOUNDS_US.len()]), (2, 1, 1));
        assert_eq!((seen.buckets.iter().sum::<u64>(), seen.sum), (4, times.iter().sum()));
        latencies.add(&seen);
        let twice = latencies.distribution();
        assert_eq!((twice.buckets, twice.sum), (seen.buckets.map(|count| count * 2), seen.sum * 2));
    }
}

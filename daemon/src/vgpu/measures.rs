//! What is measured of a vGPU beside its counts: how long, and why.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::recorder::Recorder;

/// Upper ends of the buckets of [`Latencies`], in microseconds; what takes longer is in one more.
pub const BOUNDS_US: [u64; 14] = [
    10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000,
    30_000_000,
];

/// What leads to resets.
pub const CAUSES: usize = 4;

/// How often what took how long.
#[derive(Debug, Default)]
pub struct Latencies {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

/// The same, as it was at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Distribution {
    /// Counts by bucket, not summed up.
    pub buckets: [u64; BOUNDS_US.len() + 1],
    /// The sum of all times.
    pub sum: Duration,
}

impl Latencies {
    /// One more.
    pub fn note(&self, time: Duration) {
        let bucket = BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < time);
        if let Some(count) = self.buckets.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(nanoseconds, Ordering::Relaxed);
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

/// What is measured of one vGPU, over all its sessions.
#[derive(Debug, Default)]
pub struct Measures {
    /// From the SUBMIT of a buffer to the fence that it ends with.
    pub submit_to_fence: Latencies,
    /// What happens, while it is traced.
    pub recorder: Recorder,
    /// Resets of engines and of everything, by the number of what led to them.
    resets: [AtomicU64; CAUSES],
}

impl Measures {
    /// Something is reset: an engine, or everything.
    pub fn note_reset(&self, cause: usize) {
        if let Some(count) = self.resets.get(cause) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Resets by what led to them, in the order of `tdr::reason::Reason::ALL`.
    pub fn resets(&self) -> [u64; CAUSES] {
        std::array::from_fn(|cause| self.resets.get(cause).map_or(0, |count| count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::BOUNDS_US;
    use super::Latencies;
    use super::Measures;

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
    }

    #[test]
    fn resets_are_counted_by_their_cause() {
        let measures = Measures::default();
        [3, 3, 0, 9].into_iter().for_each(|cause| measures.note_reset(cause));
        assert_eq!(measures.resets(), [1, 0, 0, 2]);
    }
}

//! What is measured of a vGPU beside its counts: how long, and why.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use super::recorder::Recorder;
use crate::latencies::Latencies;

/// What leads to resets.
pub const CAUSES: usize = 4;

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
    use super::Measures;

    #[test]
    fn resets_are_counted_by_their_cause() {
        let measures = Measures::default();
        [3, 3, 0, 9].into_iter().for_each(|cause| measures.note_reset(cause));
        assert_eq!(measures.resets(), [1, 0, 0, 2]);
    }
}

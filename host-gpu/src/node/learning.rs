//! What slices took: the pace of their kernels, and what the operator is shown.

use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::scheduling;

use super::clock;
use super::compute::ComputeNode;
use super::compute::Kernel;
use super::flight::Ended;

/// A slice that takes so many times as long as was likely is believed by itself, whatever those before it took.
const DEAR: u32 = 3;

impl ComputeNode {
    /// Learns from what slices took; at the most, where `was_late` and the last was done before that was seen.
    pub(super) fn learn(&mut self, ended: &Ended, was_late: bool) {
        let Ended { kernel, slices, groups, took, last } = *ended;
        let target = self.latency_boost.slice(self.slice, Instant::now());
        if groups == 0 || target.is_zero() {
            return;
        }
        let Some(Kernel { pace, .. }) = self.kernels.get_mut(&kernel) else { return };
        let (last_groups, likely, last_took) = last;
        if slices > 1 && !was_late && last_took > likely * DEAR {
            // The others did what was likely.
            pace.observe(last_groups, last_took, target);
        } else {
            let (groups, took) = (groups / slices, took / u32::try_from(slices).unwrap_or(u32::MAX));
            if !was_late || took < pace.likely(groups) {
                pace.observe(groups, took, target);
            }
        }
        self.count_slices(slices, took);
        if let Some(word) = self.shared.word(scheduling::SLICE_TARGET) {
            word.store(clock::nanoseconds(target), Ordering::Relaxed);
        }
    }

    /// Counts slices that took so long together.
    pub(super) fn count_slices(&self, slices: u64, took: Duration) {
        // No other thread stores there.
        for (place, more) in
            [(scheduling::SLICES, slices), (scheduling::SLICE_NANOSECONDS, clock::nanoseconds(took))]
        {
            if let Some(word) = self.shared.word(place) {
                word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
            }
        }
    }
}

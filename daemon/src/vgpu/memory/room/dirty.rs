//! The trackers of what is written.

use campanile_host_gpu::dirty::tracker::Tracker;
use std::sync::Arc;

use super::Memory;

impl Memory {
    /// The trackers of what is written: of video memory, and of what is evicted from it. Usable from any thread.
    pub fn trackers(&self) -> [Arc<Tracker>; 2] {
        let memory = self.allocations.memory();
        [Arc::clone(memory.tracker()), Arc::clone(memory.evicted_tracker())]
    }

    /// For the operator.
    pub(in crate::vgpu) fn describe_tracking(&self) -> serde_json::Value {
        let trackers = self.trackers();
        let caps = trackers[0].caps();
        serde_json::json!({
            "method": caps.method.name(),
            "performant": caps.performant,
            "tracking": trackers.iter().any(|tracker| tracker.is_tracking()),
            "shadow_bytes": trackers.iter().map(|tracker| tracker.shadow_bytes()).sum::<u64>(),
            "page_size": caps.page_size,
            "guest_ram_logged": self.dirty.has_log(),
        })
    }
}

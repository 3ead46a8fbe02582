//! What every engine must have let go of before memory may be used anew.

use campanile_host_gpu::engine::address::MAX_PLACES;
use campanile_protocol::page_table::SegmentId;

use super::engine_slot::EngineSlot;

/// A point in each engine's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Barrier {
    watch: [u64; MAX_PLACES],
    tables: [u64; MAX_PLACES],
    segment: Option<SegmentId>,
}

impl Barrier {
    /// Makes every engine forget what it has resolved, and marks that point.
    pub fn raise(engines: &mut [EngineSlot]) -> Self {
        let mut barrier = Self::default();
        for (index, engine) in engines.iter_mut().enumerate() {
            if let Some(process) = engine.process_mut() {
                barrier.tables[index] = process.invalidate_page_tables();
                barrier.watch[index] = process.watch_sequence();
            }
        }
        barrier
    }

    /// Waits until every engine has mapped `segment`.
    pub const fn segment(segment: SegmentId) -> Self {
        Self { watch: [0; MAX_PLACES], tables: [0; MAX_PLACES], segment: Some(segment) }
    }

    /// Whether every engine has come past it. An engine that is gone, or was started anew, holds nothing.
    pub fn is_passed(&self, engines: &[EngineSlot]) -> bool {
        engines.iter().enumerate().all(|(index, engine)| {
            let Some(process) = engine.process() else { return true };
            let mapped = self.segment.is_none_or(|segment| !engine.segments_outstanding.contains(&segment));
            let watched = process.watch_acknowledged() >= self.watch[index].min(process.watch_sequence());
            let tables =
                process.page_tables_acknowledged() >= self.tables[index].min(process.page_table_generation());
            mapped && watched && tables
        })
    }
}

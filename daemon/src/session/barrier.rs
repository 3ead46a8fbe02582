//! What every engine must have let go of before memory may be used anew.

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::address::MAX_PLACES;

use super::engine_slot::EngineSlot;

/// A point in each engine's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Barrier {
    watch: [u64; MAX_PLACES],
    tables: [u64; MAX_PLACES],
    segments: [u64; MAX_PLACES],
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

    /// Waits until every engine works with the segments that it was told of so far, and the daemon knows where it has them.
    pub fn announced(engines: &[EngineSlot]) -> Self {
        let mut barrier = Self::default();
        for (serial, engine) in barrier.segments.iter_mut().zip(engines) {
            *serial = engine.process().map_or(0, EngineProcess::segments_announced);
        }
        barrier
    }

    /// Whether every engine has come past it. An engine that is gone, or was started anew, holds nothing.
    pub fn is_passed(&self, engines: &[EngineSlot]) -> bool {
        engines.iter().enumerate().all(|(index, engine)| {
            let Some(process) = engine.process() else { return true };
            let serial = self.segments[index].min(process.segments_announced());
            let mapped = process.segments_acknowledged() >= serial
                && engine.segments_outstanding.range(..=serial).next().is_none();
            let watched = process.watch_acknowledged() >= self.watch[index].min(process.watch_sequence());
            let tables =
                process.page_tables_acknowledged() >= self.tables[index].min(process.page_table_generation());
            mapped && watched && tables
        })
    }
}

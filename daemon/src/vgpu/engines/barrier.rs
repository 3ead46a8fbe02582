//! What every engine must have let go of before memory may be used anew.

use campanile_host_gpu::engine::address::MAX_PLACES;

use super::slot::EngineSlot;

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
                barrier.tables[index] = process.page_tables.invalidate();
                barrier.watch[index] = process.watch_sequence();
            }
        }
        barrier
    }

    /// Waits until every engine has forgotten what it was made to forget so far: passed at once where all have. It asks engines
    /// for nothing.
    pub fn raised(engines: &[EngineSlot]) -> Self {
        let mut barrier = Self::default();
        for (index, engine) in engines.iter().enumerate() {
            if let Some(process) = engine.process() {
                barrier.tables[index] = process.page_tables.generation();
                barrier.watch[index] = process.watch_sequence();
            }
        }
        barrier
    }

    /// Waits until every engine works with the segments that it was told of so far, and the daemon knows where it has them.
    pub fn announced(engines: &[EngineSlot]) -> Self {
        let mut barrier = Self::default();
        for (serial, engine) in barrier.segments.iter_mut().zip(engines) {
            *serial = engine.process().map_or(0, |process| process.segments.announced());
        }
        barrier
    }

    /// Whether every engine had come past it when that was looked at.
    pub fn is_passed(&self, reached: &Reached) -> bool {
        let passed =
            |by: &[u64; MAX_PLACES], at: &[u64; MAX_PLACES]| by.iter().zip(at).all(|(by, at)| by >= at);
        passed(&reached.0.watch, &self.watch)
            && passed(&reached.0.tables, &self.tables)
            && passed(&reached.0.segments, &self.segments)
    }
}

/// How far each engine is, looked at once. Barriers that are judged by the same look are passed in the order in which they
/// were raised: engines go on meanwhile, and of two looks the second could find a later barrier passed, and an earlier one not.
#[derive(Debug)]
pub struct Reached(Barrier);

impl Reached {
    /// Looks. An engine that is gone, or was started anew, holds nothing of what was before.
    pub fn by(engines: &[EngineSlot]) -> Self {
        let mut reached = Barrier {
            watch: [u64::MAX; MAX_PLACES],
            tables: [u64::MAX; MAX_PLACES],
            segments: [u64::MAX; MAX_PLACES],
        };
        for (index, engine) in engines.iter().enumerate() {
            let Some(process) = engine.process() else { continue };
            // All that was asked of it is done: so is what was asked of the process before it.
            let unless_all = |done: u64, asked: u64| if done >= asked { u64::MAX } else { done };
            let mapped = process.segments.acknowledged();
            let answered = engine.segments_outstanding.keys().next().map_or(u64::MAX, |serial| serial - 1);
            reached.watch[index] = unless_all(process.watch_acknowledged(), process.watch_sequence());
            reached.tables[index] =
                unless_all(process.page_tables.acknowledged(), process.page_tables.generation());
            reached.segments[index] = unless_all(mapped.min(answered), process.segments.announced());
        }
        #[cfg(test)]
        tests::LOOKED.with_borrow_mut(|looked| looked.iter_mut().for_each(|looked| looked()));
        Self(reached)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;

    thread_local! {
        /// What a test does right after engines were looked at.
        pub static LOOKED: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    }
}

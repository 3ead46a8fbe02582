//! What an engine misses and has used, read by the daemon.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::engine::residency;
use campanile_protocol::engine::residency::USE_EPOCH;
use campanile_protocol::engine::residency::WANTED_ENTRIES;
use campanile_protocol::engine::residency::WANTED_TAKEN;
use campanile_protocol::engine::residency::WANTED_WRITTEN;
use campanile_protocol::engine::residency::Wanted;

use super::shared::SharedBlock;

/// What an engine misses, and what it has used: by its own word.
#[derive(Debug)]
pub struct Uses {
    shared: Arc<SharedBlock>,
}

impl Uses {
    pub(super) fn new(shared: Arc<SharedBlock>) -> Self {
        Self { shared }
    }

    /// Takes what the engine asked for: claims, each to be checked. An engine that says it wrote more than fits has
    /// what fits read.
    pub fn take_wanted(&self) -> Vec<Wanted> {
        // PAIRS WITH engine/residency.rs `report`.
        let written = self.shared.load(WANTED_WRITTEN);
        let taken = self.shared.load(WANTED_TAKEN);
        let count = written.wrapping_sub(taken).min(WANTED_ENTRIES);
        let read = |index: u64| {
            let place = residency::wanted(written.wrapping_sub(count).wrapping_add(index));
            self.shared.read::<Wanted>(place)
        };
        let wanted = (0..count).filter_map(read).collect();
        if taken != written {
            self.shared.store(WANTED_TAKEN, written);
        }
        wanted
    }

    /// The entry of the context whose state is on the engine, and whether its work runs now: claims. None where no process
    /// is there.
    pub fn last_context(&self) -> Option<(u32, bool)> {
        let last = self.shared.load(block::LAST_CONTEXT).checked_sub(1).filter(|_| !self.shared.is_lost());
        let is_running = Progress::from_word(self.shared.load(block::PROGRESS)).work != Work::Nothing;
        Some((u32::try_from(last?).ok()?, is_running))
    }

    /// From now on what is used counts as used in this epoch.
    pub fn set_epoch(&self, epoch: u64) {
        if let Some(word) = self.shared.word(USE_EPOCH) {
            word.store(epoch, Ordering::Relaxed);
        }
    }

    /// The last epoch in which something of `length` bytes at `offset`, in a video memory of `vram_bytes`, was used.
    pub fn last_use(&self, offset: u64, length: u64, vram_bytes: u64) -> u64 {
        let shift = residency::granule_shift(vram_bytes);
        let last = offset.saturating_add(length.saturating_sub(1));
        let of = |index| {
            self.shared.word(residency::last_use(index)).map_or(0, |word| word.load(Ordering::Relaxed))
        };
        (offset >> shift..=last >> shift).map(of).max().unwrap_or(0)
    }
}

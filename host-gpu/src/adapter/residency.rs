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
use crate::ids::ContextIndex;

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
    pub fn last_context(&self) -> Option<(ContextIndex, bool)> {
        let last = self.shared.load(block::LAST_CONTEXT).checked_sub(1).filter(|_| !self.shared.is_lost());
        let is_running = Progress::from_word(self.shared.load(block::PROGRESS)).work != Work::Nothing;
        Some((ContextIndex::new(u32::try_from(last?).ok()?), is_running))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::engine::block;
    use campanile_protocol::engine::progress::Progress;
    use campanile_protocol::engine::progress::Work;
    use campanile_protocol::engine::residency;
    use campanile_protocol::engine::residency::USE_EPOCH;
    use campanile_protocol::engine::residency::WANTED_ENTRIES;
    use campanile_protocol::engine::residency::WANTED_TAKEN;
    use campanile_protocol::engine::residency::WANTED_WRITTEN;
    use campanile_protocol::engine::residency::Wanted;
    use zerocopy::IntoBytes;

    use super::SharedBlock;
    use super::Uses;
    use crate::ids::ContextIndex;

    fn uses() -> (Arc<SharedBlock>, Uses) {
        let shared = Arc::new(SharedBlock::new().unwrap());
        (Arc::clone(&shared), Uses::new(shared))
    }

    #[test]
    fn what_an_engine_wants_is_taken_once_in_its_order_and_no_more_than_fits() {
        let (shared, uses) = uses();
        let vas = |wanted: Vec<Wanted>| wanted.into_iter().map(|wanted| wanted.va).collect::<Vec<_>>();
        for count in 0..40 {
            let wanted = Wanted { root: 1, va: 1000 + count, token: 2, queue: 3 };
            shared.write(residency::wanted(count), wanted.as_bytes());
            if count == 1 {
                shared.store(WANTED_WRITTEN, 2);
                assert_eq!(uses.take_wanted().first(), Some(&Wanted { va: 1000, ..wanted }));
                assert_eq!(shared.load(WANTED_TAKEN), 2);
                assert!(uses.take_wanted().is_empty());
            }
        }
        // An engine that says so much has what fits read, the last of it.
        shared.store(WANTED_WRITTEN, 40);
        assert_eq!(
            vas(uses.take_wanted()),
            (40 - WANTED_ENTRIES..40).map(|at| 1000 + at).collect::<Vec<_>>()
        );
        assert_eq!(shared.load(WANTED_TAKEN), 40);
        // So has one whose count went back.
        shared.store(WANTED_WRITTEN, 3);
        assert_eq!(uses.take_wanted().len() as u64, WANTED_ENTRIES);
        assert_eq!(shared.load(WANTED_TAKEN), 3);
    }

    #[test]
    fn the_last_context_is_that_of_a_process_which_is_there() {
        let (shared, uses) = uses();
        shared.set_lost(false);
        assert_eq!(uses.last_context(), None, "none was on it yet");
        shared.store(block::LAST_CONTEXT, 6);
        assert_eq!(uses.last_context(), Some((ContextIndex::new(5), false)));
        let work = Progress { steps: 1, is_exempt: false, work: Work::HwQueue };
        shared.store(block::PROGRESS, work.word());
        assert_eq!(uses.last_context(), Some((ContextIndex::new(5), true)));
        shared.store(block::LAST_CONTEXT, u64::MAX);
        assert_eq!(uses.last_context(), None, "no table is so long");
        shared.store(block::LAST_CONTEXT, 6);
        shared.set_lost(true);
        assert_eq!(uses.last_context(), None);
    }

    #[test]
    fn the_last_use_is_the_latest_of_all_parts_that_something_lies_in() {
        let (shared, uses) = uses();
        uses.set_epoch(4);
        assert_eq!(shared.load(USE_EPOCH), 4);
        // Parts of 16 KiB each.
        let (vram, part) = (64 << 20, 16 << 10);
        assert_eq!(residency::granule_shift(vram), 14);
        for (index, epoch) in [(0, 9), (1, 3), (2, 5), (3, 8)] {
            shared.store(residency::last_use(index), epoch);
        }
        let last = |offset, length| uses.last_use(offset, length, vram);
        assert_eq!([last(part, part), last(2 * part, part)], [3, 5], "and not its neighbours");
        assert_eq!(last(part, part + 1), 5, "by one byte");
        assert_eq!(last(part, 2 * part), 5);
        assert_eq!(last(2 * part - 1, 1), 3);
        assert_eq!(last(0, 4 * part), 9);
        assert_eq!(last(4 * part, part), 0, "never");
    }
}

//! What an engine came across: memory that is not resident, and memory that it used.

use std::cell::Cell;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::engine::residency;
use campanile_protocol::engine::residency::USE_EPOCH;
use campanile_protocol::engine::residency::WANTED_ENTRIES;
use campanile_protocol::engine::residency::Wanted;
use campanile_protocol::page_table::SegmentId;

use super::mapping::Mapping;
use super::page_table::reader::Run;

/// An address that was looked for and is not there for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Page index of the root page table.
    pub root: u64,
    /// GPU virtual address.
    pub va: u64,
}

/// What was missing since it was last reported. Owned by the execution thread.
#[derive(Debug, Default)]
pub struct Wants {
    missing: Cell<Option<Missing>>,
    queue: Cell<u64>,
    base: Cell<u64>,
    token: Cell<u64>,
    found: RefCell<Vec<Wanted>>,
}

impl Wants {
    /// From now on it is this queue that misses something, with a buffer that `base` stands for.
    pub fn begin(&self, queue: u64, base: u64) {
        self.queue.set(queue);
        self.base.set(base);
        self.token.set(base.rotate_left(40) ^ 1);
        self.missing.set(None);
    }

    /// It has come to this place.
    pub fn progress(&self, at: usize, done: u64) {
        // The same again only where neither buffer nor place have changed, or nearly.
        self.token.set(self.base.get().rotate_left(40) ^ (at as u64) << 20 ^ done.rotate_left(24));
    }

    /// Something is not where it is looked for: it moves, or, where it `is_evicted`, has to be asked for.
    pub fn note(&self, root: u64, va: u64, is_evicted: bool) {
        self.missing.set(Some(Missing { root, va }));
        let mut found = self.found.borrow_mut();
        if is_evicted && found.len() < usize::try_from(WANTED_ENTRIES).unwrap_or(0) {
            found.push(Wanted { root, va, token: self.token.get(), queue: self.queue.get() });
        }
    }

    /// The last address that was missing.
    pub fn take_missing(&self) -> Option<Missing> {
        self.missing.take()
    }

    /// Whether there is something to ask for.
    pub fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// What is to be asked for.
    pub fn take(&self) -> Vec<Wanted> {
        self.found.take()
    }
}

/// Which parts of video memory were used, for the daemon.
#[derive(Debug, Default)]
pub struct Uses {
    shared: Option<Arc<Mapping>>,
    shift: u32,
}

impl Uses {
    /// Of a video memory of `bytes`, told in the shared block.
    pub fn new(shared: Arc<Mapping>, bytes: u64) -> Self {
        Self { shared: Some(shared), shift: residency::granule_shift(bytes) }
    }

    /// A run is about to be used.
    pub fn note(&self, run: Run) {
        // Offsets in both are those in the video memory.
        let is_video = matches!(run.segment, SegmentId::VRAM | SegmentId::LOCAL) && run.length > 0;
        let Some(shared) = self.shared.as_ref().filter(|_| is_video) else { return };
        let epoch = shared.word(USE_EPOCH).map_or(0, |word| word.load(Ordering::Relaxed));
        for index in run.offset >> self.shift..=(run.offset + run.length - 1) >> self.shift {
            if let Some(word) = shared.word(residency::last_use(index))
                && word.load(Ordering::Relaxed) != epoch
            {
                word.store(epoch, Ordering::Relaxed);
            }
        }
    }
}

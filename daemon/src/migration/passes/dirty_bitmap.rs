//! The dirty bitmap of one migration: what is still to be sent of all memories.

use std::io;

use crate::migration::channel::frame::MAX_DATA;
use crate::migration::channel::frame::MAX_RUNS;
use crate::migration::memory::Memory;
use crate::migration::memory::MovingMemory;
use crate::migration::pages::PAGE;
use crate::migration::pages::PageSet;

/// One memory's pages.
#[derive(Debug)]
struct MemoryBitmap {
    /// What trackers told, and was not sent.
    pending: PageSet,
    /// Pages that one dirty bit stands for.
    scale: u64,
    bits: Vec<u8>,
    cursor: u64,
}

/// What is still to be sent of all memories, in one migration.
#[derive(Debug)]
pub struct DirtyBitmap {
    bitmaps: [MemoryBitmap; 2],
}

/// Pages for one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Whose.
    pub memory: Memory,
    /// Byte offset and bytes of each run, [`MAX_DATA`] in all at the most.
    pub ranges: Vec<(u64, usize)>,
}

impl Batch {
    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(|(_, length)| length).sum()
    }
}

impl DirtyBitmap {
    /// All that was ever written is to be sent, to a target that has nothing but zeroes (DIRTY-34).
    ///
    /// # Errors
    /// A memory cannot be tracked.
    pub fn begin(memories: [&dyn MovingMemory; 2]) -> io::Result<Self> {
        Self::with(memories, |memory, bits| memory.begin(bits))
    }

    /// The same with the VM paused: one pass, and no query.
    ///
    /// # Errors
    /// A memory cannot say what was written.
    pub fn begin_paused(memories: [&dyn MovingMemory; 2]) -> io::Result<Self> {
        Self::with(memories, |memory, bits| memory.begin_paused(bits))
    }

    fn with(
        memories: [&dyn MovingMemory; 2],
        begin: impl Fn(&dyn MovingMemory, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut bitmaps = memories.map(|memory| {
            let bits = memory.length().div_ceil(memory.page_size()).div_ceil(8);
            MemoryBitmap {
                pending: PageSet::none(memory.length() / PAGE),
                scale: memory.page_size() / PAGE,
                bits: vec![0; usize::try_from(bits).unwrap_or(0)],
                cursor: 0,
            }
        });
        for (bitmap, memory) in bitmaps.iter_mut().zip(memories) {
            bitmap.learn(|bits| begin(memory, bits))?;
        }
        Ok(Self { bitmaps })
    }

    /// Asks the trackers, which forget what they tell. The next batch is of the first pages again.
    ///
    /// # Errors
    /// A tracker cannot say. Then all of that memory is to be sent.
    pub fn query(&mut self, memories: [&dyn MovingMemory; 2]) -> io::Result<()> {
        let mut outcome = Ok(());
        for (bitmap, memory) in self.bitmaps.iter_mut().zip(memories) {
            if let Err(error) = bitmap.learn(|bits| memory.query_and_clear(bits)) {
                outcome = Err(error);
            }
        }
        outcome
    }

    /// What is to be sent of each memory, by index.
    pub fn into_pending(self) -> [PageSet; 2] {
        self.bitmaps.map(|bitmap| bitmap.pending)
    }

    /// Bytes that are to be sent.
    pub fn pending_bytes(&self) -> u64 {
        self.bitmaps.iter().map(|bitmap| bitmap.pending.count() * PAGE).sum()
    }

    /// The next pages, in order of their places, which count as sent from here on. `None` at the end of the pass.
    pub fn next_batch(&mut self) -> Option<Batch> {
        Memory::ALL.into_iter().find_map(|memory| self.bitmaps[memory.index()].next_batch(memory))
    }

    /// A batch was not sent after all.
    pub fn put_back(&mut self, batch: &Batch) {
        let MemoryBitmap { pending, cursor, .. } = &mut self.bitmaps[batch.memory.index()];
        for (offset, length) in &batch.ranges {
            let (first, pages) = (offset / PAGE, *length as u64 / PAGE);
            pending.insert(first..first + pages);
            *cursor = (*cursor).min(first);
        }
    }
}

impl MemoryBitmap {
    fn learn(&mut self, ask: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
        self.cursor = 0;
        self.bits.fill(0);
        let outcome = ask(&mut self.bits);
        if outcome.is_err() {
            self.pending.insert(0..self.pending.pages());
        }
        self.pending.insert_bits(&self.bits, self.scale);
        outcome
    }

    fn next_batch(&mut self, memory: Memory) -> Option<Batch> {
        let mut batch = Batch { memory, ranges: Vec::new() };
        let mut room = MAX_DATA as u64 / PAGE / self.scale * self.scale;
        while room > 0 && batch.ranges.len() < MAX_RUNS {
            // Runs begin and end at dirty pages, and so does what room is left.
            let Some(run) = self.pending.next_run(self.cursor, room) else { break };
            let pages = run.end - run.start;
            room -= pages;
            self.cursor = run.end;
            self.pending.remove(run.clone());
            batch.ranges.push((run.start * PAGE, usize::try_from(pages * PAGE).unwrap_or(0)));
        }
        (!batch.ranges.is_empty()).then_some(batch)
    }
}

#[cfg(test)]
mod tests;

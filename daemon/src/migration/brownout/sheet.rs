//! What is still to be sent.
//!
//! ```text
//!   tracker ── query and clear ──▶ pending ── next batch ──▶ sender ── sent
//!                      └────────▶ touched                      (a failed migration: all that was ever touched is sent anew)
//! ```

use std::io;

use super::super::channel::record::MAX_DATA;
use super::super::channel::record::MAX_RUNS;
use crate::migration::memory::Memory;
use crate::migration::memory::MovingMemory;
use crate::migration::pages::PAGE;
use crate::migration::pages::PageSet;

/// One memory's pages.
#[derive(Debug)]
struct Column {
    /// What was cleared from the tracker and not sent.
    pending: PageSet,
    /// What was ever written: a target that begins with zeroes needs these (DIRTY-34).
    touched: PageSet,
    bits: Vec<u8>,
    cursor: u64,
}

/// What is still to be sent of all memories. Lives as long as the session: what a tracker has told once, it does not tell again.
#[derive(Debug)]
pub struct Sheet {
    columns: [Column; 2],
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

impl Sheet {
    /// Nothing was written yet.
    pub fn new(memories: [&dyn MovingMemory; 2]) -> Self {
        let columns = memories.map(|memory| {
            let pages = memory.length() / PAGE;
            let bits = memory.length().div_ceil(memory.page_size()).div_ceil(8);
            Column {
                pending: PageSet::none(pages),
                touched: PageSet::none(pages),
                bits: vec![0; usize::try_from(bits).unwrap_or(0)],
                cursor: 0,
            }
        });
        Self { columns }
    }

    /// Asks the trackers, which forget what they tell.
    ///
    /// # Errors
    /// A tracker cannot say. Then all of that memory counts as written.
    pub fn query(&mut self, memories: [&dyn MovingMemory; 2]) -> io::Result<()> {
        for (column, memory) in self.columns.iter_mut().zip(memories) {
            column.bits.fill(0);
            if let Err(error) = memory.query_and_clear(&mut column.bits) {
                let pages = column.touched.pages();
                column.pending.insert(0..pages);
                column.touched.insert(0..pages);
                return Err(error);
            }
            let scale = memory.page_size() / PAGE;
            column.pending.insert_bits(&column.bits, scale);
            column.touched.insert_bits(&column.bits, scale);
        }
        Ok(())
    }

    /// Everything that was ever written is to be sent: to a target that has nothing.
    pub fn begin(&mut self) {
        for column in &mut self.columns {
            column.pending = column.touched.clone();
            column.cursor = 0;
        }
    }

    /// All pages are to be sent: nobody knows which were written.
    pub fn begin_whole(&mut self, memory: Memory) {
        let column = &mut self.columns[memory.index()];
        column.touched.insert(0..column.touched.pages());
        column.pending = column.touched.clone();
        column.cursor = 0;
    }

    /// From the first page again.
    pub fn rewind(&mut self) {
        self.columns.iter_mut().for_each(|column| column.cursor = 0);
    }

    /// Bytes that are to be sent.
    pub fn pending_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.pending.count() * PAGE).sum()
    }

    /// Bytes that were ever written.
    pub fn touched_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.touched.count() * PAGE).sum()
    }

    /// The next pages, in order of their places, which count as sent from here on. `None` at the end of the pass.
    pub fn next_batch(&mut self) -> Option<Batch> {
        Memory::ALL.into_iter().find_map(|memory| self.columns[memory.index()].next_batch(memory))
    }
}

impl Column {
    fn next_batch(&mut self, memory: Memory) -> Option<Batch> {
        let mut batch = Batch { memory, ranges: Vec::new() };
        let mut room = MAX_DATA as u64 / PAGE;
        while room > 0 && batch.ranges.len() < MAX_RUNS {
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

//! What an engine watches: the processes, user-mode queues and doorbells of its vGPU.
//!
//! Built from the tables of the shared block whenever the watch sequence rises. A queue whose slot was taken
//! away gets its last look then, a queue whose slot is new its first; the daemon names them, since a slot may
//! have changed hands more than once.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use campanile_protocol::device_page;
use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::slot::DoorbellSlot;
use campanile_protocol::handshake::doorbell;
use zerocopy::FromBytes;

use super::user_queue::UserQueue;
use crate::memory::mapping::Mapping;
use crate::memory::page_table::reader::Intent;
use crate::memory::segment::Place;
use crate::memory::segment::Segments;
use crate::node::space::Space;
use crate::node::space::Stop;

/// One guest process.
#[derive(Debug)]
pub struct Process {
    entry: ProcessEntry,
    page: Option<Place>,
    /// (cell, queue) of each watched doorbell, by summary bit.
    cells: BTreeMap<u32, Vec<(u16, u16)>>,
}

impl Process {
    /// Its address space.
    pub fn space<'a>(&self, tables: &'a Mapping, segments: &'a Segments) -> Space<'a> {
        Space { tables, root: self.entry.root, segments }
    }

    /// Its device page, resolved anew where that was dropped.
    ///
    /// # Errors
    /// It is on the move, or lies in several pieces.
    pub fn page(&mut self, tables: &Mapping, segments: &Segments) -> Result<&Place, Stop> {
        let page = match self.page.take() {
            Some(page) => page,
            None => {
                let space = Space { tables, root: self.entry.root, segments };
                space.place(self.entry.page_va, device_page::DEVICE_PAGE_BYTES, Intent::Write)?
            }
        };
        Ok(self.page.insert(page))
    }

    fn matches(&self, entry: &ProcessEntry) -> bool {
        self.entry == *entry
    }
}

/// Everything watched.
#[derive(Debug, Default)]
pub struct Watch {
    sequence: u64,
    processes: BTreeMap<u32, Process>,
    queues: BTreeMap<u16, UserQueue>,
    watched: bool,
}

impl Watch {
    /// Whether the tables changed since they were read.
    pub fn is_stale(&self, shared: &Mapping) -> bool {
        load(shared, block::WATCH_SEQUENCE) != self.sequence
    }

    /// Forgets what was resolved through page tables.
    pub fn drop_resolved(&mut self) {
        for process in self.processes.values_mut() {
            process.page = None;
        }
        for queue in self.queues.values_mut() {
            queue.drop_resolved();
        }
    }

    /// A process by its index.
    pub fn process(&mut self, index: u32) -> Option<&mut Process> {
        self.processes.get_mut(&index)
    }

    /// A queue with its process.
    pub fn queue(&mut self, index: u16) -> Option<(&mut UserQueue, &mut Process)> {
        let queue = self.queues.get_mut(&index)?;
        let process = self.processes.get_mut(&queue.process())?;
        Some((queue, process))
    }

    /// Reads the tables again. Calls `look` for each queue whose write pointer must be looked at (UMS-64,
    /// UMS-71), then acknowledges.
    pub fn refresh(&mut self, shared: &Mapping, mut look: impl FnMut(u16)) {
        // PAIRS WITH the daemon's release of the sequence, after the tables.
        let sequence = load(shared, block::WATCH_SEQUENCE);
        // Before the slots are read: who is looked at here has its new slot below, and who gets a slot later is
        // looked at later.
        take_looks(shared, &mut look);
        let used = |word: u64, limit: u32| u32::try_from(load(shared, word)).unwrap_or(limit).min(limit);
        let slots: Vec<DoorbellSlot> = (0..used(block::USED_DOORBELLS, block::MAX_DOORBELLS))
            .map(|index| DoorbellSlot(load(shared, block::doorbell(index))))
            .collect();
        for index in 0..used(block::USED_PROCESSES, block::MAX_PROCESSES) {
            match live::<ProcessEntry>(shared, block::process(index)).filter(|entry| entry.generation != 0) {
                None => {
                    self.processes.remove(&index);
                }
                Some(entry) => {
                    if !self.processes.get(&index).is_some_and(|process| process.matches(&entry)) {
                        self.processes.insert(index, Process { entry, page: None, cells: BTreeMap::new() });
                    }
                }
            }
        }
        for index in 0..u16::try_from(used(block::USED_QUEUES, block::MAX_QUEUES)).unwrap_or(u16::MAX) {
            match live::<QueueEntry>(shared, block::queue(u32::from(index)))
                .filter(|entry| entry.generation != 0)
            {
                None => {
                    self.queues.remove(&index);
                }
                Some(entry) => {
                    if !self.queues.get(&index).is_some_and(|queue| queue.is_of(&entry)) {
                        self.queues.insert(index, UserQueue::new(shared, index, entry));
                    }
                }
            }
        }
        for process in self.processes.values_mut() {
            process.cells.clear();
        }
        for slot in slots.iter().filter(|slot| slot.is_watching()) {
            if let Some(process) = self.processes.get_mut(&u32::from(slot.process())) {
                let bit = u32::from(slot.cell()) / device_page::CELLS_PER_SUMMARY_BIT;
                process.cells.entry(bit).or_default().push((slot.cell(), slot.queue()));
            }
        }
        self.watched = slots.iter().any(|slot| slot.is_watching());
        self.sequence = sequence;
        if let Some(ack) = shared.word(block::WATCH_ACK) {
            ack.store(sequence, Ordering::Release);
        }
    }

    /// Whether any doorbell is watched.
    pub fn has_doorbells(&self) -> bool {
        self.watched
    }

    /// Collects rings: calls `rung` with each queue whose cell was written, and the value found there.
    pub fn collect(&mut self, tables: &Mapping, segments: &Segments, mut rung: impl FnMut(u16, u64)) {
        for process in self.processes.values_mut() {
            if process.cells.is_empty() {
                continue;
            }
            // While it is on the move nobody can ring; whoever did is found when it is there again.
            let summary =
                process.page(tables, segments).ok().and_then(|page| page.word(device_page::SUMMARY));
            let mut bits = summary.map_or(0, doorbell::take_rung);
            let Some(page) = process.page.as_ref() else { continue };
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                for &(cell, queue) in process.cells.get(&bit).map_or(&[][..], Vec::as_slice) {
                    if let Some(word) = page.word(device_page::cell(u32::from(cell))) {
                        rung(queue, word.load(Ordering::Acquire));
                    }
                }
            }
        }
    }
}

/// A word of the shared block, with acquire.
pub fn load(shared: &Mapping, offset: u64) -> u64 {
    shared.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
}

/// Takes the queues whose doorbell was connected or taken away: every one, though the slots may have changed more
/// than once since they were read.
fn take_looks(shared: &Mapping, look: &mut impl FnMut(u16)) {
    for index in 0..block::LOOK_WORDS {
        let Some(word) = shared.word(block::LOOK + index * 8) else { continue };
        // PAIRS WITH adapter/process.rs `ask_look`.
        let mut bits = if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) };
        while bits != 0 {
            let bit = u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            look(u16::try_from(index * 64 + bit).unwrap_or(u16::MAX));
        }
    }
}

/// An entry whose first word, its generation, is not zero: most are, and cost one load.
fn live<T: FromBytes>(shared: &Mapping, offset: u64) -> Option<T> {
    if load(shared, offset) == 0 { None } else { read(shared, offset) }
}

fn read<T: FromBytes>(shared: &Mapping, offset: u64) -> Option<T> {
    let slice = shared.slice(offset, size_of::<T>() as u64)?;
    let mut bytes = vec![0; size_of::<T>()];
    slice.copy_to(&mut bytes);
    T::read_from_bytes(&bytes).ok()
}

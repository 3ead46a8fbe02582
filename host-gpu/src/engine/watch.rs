//! What an engine watches: the processes, user-mode queues and doorbells of its vGPU.
//!
//! Built from the tables of the shared block whenever the watch sequence rises. A queue whose slot was taken
//! away gets its last look then, a queue whose slot is new its first; the daemon names them, since a slot may
//! have changed hands more than once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::device_page;
use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::slot::DoorbellSlot;
use campanile_protocol::handshake::doorbell;
use campanile_protocol::queue::doorbell::GLOBAL_HIDDEN;
use campanile_protocol::queue::doorbell::global_queue;

use super::process::Cell;
use super::process::Process;
use super::process::low_half;
use super::rescan::Rescan;
use super::suspension;
use super::user_queue::UserQueue;
use super::words::load;
use super::words::read;
use crate::ids::ContextIndex;
use crate::ids::ProcessIndex;
use crate::ids::QueueIndex;
use crate::memory::bits;
use crate::memory::mapping::Mapping;
use crate::memory::segment::Place;
use crate::memory::segment::Segments;

/// Everything watched.
#[derive(Debug, Default)]
pub struct Watch {
    sequence: u64,
    processes: BTreeMap<ProcessIndex, Process>,
    queues: BTreeMap<QueueIndex, UserQueue>,
    watched: bool,
    notified: bool,
}

impl Watch {
    /// Whether the tables changed since they were read.
    pub fn is_stale(&self, shared: &Mapping) -> bool {
        load(shared, block::WATCH_SEQUENCE) != self.sequence
    }

    /// The watch sequence of the tables as they were last read.
    pub fn sequence(&self) -> u64 {
        self.sequence
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
    pub fn process(&mut self, index: ProcessIndex) -> Option<&mut Process> {
        self.processes.get_mut(&index)
    }

    /// The process that a submission is of; none where it has ended, or is not known yet.
    pub fn process_of(&mut self, submission: &HwSubmission) -> Option<&mut Process> {
        let generation = submission.process_generation;
        self.process(ProcessIndex::new(submission.process))
            .filter(|process| low_half(process.entry.generation) == generation)
    }

    /// A queue with its process.
    pub fn queue(&mut self, index: QueueIndex) -> Option<(&mut UserQueue, &mut Process)> {
        let queue = self.queues.get_mut(&index)?;
        let process = self.processes.get_mut(&queue.process())?;
        Some((queue, process))
    }

    /// Reads the tables again. Calls `look` for each queue whose write pointer must be looked at (UMS-64,
    /// UMS-71), then acknowledges. The queues that are gone: context and number, which is another queue's perhaps.
    pub fn refresh(
        &mut self,
        shared: &Mapping,
        mut look: impl FnMut(QueueIndex),
    ) -> Vec<(ContextIndex, QueueIndex)> {
        let mut gone = Vec::new();
        // PAIRS WITH the daemon's release of the sequence, after the tables.
        let sequence = load(shared, block::WATCH_SEQUENCE);
        // Before the slots are read: a queue that is looked at here has its new slot below, and one that gets a slot
        // later is looked at later.
        // PAIRS WITH adapter/shared.rs `ask_look`.
        for queue in bits::take(shared, block::LOOK, block::LOOK_WORDS) {
            look(QueueIndex::new(u16::try_from(queue).unwrap_or(u16::MAX)));
        }
        let used = |word: u64, limit: u32| u32::try_from(load(shared, word)).unwrap_or(limit).min(limit);
        let slots: Vec<DoorbellSlot> = (0..used(block::USED_DOORBELLS, block::MAX_DOORBELLS))
            .map(|index| DoorbellSlot(load(shared, block::doorbell(index))))
            .collect();
        // A place is given another generation each time it is used: the same generation is the same queue. One that is
        // taken down while it is read is read again, since the sequence rises after that.
        for index in (0..used(block::USED_PROCESSES, block::MAX_PROCESSES)).map(ProcessIndex::new) {
            let generation = load(shared, block::process(index.get()));
            if self.processes.get(&index).map_or(0, |process| process.entry.generation) == generation {
                continue;
            }
            self.processes.remove(&index);
            if generation != 0
                && let Some(entry) = read::<ProcessEntry>(shared, block::process(index.get()))
                    .filter(|entry| entry.generation == generation)
            {
                let (cells, rescan) = (BTreeMap::new(), Rescan::default());
                self.processes.insert(index, Process { entry, page: None, cells, rescan });
            }
        }
        let queues = u16::try_from(used(block::USED_QUEUES, block::MAX_QUEUES)).unwrap_or(u16::MAX);
        for index in (0..queues).map(QueueIndex::new) {
            let generation = load(shared, block::queue(u32::from(index.get())));
            if self.queues.get(&index).map_or(0, UserQueue::generation) == generation {
                continue;
            }
            gone.extend(self.queues.remove(&index).map(|queue| (queue.context(), index)));
            if generation != 0
                && let Some(entry) = read::<QueueEntry>(shared, block::queue(u32::from(index.get())))
                    .filter(|entry| entry.generation == generation)
            {
                self.queues.insert(index, UserQueue::new(shared, index, entry));
            }
        }
        for queue in self.queues.values_mut() {
            queue.hold(suspension::of(shared, queue.context()).is_suspended);
        }
        self.watch_cells(&slots);
        self.notified = load(shared, block::NOTIFIED) != 0;
        suspension::report(shared);
        self.sequence = sequence;
        if let Some(ack) = shared.word(block::WATCH_ACK) {
            ack.store(sequence, Ordering::Release);
        }
        gone
    }

    fn watch_cells(&mut self, slots: &[DoorbellSlot]) {
        for process in self.processes.values_mut() {
            process.cells.clear();
            process.rescan.clear();
        }
        for slot in slots.iter().filter(|slot| slot.is_watching()) {
            let Some(process) = self.processes.get_mut(&ProcessIndex::new(u32::from(slot.process()))) else {
                continue;
            };
            if process.entry.global_cell == 0 {
                let bit = u32::from(slot.cell()) / device_page::CELLS_PER_SUMMARY_BIT;
                let cell = Cell { cell: slot.cell(), queue: QueueIndex::new(slot.queue()), seen: None };
                process.cells.entry(bit).or_default().push(cell);
            } else {
                process.rescan.connect(u32::from(slot.cell()), QueueIndex::new(slot.queue()));
            }
        }
        for process in self.processes.values_mut() {
            // What was owed when the slots changed.
            process.rescan.all();
        }
        self.watched = slots.iter().any(|slot| slot.is_watching());
    }

    /// The contexts of the queues, some perhaps more than once.
    pub fn contexts(&self) -> impl Iterator<Item = ContextIndex> {
        self.queues.values().map(UserQueue::context)
    }

    /// Whether any doorbell is watched.
    pub fn has_doorbells(&self) -> bool {
        self.watched
    }

    /// Whether doorbells are connected in notify mode.
    pub fn is_notified(&self) -> bool {
        self.notified
    }

    /// Whether queues behind a global cell are still to be looked at.
    pub fn owes_looks(&self) -> bool {
        self.processes.values().any(|process| process.rescan.is_due())
    }

    /// Where the rings of all processes show.
    pub fn peeks(&mut self, tables: &Mapping, segments: &Segments) -> Peeks {
        let processes = self.processes.values_mut();
        let peeks = processes.filter_map(|process| {
            let ProcessEntry { global_cell, summary, .. } = process.entry;
            let is_global = global_cell != 0;
            let own = if is_global {
                process.rescan.queues().map(|(cell, queue)| (queue, u64::from(cell))).collect()
            } else {
                process.own_bits()
            };
            let page = process.page(tables, segments).ok().filter(|_| !own.is_empty())?;
            let offset = page.offset + if is_global { global_cell } else { summary };
            Some(Peek { word: Place { mapping: Arc::clone(&page.mapping), offset }, is_global, own })
        });
        Peeks { peeks: peeks.collect() }
    }

    /// Collects rings: calls `rung` with each queue that may have been rung, and the value found in its cell; none
    /// where its write pointer must say.
    pub fn collect(
        &mut self,
        tables: &Mapping,
        segments: &Segments,
        mut rung: impl FnMut(QueueIndex, Option<u64>),
    ) {
        for process in self.processes.values_mut() {
            if process.cells.is_empty() && process.rescan.is_empty() {
                continue;
            }
            let ProcessEntry { global_cell, summary, .. } = process.entry;
            // While it is on the move no ring arrives; what was rung is found when it is there again.
            let Ok(page) = process.page(tables, segments) else { continue };
            if global_cell != 0 {
                let value = page.word(global_cell).map_or(0, doorbell::take_global);
                if value != 0
                    && let Some(queue) = process.rescan.rung(value)
                {
                    rung(queue, None);
                }
                process.rescan.step(|queue| rung(queue, None));
                continue;
            }
            let mut bits = page.word(summary).map_or(0, doorbell::take_rung);
            let Some(page) = process.page.as_ref() else { continue };
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                for cell in process.cells.get_mut(&bit).into_iter().flatten() {
                    let Some(word) = page.word(device_page::cell(u32::from(cell.cell))) else { continue };
                    let value = word.load(Ordering::Acquire);
                    if cell.seen.replace(value) != Some(value) {
                        rung(cell.queue, Some(value));
                    }
                }
            }
        }
    }
}

/// Where rings show before they are collected: what an engine in the middle of a buffer looks at.
#[derive(Debug, Default)]
pub struct Peeks {
    peeks: Vec<Peek>,
}

/// One process's summary word, or global cell.
#[derive(Debug)]
struct Peek {
    word: Place,
    is_global: bool,
    /// What each queue rings alone: the bits of its cell in the summary word, or its index behind the global cell.
    own: BTreeMap<QueueIndex, u64>,
}

impl Peeks {
    /// Whether a doorbell has rung since the last collection: of another queue than `queue`, as far as that can be
    /// told.
    pub fn has_other_ring(&self, queue: Option<QueueIndex>) -> bool {
        self.peeks.iter().any(|peek| {
            let value = peek.word.word(0).map_or(0, |word| word.load(Ordering::Relaxed));
            let own = queue.and_then(|queue| peek.own.get(&queue)).copied();
            if peek.is_global {
                let named = global_queue(value).filter(|_| value & GLOBAL_HIDDEN == 0);
                value != 0 && (own.is_none() || named.map(|(_, index)| u64::from(index)) != own)
            } else {
                value & !own.unwrap_or(0) != 0
            }
        })
    }
}

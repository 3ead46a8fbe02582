//! Guest processes, user-mode queues and doorbells of an engine: the tables that it watches.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::slot::DoorbellSlot;
use campanile_protocol::handshake::fence;
use zerocopy::IntoBytes;

use super::error::AdapterError;
use super::indices::Indices;
use super::shared::SharedBlock;
use crate::engine::save_area;
use crate::engine::words::load;
use crate::ids::DoorbellIndex;
use crate::ids::ProcessIndex;
use crate::ids::QueueIndex;
use crate::memory::bits;
use crate::memory::mapping::Mapping;

/// How far a user-mode queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueuePlace {
    /// Ring entries consumed, ever.
    pub consumed: u64,
    /// Progress fence value of the last of them.
    pub completed: u64,
    /// Whether the buffer of the next entry was put aside: then its save area says how far it is.
    pub is_saved: bool,
}

impl QueuePlace {
    /// That of a queue, as a shared block says it.
    pub(super) fn of(block: &Mapping, queue: QueueIndex) -> Self {
        let base = block::queue(u32::from(queue.get()));
        let consumed = load(block, base + block::QUEUE_CONSUMED);
        Self {
            consumed,
            completed: load(block, base + block::QUEUE_COMPLETED),
            is_saved: save_area::is_saved(block, base + block::QUEUE_SAVED, consumed),
        }
    }
}

/// The tables, and which of their places are taken.
#[derive(Debug)]
pub struct Tables {
    shared: Arc<SharedBlock>,
    processes: Indices,
    queues: Indices,
    doorbell_generation: u16,
    notified: u64,
}

impl Tables {
    pub(super) fn new(shared: Arc<SharedBlock>) -> Self {
        Self {
            shared,
            processes: Indices::new(block::MAX_PROCESSES),
            queues: Indices::new(block::MAX_QUEUES),
            doorbell_generation: 0,
            notified: 0,
        }
    }

    pub(super) fn create_process(&mut self, entry: ProcessEntry) -> Result<ProcessIndex, AdapterError> {
        let shared = &self.shared;
        let (index, generation) =
            self.processes.take(shared.acknowledged()).ok_or(AdapterError::Full("process entry"))?;
        shared.write(block::process(index), ProcessEntry { generation: 0, ..entry }.as_bytes());
        shared.store(block::process(index), generation);
        shared.uses(block::USED_PROCESSES, index);
        shared.changed();
        Ok(ProcessIndex::new(index))
    }

    pub(super) fn destroy_process(&mut self, process: ProcessIndex) {
        self.shared.store(block::process(process.get()), 0);
        self.shared.changed();
        self.processes.retire(process.get(), self.shared.sequence());
    }

    /// A user-mode queue, at its beginning or where another engine put it aside: `entry` says what was consumed, and where the
    /// next buffer `is_saved` its save area says how far that is.
    ///
    /// # Errors
    /// The table is full.
    pub fn put_queue(&mut self, entry: QueueEntry, is_saved: bool) -> Result<QueueIndex, AdapterError> {
        let shared = &self.shared;
        let (index, generation) =
            self.queues.take(shared.acknowledged()).ok_or(AdapterError::Full("queue entry"))?;
        let place = block::queue(index);
        let words = [
            (block::QUEUE_CONSUMED, entry.consumed),
            (block::QUEUE_COMPLETED, entry.completed),
            (block::QUEUE_FAULT, 0),
            (block::QUEUE_FAULT_VA, 0),
            (block::QUEUE_DRAIN, 0),
            (block::QUEUE_DRAINED, 0),
            (block::QUEUE_SAVED, if is_saved { entry.consumed.wrapping_add(1) } else { 0 }),
        ];
        for (offset, value) in words {
            shared.store(place + offset, value);
        }
        shared.store(place + block::QUEUE_MONITORED, fence::NOBODY);
        shared.write(place, QueueEntry { generation: 0, ..entry }.as_bytes());
        shared.store(place, generation);
        shared.uses(block::USED_QUEUES, index);
        shared.changed();
        u16::try_from(index).map(QueueIndex::new).map_err(|_| AdapterError::Full("queue entry"))
    }

    pub(super) fn destroy_queue(&mut self, queue: QueueIndex) {
        self.shared.store(block::queue(u32::from(queue.get())), 0);
        self.shared.changed();
        self.queues.retire(u32::from(queue.get()), self.shared.sequence());
    }

    pub(super) fn connect_doorbell(
        &mut self,
        slot: DoorbellIndex,
        queue: QueueIndex,
        process: ProcessIndex,
        cell: u16,
    ) {
        self.doorbell_generation = self.doorbell_generation.wrapping_add(1);
        let process = u16::try_from(process.get()).unwrap_or(u16::MAX);
        let watched = DoorbellSlot::watch(queue.get(), process, cell, self.doorbell_generation);
        self.shared.store(block::doorbell(slot.get()), watched.0);
        self.shared.uses(block::USED_DOORBELLS, slot.get());
        self.shared.ask_look(queue);
        self.shared.change();
    }

    pub(super) fn disconnect_doorbell(&mut self, slot: DoorbellIndex) {
        // The engine could have changed the word, and then loses a look at a queue of its own.
        let held = DoorbellSlot(self.shared.load(block::doorbell(slot.get())));
        self.shared.store(block::doorbell(slot.get()), DoorbellSlot::FREE.0);
        if held.is_watching() {
            self.shared.ask_look(QueueIndex::new(held.queue()));
        }
        self.shared.changed();
    }

    pub(super) fn connect_notified(&mut self, queue: QueueIndex) {
        self.set_notified(self.notified + 1, queue);
    }

    pub(super) fn disconnect_notified(&mut self, queue: QueueIndex) {
        self.set_notified(self.notified.saturating_sub(1), queue);
    }

    fn set_notified(&mut self, count: u64, queue: QueueIndex) {
        self.notified = count;
        self.shared.store(block::NOTIFIED, count);
        self.shared.ask_look(queue);
        self.shared.changed();
    }

    pub(super) fn notify(&self, queue: QueueIndex) {
        // Where it is owed already, the sequence has risen since, and the engine has not seen it yet.
        if self.shared.ask_look(queue) {
            self.shared.changed();
        }
    }

    /// How far a user-mode queue is: by the word of the engine, which has ended.
    pub fn queue_place(&self, queue: QueueIndex) -> QueuePlace {
        QueuePlace::of(&self.shared.mapping, queue)
    }

    /// Queues that want attention since the last call.
    pub fn take_attention(&self) -> Vec<QueueIndex> {
        let queues = bits::take(&self.shared.mapping, block::ATTENTION, block::ATTENTION_WORDS);
        queues.into_iter().map(|queue| QueueIndex::new(u16::try_from(queue).unwrap_or(0))).collect()
    }

    /// The fault that stopped a queue: code and address.
    pub fn queue_fault(&self, queue: QueueIndex) -> Option<(u32, u64)> {
        let base = block::queue(u32::from(queue.get()));
        let fault = u32::try_from(self.shared.load(base + block::QUEUE_FAULT)).unwrap_or(u32::MAX);
        (fault != 0).then(|| (fault, self.shared.load(base + block::QUEUE_FAULT_VA)))
    }

    /// Has the engine say when a queue, whose doorbell is disconnected, has nothing left to run.
    pub fn drain_queue(&self, queue: QueueIndex) {
        self.shared.store(block::queue(u32::from(queue.get())) + block::QUEUE_DRAIN, 1);
        // Rung or not: the last look tells what there is.
        self.shared.ask_look(queue);
        self.shared.changed();
    }

    /// Whether it has said so.
    pub fn queue_is_drained(&self, queue: QueueIndex) -> bool {
        self.shared.load(block::queue(u32::from(queue.get())) + block::QUEUE_DRAINED) != 0
    }

    /// The last progress fence value that the engine says it stored for a queue.
    pub fn queue_completed(&self, queue: QueueIndex) -> u64 {
        self.shared.load(block::queue(u32::from(queue.get())) + block::QUEUE_COMPLETED)
    }

    /// Sets what a queue's waiters wait for, and returns the CurrentValue read after it, from `current`.
    pub fn monitor(&self, queue: QueueIndex, smallest: Option<u64>, current: &AtomicU64) -> u64 {
        let place = block::queue(u32::from(queue.get())) + block::QUEUE_MONITORED;
        self.shared.word(place).map_or(0, |word| fence::monitor(current, word, smallest))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use campanile_protocol::engine::block;
    use campanile_protocol::engine::block::QueueEntry;

    use super::SharedBlock;
    use super::Tables;
    use crate::ids::DoorbellIndex;
    use crate::ids::ProcessIndex;
    use crate::ids::QueueIndex;
    use crate::memory::bits;

    fn tables() -> (Arc<SharedBlock>, Tables) {
        let shared = Arc::new(SharedBlock::new().unwrap());
        (Arc::clone(&shared), Tables::new(shared))
    }

    #[test]
    fn ums_64_ums_71_a_ring_is_looked_at_when_its_doorbell_comes_and_when_it_goes() {
        let (shared, mut tables) = tables();
        let looks = || bits::take(&shared.mapping, block::LOOK, block::LOOK_WORDS);
        let sequence = shared.sequence();
        tables.connect_doorbell(DoorbellIndex::new(2), QueueIndex::new(5), ProcessIndex::new(1), 0);
        assert_eq!((looks(), shared.sequence()), (vec![5], sequence + 1));
        tables.disconnect_doorbell(DoorbellIndex::new(2));
        assert_eq!((looks(), shared.sequence()), (vec![5], sequence + 2));
        tables.disconnect_doorbell(DoorbellIndex::new(2));
        assert_eq!(looks(), Vec::<u32>::new(), "no engine had it");
        tables.connect_notified(QueueIndex::new(6));
        assert_eq!((looks(), shared.load(block::NOTIFIED)), (vec![6], 1));
        let sequence = shared.sequence();
        tables.notify(QueueIndex::new(6));
        tables.notify(QueueIndex::new(6));
        assert_eq!((looks(), shared.sequence()), (vec![6], sequence + 1), "once asked is enough");
        tables.disconnect_notified(QueueIndex::new(6));
        assert_eq!((looks(), shared.load(block::NOTIFIED)), (vec![6], 0));
    }

    #[test]
    fn a_queue_entry_is_given_again_only_after_the_engine_has_acknowledged_its_end() {
        let (shared, mut tables) = tables();
        shared.set_lost(false);
        let all = u16::try_from(block::MAX_QUEUES).unwrap();
        for queue in 0..all {
            assert_eq!(tables.put_queue(QueueEntry::default(), false).unwrap(), QueueIndex::new(queue));
        }
        tables.destroy_queue(QueueIndex::new(3));
        assert!(tables.put_queue(QueueEntry::default(), false).is_err());
        shared.store(block::WATCH_ACK, shared.sequence());
        assert_eq!(tables.put_queue(QueueEntry::default(), false).unwrap(), QueueIndex::new(3));
    }

    #[test]
    fn a_queue_goes_on_where_another_engine_put_it_aside() {
        let (_, mut tables) = tables();
        let entry = QueueEntry { consumed: 7, completed: 5, ..QueueEntry::default() };
        for is_saved in [false, true] {
            let queue = tables.put_queue(entry, is_saved).unwrap();
            let place = tables.queue_place(queue);
            assert_eq!((place.consumed, place.completed, place.is_saved), (7, 5, is_saved));
        }
    }
}

//! The shared block of one engine, and the events beside it: what every part of its handle reads and stores.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::handshake::fence;
use campanile_protocol::handshake::power;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::event::Event;
use crate::ids::QueueIndex;
use crate::memory::bits;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::vram;

/// What the supervisor needs of an engine to give it the node and take it back.
#[derive(Debug, Clone)]
pub struct GrantHandle {
    /// The shared block.
    pub shared: Arc<Mapping>,
    /// The file that it lies in.
    pub file: Arc<File>,
    /// Wakes the engine.
    pub wake: Arc<Event>,
    /// The engine wants the node, gives it back, or has something to say of it. The engine may signal, drain and change it at
    /// will: a read of it may wait for ever.
    pub asks: Arc<Event>,
    /// The process, where there is one: its end gives the node back.
    pub process: Option<u32>,
}

/// A shared block. It outlives the processes that work on it, one after the other.
#[derive(Debug)]
pub(super) struct SharedBlock {
    pub(super) file: Arc<File>,
    pub(super) mapping: Arc<Mapping>,
    /// The engine has something to report.
    pub(super) event: Event,
    /// Wakes the engine.
    pub(super) wake: Arc<Event>,
    /// The engine wants its node, or gives it back.
    pub(super) asks: Arc<Event>,
    /// The watch sequence of the last change. The word in the block is a copy: the engine could store there.
    sequence: AtomicU64,
    /// No process works on it: what was asked of one counts as done.
    is_lost: AtomicBool,
}

impl SharedBlock {
    /// A block that no process works on.
    ///
    /// # Errors
    /// Memory or descriptors could not be had.
    pub(super) fn new() -> io::Result<Self> {
        let file = vram::create_memfd("campanile-engine-block", block::BLOCK_BYTES)?;
        let mapping = Mapping::new(file.try_clone()?, 0, block::BLOCK_BYTES, Access::ReadWrite)
            .map_err(io::Error::other)?;
        let shared = Self {
            file: Arc::new(file),
            mapping: Arc::new(mapping),
            event: Event::new()?,
            wake: Arc::new(Event::new()?),
            asks: Arc::new(Event::new()?),
            sequence: AtomicU64::new(0),
            is_lost: AtomicBool::new(true),
        };
        for queue in 0..block::MAX_QUEUES {
            shared.store(block::queue(queue) + block::QUEUE_MONITORED, fence::NOBODY);
        }
        shared.store(block::LISTENER, power::ASLEEP);
        Ok(shared)
    }

    /// A word; zero outside of the block.
    pub(super) fn load(&self, offset: u64) -> u64 {
        self.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub(super) fn store(&self, offset: u64, value: u64) {
        if let Some(word) = self.word(offset) {
            word.store(value, Ordering::Release);
        }
    }

    pub(super) fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.mapping.word(offset)
    }

    /// A structure, as it is at this moment: the engine may be writing it.
    pub(super) fn read<T: FromBytes + IntoBytes>(&self, place: u64) -> Option<T> {
        let mut value = T::new_zeroed();
        self.mapping.slice(place, size_of::<T>() as u64)?.copy_to(value.as_mut_bytes());
        Some(value)
    }

    pub(super) fn write(&self, place: u64, bytes: &[u8]) {
        if let Some(slice) = self.mapping.slice(place, bytes.len() as u64) {
            slice.copy_from(bytes);
        }
    }

    /// Whether no process works on it.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    pub(super) fn set_lost(&self, is_lost: bool) {
        self.is_lost.store(is_lost, Ordering::Relaxed);
    }

    /// Has an engine that sleeps, or naps, look at what it waits for.
    pub(super) fn poke(&self) {
        if self.word(block::POWER).is_some_and(power::needs_poke) {
            self.wake.signal();
        }
    }

    /// Has the engine look at a queue's write pointer when it next looks at the slots (UMS-64, UMS-71). False when
    /// that was asked already, and the engine has not looked yet.
    pub(super) fn ask_look(&self, queue: QueueIndex) -> bool {
        // PAIRS WITH engine/watch.rs `refresh`: the slot has changed before.
        u32::from(queue.get()) < block::MAX_QUEUES
            && bits::raise(&self.mapping, block::LOOK, u32::from(queue.get()))
    }

    pub(super) fn changed(&self) {
        self.change();
        self.poke();
    }

    pub(super) fn change(&self) {
        let sequence = self.sequence.load(Ordering::Relaxed) + 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        // PAIRS WITH engine/watch.rs `refresh`.
        self.store(block::WATCH_SEQUENCE, sequence);
    }

    /// The engine has to look at a table up to this place; before the watch sequence.
    pub(super) fn uses(&self, word: u64, index: u32) {
        self.store(word, self.load(word).max(u64::from(index) + 1));
    }

    /// The watch sequence of the last change.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// The last watch sequence that the engine has acted on; a lost engine has acted on all.
    pub(super) fn acknowledged(&self) -> u64 {
        if self.is_lost() { u64::MAX } else { self.load(block::WATCH_ACK).min(self.sequence()) }
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::engine::block;
    use campanile_protocol::handshake::fence;
    use campanile_protocol::handshake::power;

    use super::SharedBlock;

    #[test]
    fn a_new_block_has_no_process_no_waiter_and_no_listener() {
        let shared = SharedBlock::new().unwrap();
        assert!(shared.is_lost());
        assert_eq!(shared.load(block::queue(0) + block::QUEUE_MONITORED), fence::NOBODY);
        assert_eq!(shared.load(block::LISTENER), power::ASLEEP);
        assert_eq!((shared.load(u64::MAX), shared.load(block::BLOCK_BYTES)), (0, 0), "outside of it");
    }

    #[test]
    fn an_engine_acknowledges_no_more_than_it_was_told_and_a_lost_one_all() {
        let shared = SharedBlock::new().unwrap();
        shared.change();
        shared.change();
        assert_eq!((shared.sequence(), shared.load(block::WATCH_SEQUENCE)), (2, 2));
        assert_eq!(shared.acknowledged(), u64::MAX);
        shared.set_lost(false);
        assert_eq!(shared.acknowledged(), 0);
        shared.store(block::WATCH_ACK, u64::MAX);
        assert_eq!(shared.acknowledged(), 2);
        // The engine's own store to the word changes nothing of that.
        shared.store(block::WATCH_SEQUENCE, 9);
        assert_eq!(shared.sequence(), 2);
    }

    #[test]
    fn a_table_is_used_up_to_the_greatest_place_of_it() {
        let shared = SharedBlock::new().unwrap();
        for (index, used) in [(3, 4), (1, 4), (7, 8)] {
            shared.uses(block::USED_QUEUES, index);
            assert_eq!(shared.load(block::USED_QUEUES), used);
        }
    }
}

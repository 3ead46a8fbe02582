//! What an engine reports through the shared block, and how the daemon listens.

use crate::memory::bits;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::engine::block;
use campanile_protocol::handshake::fence;
use campanile_protocol::handshake::power;

use super::process::EngineProcess;

impl EngineProcess {
    /// Tells the engine that the next completion will be seen without a signal. False when the engine sleeps,
    /// and so will take long.
    pub fn listen(&self) -> bool {
        self.store(block::LISTENER, power::ACTIVE);
        self.load(block::POWER) == power::ACTIVE
    }

    /// Polls for a completion for `limit`, then has the engine signal again. True when one is there.
    pub fn stop_listening(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        let is_there = || self.load(block::HW_QUEUE_COMPLETED) > self.completed;
        while !is_there() && begun.elapsed() < limit {
            std::hint::spin_loop();
        }
        // PAIRS WITH engine/steps.rs `tell_of_results`: the engine signals, or the completion is seen here.
        let sleeps = self
            .shared
            .word(block::LISTENER)
            .is_some_and(|word| power::may_block(word, power::ASLEEP, is_there));
        if !sleeps {
            self.store(block::LISTENER, power::ASLEEP);
        }
        !sleeps
    }

    /// Whether the engine wishes for F1. The caller disconnects all doorbells, and only then calls
    /// [`Self::allow_f1`] (UMS-118).
    pub fn wishes_f1(&self) -> bool {
        self.load(block::POWER) == power::F1_WANTED
    }

    /// Whether the engine reports that it cannot go on (UMS-121, TDR-23).
    pub fn says_hung(&self) -> bool {
        self.load(block::POWER) == power::HUNG
    }

    /// Whether the engine is in F1.
    pub fn is_asleep(&self) -> bool {
        self.load(block::POWER) == power::ASLEEP
    }

    /// Rings since the last call that only a look found. The engine's own word for it: good for counting alone.
    pub fn take_found_by_look(&mut self) -> u64 {
        let found = self.load(block::FOUND_BY_LOOK);
        found.saturating_sub(std::mem::replace(&mut self.found_by_look, found))
    }

    /// Queues that want attention since the last call.
    pub fn take_attention(&self) -> Vec<u16> {
        let queues = bits::take(&self.shared, block::ATTENTION, block::ATTENTION_WORDS);
        queues.into_iter().map(|queue| u16::try_from(queue).unwrap_or(0)).collect()
    }

    /// The fault that stopped a queue: code and address.
    pub fn queue_fault(&self, queue: u16) -> Option<(u32, u64)> {
        let base = block::queue(u32::from(queue));
        let fault = u32::try_from(self.load(base + block::QUEUE_FAULT)).unwrap_or(u32::MAX);
        (fault != 0).then(|| (fault, self.load(base + block::QUEUE_FAULT_VA)))
    }

    /// Has the engine say when a queue, whose doorbell is disconnected, has nothing left to run.
    pub fn drain_queue(&mut self, queue: u16) {
        self.store(block::queue(u32::from(queue)) + block::QUEUE_DRAIN, 1);
        // Rung or not: the last look tells what there is.
        self.ask_look(queue);
        self.changed();
    }

    /// Whether it has said so.
    pub fn queue_is_drained(&self, queue: u16) -> bool {
        self.load(block::queue(u32::from(queue)) + block::QUEUE_DRAINED) != 0
    }

    /// The last progress fence value that the engine says it stored for a queue.
    pub fn queue_completed(&self, queue: u16) -> u64 {
        self.load(block::queue(u32::from(queue)) + block::QUEUE_COMPLETED)
    }

    /// Sets what a queue's waiters wait for, and returns the CurrentValue read after it, from `current`.
    pub fn monitor(&self, queue: u16, smallest: Option<u64>, current: &AtomicU64) -> u64 {
        let place = block::queue(u32::from(queue)) + block::QUEUE_MONITORED;
        self.shared.word(place).map_or(0, |word| fence::monitor(current, word, smallest))
    }
}

//! What an engine that has ended leaves behind, and what one that was never started takes over (LM-47 to LM-50).
//!
//! ```text
//!   engine there: killed ─▶ buffers handed back ─▶ places of queues, suspends ──state──▶ block without a process here
//!                                                                                             └─▶ revive
//! ```
//!
//! Nothing here is called while a process runs: all words of the block are the daemon's then.

use campanile_protocol::engine::block;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HW_SAVED;
use campanile_protocol::engine::hw_queue::HW_SUSPENDED;
use campanile_protocol::engine::hw_queue::HwResult;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::suspension::Suspension;
use campanile_protocol::handshake::fence;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::Adapter;
use super::error::AdapterError;
use super::process::EngineProcess;
use crate::engine::save_area;

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

impl EngineProcess {
    /// How far a user-mode queue is: by the word of the engine, which has ended.
    pub fn queue_place(&self, queue: u16) -> QueuePlace {
        let base = block::queue(u32::from(queue));
        let consumed = self.load(base + block::QUEUE_CONSUMED);
        QueuePlace {
            consumed,
            completed: self.load(base + block::QUEUE_COMPLETED),
            is_saved: save_area::is_saved(&self.shared, base + block::QUEUE_SAVED, consumed),
        }
    }

    /// A user-mode queue, at its beginning or where another engine put it aside.
    pub(super) fn put_hw_queue(&mut self, entry: QueueEntry, is_saved: bool) -> Result<u16, AdapterError> {
        let acknowledged = self.watch_acknowledged();
        let (index, generation) = self.queues.take(acknowledged).ok_or(AdapterError::Full("queue entry"))?;
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
            self.store(place + offset, value);
        }
        self.store(place + block::QUEUE_MONITORED, fence::NOBODY);
        if let Some(slice) = self.shared.slice(place, size_of::<QueueEntry>() as u64) {
            slice.copy_from(QueueEntry { generation: 0, ..entry }.as_bytes());
        }
        self.store(place, generation);
        self.uses(block::USED_QUEUES, index);
        self.changed();
        u16::try_from(index).map_err(|_| AdapterError::Full("queue entry"))
    }

    /// A user-mode queue that another engine had; `entry` says what was consumed, and where the next buffer `is_saved` its
    /// save area says how far that is.
    ///
    /// # Errors
    /// The table is full.
    pub fn take_over_queue(&mut self, entry: QueueEntry, is_saved: bool) -> Result<u16, AdapterError> {
        self.put_hw_queue(entry, is_saved)
    }

    /// A context that another engine had, and its suspends so far, all of them reported.
    ///
    /// # Errors
    /// The table is full.
    pub fn take_over_context(&mut self, suspends: Suspension, area_va: u64) -> Result<u32, AdapterError> {
        let context = self.create_context(area_va)?;
        self.contexts.put(context, suspends);
        self.store(block::context_request(context), suspends.word());
        self.store(block::context_report(context), suspends.fence);
        Ok(context)
    }

    /// Hands back, in the place of the process that has ended, every kernel-mode buffer that it had and had not done:
    /// as an engine does for a context that is suspended. They are collected like any other result.
    pub fn hand_back_all(&mut self) {
        if !self.is_lost() {
            return;
        }
        let completed = self.load(block::HW_QUEUE_COMPLETED).min(self.submitted);
        for count in completed..self.submitted {
            let mut bytes = [0; size_of::<HwSubmission>()];
            if let Some(slice) = self.shared.slice(hw_queue::slot(count), bytes.len() as u64) {
                slice.copy_to(&mut bytes);
            }
            let submission = HwSubmission::read_from_bytes(&bytes).unwrap_or_default();
            let is_saved = submission.flags & HW_SAVED != 0
                || save_area::is_saved(&self.shared, block::HW_QUEUE_SAVED, count);
            let result = HwResult {
                fence_id: submission.fence_id,
                fault: HW_SUSPENDED,
                is_saved: u32::from(is_saved),
                ..HwResult::default()
            };
            let place = hw_queue::slot(count) + hw_queue::RESULT;
            if let Some(slice) = self.shared.slice(place, size_of::<HwResult>() as u64) {
                slice.copy_from(result.as_bytes());
            }
            self.store(block::HW_QUEUE_COMPLETED, count + 1);
        }
        self.report_preemption();
    }
}

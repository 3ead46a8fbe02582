//! What there is to say of an engine that is about to be reset (TDR-28, TDR-81).

use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;
use zerocopy::FromBytes;

use super::process::EngineProcess;
use crate::engine::save_area;

/// The state of an engine at one moment. The engine may have written anything into its own words: these are claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebugInfo {
    /// What it runs, and how often it got further.
    pub progress: Progress,
    /// Whether it has the node, and was asked to yield.
    pub phase: Phase,
    /// The power word.
    pub power: u64,
    /// Id of the last kernel-mode buffer that completed.
    pub last_completed: u64,
    /// Id of the last one submitted.
    pub last_submitted: u64,
    /// The oldest kernel-mode buffer in the hardware queue.
    pub hw_buffer: Option<HwSubmission>,
    /// Entries that the user-mode queue had consumed whose buffer it runs.
    pub ring_consumed: u64,
    /// The value that the queue's progress fence had reached.
    pub ring_completed: u64,
    /// The name of the buffer in its save area, where it was put aside since it was begun.
    pub saved: Option<u64>,
    /// Handle of the kernel that it runs, and the bytes of packets before the one that started it.
    pub launched: Option<(u64, u64)>,
    /// Changes of the tables, and how many of them it has acted on.
    pub watch: (u64, u64),
    /// Changes of page tables, and how many of them it has acted on.
    pub page_tables: (u64, u64),
}

impl EngineProcess {
    /// See [`super::Adapter::collect_debug_info`].
    pub(super) fn debug_info(&self) -> DebugInfo {
        let progress = Progress::from_word(self.load(block::PROGRESS));
        let completed = self.load(block::HW_QUEUE_COMPLETED).min(self.submitted);
        let hw_buffer = (completed < self.submitted).then(|| self.submission(completed)).flatten();
        let of_queue = |word: u64| match progress.work {
            Work::UserQueue(queue) if u32::from(queue) < block::MAX_QUEUES => {
                self.load(block::queue(u32::from(queue)) + word)
            }
            _ => 0,
        };
        let consumed = of_queue(block::QUEUE_CONSUMED);
        let saved = match progress.work {
            Work::Nothing => None,
            Work::HwQueue => hw_buffer
                .filter(|_| save_area::is_saved(&self.shared, block::HW_QUEUE_SAVED, completed))
                .map(|buffer| buffer.number),
            Work::UserQueue(queue) if u32::from(queue) < block::MAX_QUEUES => {
                let place = block::queue(u32::from(queue)) + block::QUEUE_SAVED;
                save_area::is_saved(&self.shared, place, consumed).then_some(consumed)
            }
            Work::UserQueue(_) => None,
        };
        DebugInfo {
            progress,
            phase: Grant::from_word(self.load(block::GRANT)).phase,
            power: self.load(block::POWER),
            last_completed: self.last_completed,
            last_submitted: self.last_submitted,
            hw_buffer,
            ring_consumed: consumed,
            ring_completed: of_queue(block::QUEUE_COMPLETED),
            saved,
            launched: match self.load(block::LAUNCHED) {
                0 => None,
                kernel => Some((kernel, self.load(block::LAUNCHED_AT))),
            },
            watch: (self.load(block::WATCH_SEQUENCE), self.load(block::WATCH_ACK)),
            page_tables: (self.load(block::PAGE_TABLE_GENERATION), self.load(block::PAGE_TABLE_ACK)),
        }
    }

    /// The `count`-th kernel-mode buffer.
    pub(super) fn submission(&self, count: u64) -> Option<HwSubmission> {
        let mut bytes = [0; size_of::<HwSubmission>()];
        let slice = self.shared.slice(hw_queue::slot(count), bytes.len() as u64)?;
        slice.copy_to(&mut bytes);
        HwSubmission::read_from_bytes(&bytes).ok()
    }
}

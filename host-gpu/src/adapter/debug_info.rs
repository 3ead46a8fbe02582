//! What there is to say of an engine that is about to be reset (TDR-28, TDR-81).

use campanile_protocol::engine::block;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;

use super::hw_queue::HwQueue;
use super::shared::SharedBlock;
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

/// See [`super::ddi::Adapter::collect_debug_info`].
pub(super) fn debug_info(shared: &SharedBlock, queue: &HwQueue) -> DebugInfo {
    let progress = Progress::from_word(shared.load(block::PROGRESS));
    let oldest = queue.oldest();
    let (last_submitted, last_completed) = queue.last_ids();
    let of_queue = |word: u64| match progress.work {
        Work::UserQueue(index) if u32::from(index) < block::MAX_QUEUES => {
            shared.load(block::queue(u32::from(index)) + word)
        }
        _ => 0,
    };
    let consumed = of_queue(block::QUEUE_CONSUMED);
    let saved = match progress.work {
        Work::Nothing => None,
        Work::HwQueue => oldest.filter(|(count, _)| queue.is_saved(*count)).map(|(_, buffer)| buffer.number),
        Work::UserQueue(index) if u32::from(index) < block::MAX_QUEUES => {
            let place = block::queue(u32::from(index)) + block::QUEUE_SAVED;
            save_area::is_saved(&shared.mapping, place, consumed).then_some(consumed)
        }
        Work::UserQueue(_) => None,
    };
    DebugInfo {
        progress,
        phase: Grant::from_word(shared.load(block::GRANT)).phase,
        power: shared.load(block::POWER),
        last_completed,
        last_submitted,
        hw_buffer: oldest.map(|(_, buffer)| buffer),
        ring_consumed: consumed,
        ring_completed: of_queue(block::QUEUE_COMPLETED),
        saved,
        launched: match shared.load(block::LAUNCHED) {
            0 => None,
            kernel => Some((kernel, shared.load(block::LAUNCHED_AT))),
        },
        watch: (shared.load(block::WATCH_SEQUENCE), shared.load(block::WATCH_ACK)),
        page_tables: (shared.load(block::PAGE_TABLE_GENERATION), shared.load(block::PAGE_TABLE_ACK)),
    }
}

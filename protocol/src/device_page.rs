//! The shared page set of one guest process: doorbells, status words, fences, responses.
//!
//! The guest names the memory when it creates its device; it belongs to that process alone, so nothing in
//! it is shared between processes (UMS-17). The daemon and the engines reach it by (segment, offset).
//!
//! | part | written by | read by |
//! |---|---|---|
//! | summary words, one an engine | guest (or), the engine (swap) | the engine |
//! | doorbell cells | guest; daemon, zero, when the doorbell is made | engine |
//! | global cells | guest (swap), engine (swap with zero) | engine |
//! | status words | daemon, a copy of its own truth | guest |
//! | progress fences | engine; daemon when a device is lost | guest, engines |
//! | last-queued words | guest | daemon |
//! | responses | daemon | guest |
//! | device status, paging fence, budget | daemon | guest |

use crate::capset::MAX_ENGINES;
use crate::capset::MAX_NODES;
use crate::engine::save_area::DEVICE_AREA_BYTES;
use crate::engine::save_area::QUEUES_IN_CONTEXT_AREA;
use crate::engine::save_area::SLOT_BYTES;
use crate::page_table::PAGE_SIZE;

/// Queues with a doorbell, a status word and a fence in one device page.
pub const MAX_QUEUES: u32 = 1024;
const _: () = assert!(
    (MAX_QUEUES - QUEUES_IN_CONTEXT_AREA + 1) as u64 * SLOT_BYTES <= DEVICE_AREA_BYTES,
    "every queue has a slot in a save area"
);
/// Cells that one bit of the summary word stands for.
pub const CELLS_PER_SUMMARY_BIT: u32 = 16;
/// Control messages that can be unanswered at once.
pub const RESPONSE_SLOTS: u32 = 32;
/// Bytes of one response slot.
pub const RESPONSE_SLOT_BYTES: u64 = 1024;
/// Bytes of a doorbell (UMS-20).
pub const DOORBELL_BYTES: u32 = 8;

/// A cache line for each engine.
const ENGINE_LINES: u64 = (MAX_ENGINES * MAX_NODES * 64) as u64;
const WORDS: u64 = MAX_QUEUES as u64 * 8;

/// [`DEVICE_ACTIVE`] and the like.
pub const DEVICE_STATUS: u64 = 64;
/// Why the device is lost: reason of the reset (TDR-74) in bits 0 to 31, `LOSS_*` in bits 32 to 63; zero where no reset
/// was the cause. Stored before [`DEVICE_STATUS`]; daemon.
pub const LOSS: u64 = 72;
/// Number of the daemon's report on it, for the operator to find; zero where there is none. As [`LOSS`].
pub const LOSS_REPORT: u64 = 80;
/// Bytes of video memory that the VM can have as things are, what it has included: rises and falls with what other VMs
/// take. A hint, kept up to date within a 64th of what VMs share; daemon.
pub const BUDGET: u64 = 88;
/// Not zero: the device is about to be taken away from this VM, and comes back. The process is to say
/// [`crate::control::away::PARK_DEVICE`], close the device, and wait for the next; see there. Daemon.
pub const LEAVE: u64 = 96;
/// In [`LOSS`]: this device's own work was the cause.
pub const LOSS_PRIMARY: u64 = 0;
/// In [`LOSS`]: other work was the cause (TDR-64).
pub const LOSS_COLLATERAL: u64 = 1;
/// Last paging operation that is done.
pub const PAGING_FENCE: u64 = 128;
/// Global cells, one a node of each physical adapter, a cache line each (UMS-08): in the global model all queues of this
/// process on that engine ring there. Holds [`crate::queue::doorbell::global_value`] of the last ring, or zero once the engine took it.
pub const GLOBAL_CELLS: u64 = 2048;
/// Summary words, one a node of each physical adapter, a cache line each. Bit i: one of the cells 16·i .. 16·i+15 was
/// rung that are of queues on that engine. Engines take them whole, so that two engines must not share one.
pub const SUMMARIES: u64 = GLOBAL_CELLS + ENGINE_LINES;
/// Doorbell cells, 8 bytes each.
pub const CELLS: u64 = 2 * PAGE_SIZE;
/// Status words, 8 bytes each.
pub const STATUSES: u64 = CELLS + WORDS;
/// Progress fences, CurrentValue, 8 bytes each.
pub const FENCES: u64 = STATUSES + WORDS;
/// Last-queued words, 8 bytes each.
pub const LAST_QUEUED: u64 = FENCES + WORDS;
/// Response slots.
pub const RESPONSES: u64 = LAST_QUEUED + WORDS;
/// Bytes of the whole, a multiple of the page size.
pub const DEVICE_PAGE_BYTES: u64 = RESPONSES + RESPONSE_SLOTS as u64 * RESPONSE_SLOT_BYTES;

/// Where the cell of queue `index` lies.
pub const fn cell(index: u32) -> u64 {
    CELLS + index as u64 * 8
}

/// Where the cache line of an engine lies among those of all.
const fn engine_line(engine: u32, node: u32) -> u64 {
    (engine as u64 * MAX_NODES as u64 + node as u64) * 64
}

/// Where the global cell of `node` of physical adapter `engine` lies; they are less than [`MAX_NODES`] and
/// [`MAX_ENGINES`].
pub const fn global_cell(engine: u32, node: u32) -> u64 {
    GLOBAL_CELLS + engine_line(engine, node)
}

/// Where the status word of queue `index` lies.
pub const fn status(index: u32) -> u64 {
    STATUSES + index as u64 * 8
}

/// Where the progress fence of queue `index` lies.
pub const fn fence(index: u32) -> u64 {
    FENCES + index as u64 * 8
}

/// Where the last-queued word of queue `index` lies.
pub const fn last_queued(index: u32) -> u64 {
    LAST_QUEUED + index as u64 * 8
}

/// Where response slot `slot` lies.
pub const fn response(slot: u32) -> u64 {
    RESPONSES + slot as u64 * RESPONSE_SLOT_BYTES
}

/// Where the summary word of `node` of physical adapter `engine` lies; as in [`global_cell`].
pub const fn summary(engine: u32, node: u32) -> u64 {
    SUMMARIES + engine_line(engine, node)
}

/// The bit of the summary word that stands for cell `index`.
pub const fn summary_bit(index: u32) -> u64 {
    1 << (index / CELLS_PER_SUMMARY_BIT)
}

/// Device status: works (TDR-66).
pub const DEVICE_ACTIVE: u64 = 1;
/// Device status: lost by the reset of an engine.
pub const DEVICE_RESET: u64 = 2;
/// Device status: lost by a hang.
pub const DEVICE_HUNG: u64 = 3;
/// Device status: lost because its GPU stopped.
pub const DEVICE_STOPPED: u64 = 4;
/// Device status: lost because the host ran out of memory for it.
pub const DEVICE_OUT_OF_MEMORY: u64 = 5;
/// Device status: lost by a bad buffer of its own.
pub const DEVICE_DMA_FAULT: u64 = 6;
/// Device status: lost by an access outside its address space.
pub const DEVICE_PAGE_FAULT: u64 = 7;

#[cfg(test)]
mod tests {
    use super::CELLS;
    use super::CELLS_PER_SUMMARY_BIT;
    use super::DEVICE_PAGE_BYTES;
    use super::MAX_QUEUES;
    use super::PAGING_FENCE;
    use super::global_cell;
    use super::summary;
    use crate::capset::MAX_ENGINES;
    use crate::capset::MAX_NODES;
    use crate::page_table::PAGE_SIZE;

    #[test]
    fn tdr_66_device_states_have_their_numbers() {
        let states = [
            super::DEVICE_ACTIVE,
            super::DEVICE_RESET,
            super::DEVICE_HUNG,
            super::DEVICE_STOPPED,
            super::DEVICE_OUT_OF_MEMORY,
            super::DEVICE_DMA_FAULT,
            super::DEVICE_PAGE_FAULT,
        ];
        assert_eq!(states, [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn ums_17_a_device_page_is_whole_pages() {
        assert_eq!(DEVICE_PAGE_BYTES % PAGE_SIZE, 0);
        assert_eq!(MAX_QUEUES / CELLS_PER_SUMMARY_BIT, 64, "the summary word has 64 bits");
    }

    #[test]
    fn ums_08_every_engine_has_a_global_cell_of_its_own() {
        let nodes = || (0u32..).take(MAX_NODES);
        let engines = (0u32..).take(MAX_ENGINES).flat_map(|engine| nodes().map(move |node| (engine, node)));
        let cells = engines.clone().map(|(engine, node)| global_cell(engine, node));
        assert!(cells.clone().all(|cell| cell > PAGING_FENCE && cell + 64 <= CELLS && cell % 64 == 0));
        assert!(cells.clone().zip(cells.clone().skip(1)).all(|(one, next)| one < next));
        let summaries = engines.map(|(engine, node)| summary(engine, node));
        assert!(summaries.clone().all(|word| word + 64 <= CELLS && word % 64 == 0));
        assert!(cells.max() < summaries.min(), "nor share they a place with summary words");
    }
}

//! Offsets of the shared block, in bytes.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// Grant word ([`crate::handshake::grant`]); engine and supervisor.
pub const GRANT: u64 = 0x040;
/// Counts changes of the tables below; daemon.
pub const WATCH_SEQUENCE: u64 = 0x080;
/// The last count that the engine has acted on; engine.
pub const WATCH_ACK: u64 = 0x0c0;
/// Power word ([`crate::handshake::power`]); engine and daemon.
pub const POWER: u64 = 0x100;
/// Counts changes of page tables that take something away; daemon.
pub const PAGE_TABLE_GENERATION: u64 = 0x140;
/// The generation that the engine works with: it holds nothing resolved from an older one; engine.
pub const PAGE_TABLE_ACK: u64 = 0x180;
/// Serial of the last request to add or remove a segment that the execution thread has carried out, in the order in which
/// they came. Page tables name a segment only from then on, so that whatever is resolved through them is resolved with
/// the segments that they mean; engine, and the daemon while no process runs. In the line of [`PAGE_TABLE_ACK`].
pub const SEGMENT_ACK: u64 = PAGE_TABLE_ACK + 8;
/// Kernel-mode buffers handed over, ever; daemon.
pub const HW_QUEUE_SUBMITTED: u64 = 0x1c0;
/// Kernel-mode buffers done, ever; engine.
pub const HW_QUEUE_COMPLETED: u64 = 0x200;
/// What the engine runs, and how far it is ([`super::progress::Progress`]); engine.
pub const PROGRESS: u64 = 0x240;
/// Handle of the kernel that was started last and is not known to be done, or 0: what a report of a hang names. Stored
/// before the kernel starts and after it is done, in no order with anything else; engine, in the line of [`PROGRESS`].
pub const LAUNCHED: u64 = PROGRESS + 8;
/// Bytes of packets before the one that started it, in its buffer; as [`LAUNCHED`].
pub const LAUNCHED_AT: u64 = PROGRESS + 16;
/// One bit a queue: the daemon should look at its report; engine (or), daemon (swap).
pub const ATTENTION: u64 = 0x280;
/// Words of [`ATTENTION`].
pub const ATTENTION_WORDS: u64 = MAX_QUEUES as u64 / 64;

/// Whether the daemon polls [`HW_QUEUE_COMPLETED`] ([`crate::handshake::power`], sides swapped: ACTIVE while it
/// polls, ASLEEP when it must be woken); daemon.
pub const LISTENER: u64 = 0x300;

/// One bit a queue: its doorbell was connected or taken away, so its write pointer must be looked at. Raised after
/// the slot has changed, and taken before slots are read; daemon (or), engine (swap).
pub const LOOK: u64 = 0x340;
/// Words of [`LOOK`].
pub const LOOK_WORDS: u64 = MAX_QUEUES as u64 / 64;

/// One past the count of the hardware queue's buffer that was put aside last, in the slot of its context
/// ([`super::save_area`]); engine.
pub const HW_QUEUE_SAVED: u64 = 0x3c0;
/// One past the entry of the context that ran last, zero before the first: its state is on the engine until another's
/// turn begins (PRE-32). Stored before its work starts; a hint, which decides what is evicted last. Engine.
pub const LAST_CONTEXT: u64 = HW_QUEUE_SAVED + 8;

/// Doorbells connected in notify mode (UMS-51): while there are some and nothing else is watched, the engine sleeps
/// without polling, and without F1. Stored before the watch sequence rises; daemon.
pub const NOTIFIED: u64 = 0xe00;
/// Rings that no physical doorbell saw, ever: a look found them, after a connect, a disconnect (UMS-71) or a NOTIFY.
/// A count for metrics, on which nothing depends; engine.
pub const FOUND_BY_LOOK: u64 = 0xe40;

/// HW queue slots.
pub const HW_QUEUE: u64 = 0x400;
/// Processes that were ever in the table, by index: one past the highest; the two behind it say so of queues and of
/// doorbell slots. Daemon, before the watch sequence; the engine looks no further. They only rise.
pub const USED_PROCESSES: u64 = 0x600;
/// See [`USED_PROCESSES`].
pub const USED_QUEUES: u64 = USED_PROCESSES + 8;
/// See [`USED_PROCESSES`].
pub const USED_DOORBELLS: u64 = USED_PROCESSES + 16;
/// Doorbell slots: one 64-bit word each ([`super::slot::DoorbellSlot`]); daemon.
pub const DOORBELLS: u64 = 0x1000;
/// Most physical doorbells of an engine.
pub const MAX_DOORBELLS: u32 = 1024;
/// Process table.
pub const PROCESSES: u64 = DOORBELLS + MAX_DOORBELLS as u64 * 8;
/// Processes (devices) that an engine can serve.
pub const MAX_PROCESSES: u32 = 256;
/// Bytes of a process entry.
pub const PROCESS_BYTES: u64 = 64;
/// Queue table.
pub const QUEUES: u64 = PROCESSES + MAX_PROCESSES as u64 * PROCESS_BYTES;
/// User-mode queues that an engine can serve.
pub const MAX_QUEUES: u32 = 1024;
/// Bytes of a queue entry: 128 of the daemon's, a line for MonitoredValue, two lines of the engine's.
pub const QUEUE_BYTES: u64 = 320;
/// MonitoredValue of the queue's progress fence (UMS-133), within a queue entry; daemon.
pub const QUEUE_MONITORED: u64 = 128;
/// Not zero when the daemon waits for the queue to have nothing left ([`QUEUE_DRAINED`]), within a queue entry; daemon.
pub const QUEUE_DRAIN: u64 = 136;
/// Entries consumed, within a queue entry; engine.
pub const QUEUE_CONSUMED: u64 = 192;
/// Last progress fence value stored, within a queue entry; engine.
pub const QUEUE_COMPLETED: u64 = 200;
/// Fault code ([`crate::packet::Fault`]) of a stopped queue, within a queue entry; engine.
pub const QUEUE_FAULT: u64 = 208;
/// Address at fault, within a queue entry; engine.
pub const QUEUE_FAULT_VA: u64 = 216;
/// Not zero once a queue that is drained has nothing left to run, within a queue entry; engine.
pub const QUEUE_DRAINED: u64 = 224;
/// One past the count of the buffer that was put aside last, in the slot of this queue ([`super::save_area`]), within a
/// queue entry; engine.
pub const QUEUE_SAVED: u64 = 256;
/// One bit a context: its [`CONTEXT_REQUEST`] has changed. Raised after that word; daemon (or), engine (swap).
pub const SUSPENDS: u64 = QUEUES + MAX_QUEUES as u64 * QUEUE_BYTES;
/// Words of [`SUSPENDS`] and of [`SUSPEND_REPORTS`].
pub const SUSPEND_WORDS: u64 = MAX_CONTEXTS as u64 / 64;
/// One bit a context: its [`CONTEXT_REPORT`] has changed. Raised after that word; engine (or), daemon (swap).
pub const SUSPEND_REPORTS: u64 = SUSPENDS + SUSPEND_WORDS * 8;
/// Contexts that an engine can serve.
pub const MAX_CONTEXTS: u32 = 4096;
/// Whether a context may run ([`super::suspension::Suspension`]), one word a context; daemon.
pub const CONTEXT_REQUEST: u64 = SUSPEND_REPORTS + SUSPEND_WORDS * 8;
/// The last suspend fence that the engine reports (UMS-109), one word a context; engine, and the daemon while no
/// process runs.
pub const CONTEXT_REPORT: u64 = CONTEXT_REQUEST + MAX_CONTEXTS as u64 * 8;
/// Address of each context's save area in the address space of areas ([`super::save_area`]), one word a context. Stored
/// before anything names the context; daemon.
pub const CONTEXT_AREA: u64 = CONTEXT_REPORT + MAX_CONTEXTS as u64 * 8;
/// Native fences and the report of those signalled ([`super::fences`]).
pub const FENCES: u64 = CONTEXT_AREA + MAX_CONTEXTS as u64 * 8;
/// Bytes of the block: a whole number of pages, up to the end of its last part, which [`super::residency`] checks.
pub const BLOCK_BYTES: u64 = 0xd_0000;

/// Where the request word of context entry `index` lies.
pub const fn context_request(index: u32) -> u64 {
    CONTEXT_REQUEST + index as u64 * 8
}

/// Where the report word of context entry `index` lies.
pub const fn context_report(index: u32) -> u64 {
    CONTEXT_REPORT + index as u64 * 8
}

/// Where the address of the save area of context entry `index` lies.
pub const fn context_area(index: u32) -> u64 {
    CONTEXT_AREA + index as u64 * 8
}

/// Where process entry `index` lies.
pub const fn process(index: u32) -> u64 {
    PROCESSES + index as u64 * PROCESS_BYTES
}

/// Where queue entry `index` lies.
pub const fn queue(index: u32) -> u64 {
    QUEUES + index as u64 * QUEUE_BYTES
}

/// Where doorbell slot `index` lies.
pub const fn doorbell(index: u32) -> u64 {
    DOORBELLS + index as u64 * 8
}

/// One guest process, as the engine must know it. The daemon writes `generation` last (release) to bring the
/// entry up, and zero first to take it down; it reuses the entry only after the engine's watch ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProcessEntry {
    /// Not zero while the process lives.
    pub generation: u64,
    /// Page index of its root page table.
    pub root: u64,
    /// GPU virtual address of its device page.
    pub page_va: u64,
    /// Where in the device page its global cell for this engine lies; zero in the dedicated model.
    pub global_cell: u64,
    /// Where in the device page its summary word for this engine lies.
    pub summary: u64,
    /// Page index of the root page table of the address space of save areas.
    pub area_root: u64,
    /// Where in that space its device-wide save area lies.
    pub area_va: u64,
}

/// One user-mode queue, as the engine must know it. Brought up and taken down like [`ProcessEntry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueEntry {
    /// Not zero while the queue lives.
    pub generation: u64,
    /// GPU virtual address of the ring.
    pub ring_va: u64,
    /// GPU virtual address of the ring control.
    pub control_va: u64,
    /// Entries consumed before this engine process took over.
    pub consumed: u64,
    /// Progress fence value stored before this engine process took over.
    pub completed: u64,
    /// Entries of the ring.
    pub ring_entries: u32,
    /// Index of its process entry.
    pub process: u32,
    /// Index of its fence in the device page.
    pub fence_index: u32,
    /// `QUEUE_*`.
    pub flags: u32,
    /// Index of its context entry.
    pub context: u32,
    /// Zero.
    pub reserved: u32,
}

/// In [`QueueEntry::flags`]: no timeout holds for its work (UMS-27).
pub const QUEUE_EXEMPT: u32 = 1;

#[cfg(test)]
mod tests {
    use super::ATTENTION;
    use super::ATTENTION_WORDS;
    use super::DOORBELLS;
    use super::FOUND_BY_LOOK;
    use super::GRANT;
    use super::HW_QUEUE;
    use super::HW_QUEUE_COMPLETED;
    use super::HW_QUEUE_SAVED;
    use super::HW_QUEUE_SUBMITTED;
    use super::LISTENER;
    use super::LOOK;
    use super::LOOK_WORDS;
    use super::NOTIFIED;
    use super::PAGE_TABLE_ACK;
    use super::PAGE_TABLE_GENERATION;
    use super::POWER;
    use super::PROGRESS;
    use super::USED_PROCESSES;
    use super::WATCH_ACK;
    use super::WATCH_SEQUENCE;
    use crate::engine::hw_queue::HW_QUEUE_DEPTH;
    use crate::engine::hw_queue::SLOT_BYTES;
    use crate::engine::scheduling::CONTENDED;
    use crate::engine::scheduling::PREEMPT_REPORT;
    use crate::engine::scheduling::PREEMPT_REQUEST;
    use crate::engine::scheduling::SLICES;
    use crate::engine::scheduling::URGENCY;

    #[test]
    fn no_two_words_share_a_place_or_a_cache_line() {
        let words = [
            (GRANT, 1),
            (WATCH_SEQUENCE, 1),
            (WATCH_ACK, 1),
            (POWER, 1),
            (PAGE_TABLE_GENERATION, 1),
            (PAGE_TABLE_ACK, 2),
            (HW_QUEUE_SUBMITTED, 1),
            (HW_QUEUE_COMPLETED, 1),
            (PROGRESS, 3),
            (ATTENTION, ATTENTION_WORDS),
            (LISTENER, 1),
            (LOOK, LOOK_WORDS),
            (HW_QUEUE_SAVED, 2),
            (HW_QUEUE, HW_QUEUE_DEPTH * SLOT_BYTES / 8),
            (USED_PROCESSES, 3),
            (NOTIFIED, 1),
            (FOUND_BY_LOOK, 1),
            (URGENCY, 2),
            (CONTENDED, 2),
            (PREEMPT_REQUEST, 1),
            (PREEMPT_REPORT, 2),
            (SLICES, 4),
            (DOORBELLS, 1),
        ];
        for pair in words.windows(2) {
            let [(start, count), (next, _)] = [pair[0], pair[1]];
            assert!(start % 64 == 0, "{start:#x} begins a line");
            assert!(start + count * 8 <= next, "{start:#x} reaches into {next:#x}");
        }
    }
}

//! Every word of the shared block, by name: one table for fuzzers and for tests with whole daemons.

use campanile_protocol::engine::block;
use campanile_protocol::engine::fences;
use campanile_protocol::engine::hw_queue;
use campanile_protocol::engine::residency;
use campanile_protocol::engine::scheduling;

/// A word, or as many of it as there are, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    /// As the protocol calls it.
    pub(crate) name: &'static str,
    /// Where the first lies.
    pub(crate) first: u64,
    /// How many there are.
    pub(crate) count: u64,
    /// Bytes from one to the next.
    pub(crate) stride: u64,
}

impl Words {
    /// Where the `index`-th lies; past the last one they begin anew.
    pub(crate) const fn place(&self, index: u64) -> u64 {
        self.first + index % self.count * self.stride
    }
}

const fn one(name: &'static str, first: u64) -> Words {
    many(name, first, 1)
}

const fn many(name: &'static str, first: u64, count: u64) -> Words {
    Words { name, first, count, stride: 8 }
}

const fn of_queues(name: &'static str, offset: u64) -> Words {
    let (first, count) = (block::queue(0) + offset, block::MAX_QUEUES as u64);
    Words { name, first, count, stride: block::QUEUE_BYTES }
}

const CONTEXTS: u64 = block::MAX_CONTEXTS as u64;

/// All of them, whose ever they are: an engine can write each. Those of an entry are one.
pub(crate) const ALL: &[Words] = &[
    one("GRANT", block::GRANT),
    one("WATCH_SEQUENCE", block::WATCH_SEQUENCE),
    one("WATCH_ACK", block::WATCH_ACK),
    one("POWER", block::POWER),
    one("PAGE_TABLE_GENERATION", block::PAGE_TABLE_GENERATION),
    one("PAGE_TABLE_ACK", block::PAGE_TABLE_ACK),
    one("SEGMENT_ACK", block::SEGMENT_ACK),
    one("HW_QUEUE_SUBMITTED", block::HW_QUEUE_SUBMITTED),
    one("HW_QUEUE_COMPLETED", block::HW_QUEUE_COMPLETED),
    one("PROGRESS", block::PROGRESS),
    one("LAUNCHED", block::LAUNCHED),
    one("LAUNCHED_AT", block::LAUNCHED_AT),
    many("ATTENTION", block::ATTENTION, block::ATTENTION_WORDS),
    one("LISTENER", block::LISTENER),
    many("LOOK", block::LOOK, block::LOOK_WORDS),
    one("HW_QUEUE_SAVED", block::HW_QUEUE_SAVED),
    one("LAST_CONTEXT", block::LAST_CONTEXT),
    one("NOTIFIED", block::NOTIFIED),
    one("FOUND_BY_LOOK", block::FOUND_BY_LOOK),
    many("HW_QUEUE", block::HW_QUEUE, hw_queue::HW_QUEUE_DEPTH * hw_queue::SLOT_BYTES / 8),
    one("USED_PROCESSES", block::USED_PROCESSES),
    one("USED_QUEUES", block::USED_QUEUES),
    one("USED_DOORBELLS", block::USED_DOORBELLS),
    many("DOORBELLS", block::DOORBELLS, block::MAX_DOORBELLS as u64),
    many("PROCESSES", block::PROCESSES, block::MAX_PROCESSES as u64 * block::PROCESS_BYTES / 8),
    many("QUEUES", block::QUEUES, block::MAX_QUEUES as u64 * block::QUEUE_BYTES / 8),
    of_queues("QUEUE_MONITORED", block::QUEUE_MONITORED),
    of_queues("QUEUE_DRAIN", block::QUEUE_DRAIN),
    of_queues("QUEUE_CONSUMED", block::QUEUE_CONSUMED),
    of_queues("QUEUE_COMPLETED", block::QUEUE_COMPLETED),
    of_queues("QUEUE_FAULT", block::QUEUE_FAULT),
    of_queues("QUEUE_FAULT_VA", block::QUEUE_FAULT_VA),
    of_queues("QUEUE_DRAINED", block::QUEUE_DRAINED),
    of_queues("QUEUE_SAVED", block::QUEUE_SAVED),
    many("SUSPENDS", block::SUSPENDS, block::SUSPEND_WORDS),
    many("SUSPEND_REPORTS", block::SUSPEND_REPORTS, block::SUSPEND_WORDS),
    many("CONTEXT_REQUEST", block::CONTEXT_REQUEST, CONTEXTS),
    many("CONTEXT_REPORT", block::CONTEXT_REPORT, CONTEXTS),
    many("CONTEXT_AREA", block::CONTEXT_AREA, CONTEXTS),
    many("handle", fences::handle(0), fences::MAX_FENCES as u64),
    many("monitored", fences::monitored(0), fences::MAX_FENCES as u64),
    one("SIGNALLED_WRITTEN", fences::SIGNALLED_WRITTEN),
    one("SIGNALLED_OVERFLOW", fences::SIGNALLED_OVERFLOW),
    one("SIGNALLED_TAKEN", fences::SIGNALLED_TAKEN),
    many("signalled", fences::signalled(0), fences::SIGNALLED_SLOTS),
    one("URGENCY", scheduling::URGENCY),
    one("REALTIME", scheduling::REALTIME),
    one("CONTENDED", scheduling::CONTENDED),
    one("LATENCY_BOOSTS", scheduling::LATENCY_BOOSTS),
    one("PREEMPT_REQUEST", scheduling::PREEMPT_REQUEST),
    one("PREEMPT_REPORT", scheduling::PREEMPT_REPORT),
    one("PREEMPT_LAST_COMPLETED", scheduling::PREEMPT_LAST_COMPLETED),
    one("SLICES", scheduling::SLICES),
    one("USER_SUBMISSIONS", scheduling::USER_SUBMISSIONS),
    one("SLICE_NANOSECONDS", scheduling::SLICE_NANOSECONDS),
    one("SLICE_TARGET", scheduling::SLICE_TARGET),
    many("RESCHEDULED", scheduling::RESCHEDULED, scheduling::RESCHEDULED_WORDS),
    many("BANDS", scheduling::BANDS, 7),
    many("properties", scheduling::properties(0), CONTEXTS * 4),
    many("used", scheduling::used(0), CONTEXTS),
    one("LOG_COUNT", scheduling::LOG_COUNT),
    many("log_entry", scheduling::log_entry(0), scheduling::LOG_ENTRIES * scheduling::LOG_ENTRY_BYTES / 8),
    one("WANTED_WRITTEN", residency::WANTED_WRITTEN),
    one("WANTED_TAKEN", residency::WANTED_TAKEN),
    many("wanted", residency::wanted(0), residency::WANTED_ENTRIES * 4),
    one("USE_EPOCH", residency::USE_EPOCH),
    many("last_use", residency::last_use(0), residency::GRANULES),
];

/// Constants and functions of the protocol's modules of the block that are no word: sizes, counts, flags, and places of words
/// that stand above under another name.
pub(crate) const OTHERS: &[&str] = &[
    "ATTENTION_WORDS",
    "LOOK_WORDS",
    "MAX_DOORBELLS",
    "MAX_PROCESSES",
    "PROCESS_BYTES",
    "MAX_QUEUES",
    "QUEUE_BYTES",
    "SUSPEND_WORDS",
    "MAX_CONTEXTS",
    "FENCES",
    "BLOCK_BYTES",
    "QUEUE_EXEMPT",
    "context_request",
    "context_report",
    "context_area",
    "process",
    "queue",
    "doorbell",
    "MAX_FENCES",
    "SIGNALLED_SLOTS",
    "END",
    "REALTIME_LASTS",
    "RESCHEDULED_WORDS",
    "LOG_ENTRIES",
    "LOG_ENTRY_BYTES",
    "WANTED_ENTRIES",
    "GRANULES",
    "granule_shift",
    "HW_QUEUE_DEPTH",
    "SLOT_BYTES",
    "RESULT",
    "slot",
    "HW_EXEMPT",
    "HW_RESUBMISSION",
    "HW_SAVED",
    "HW_BLOCKED",
    "HW_SUSPENDED",
    "HW_PREEMPTED",
];

/// Which of the values that an engine should not store: by number, from what is there now.
pub(crate) const fn hostile(number: u8, now: u64) -> u64 {
    match number % 16 {
        0 => 0,
        1 => u64::MAX,
        2 => now.wrapping_add(1),
        3 => now.wrapping_sub(1),
        4 => 1,
        5 => 2,
        6 => 1 << 63,
        7 => u64::MAX >> 1,
        8 => 0xffff_ffff,
        9 => now | 0xffff,
        10 => !now,
        11 => now.rotate_left(32),
        12 => 0xffff_fffe_0000_0000,
        13 => now.wrapping_add(1000),
        14 => 4096,
        _ => 0x0101_0101_0101_0101,
    }
}

/// How many [`hostile`] values there are.
pub(crate) const HOSTILE: u8 = 16;

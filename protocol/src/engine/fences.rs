//! Native fences in the shared block, and the report of those that were signalled (UMS-141).
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | handle of fence i | daemon: on creation, and 0 after all engines have let the fence's page go | engine | before the page is mapped anywhere |
//! | MonitoredValue of fence i | daemon | engine | [`crate::handshake::fence`] |
//! | written, payload, overflow | engine | daemon | [`crate::handshake::signalled`] |
//! | taken | daemon | engine | [`crate::handshake::signalled`] |
//!
//! An engine that ends loses none of it: the next process goes on with the same words, and the daemon looks at all
//! waiters. An engine that names a fence that is none is faulty, and is treated as one that hangs.

use super::block::FENCES;

/// Native fences of one VM. Fence i has page i of the fence segment ([`crate::page_table::SegmentId::FENCES`]).
pub const MAX_FENCES: u32 = 4096;
/// Global handles that a report holds while the daemon has not read them.
pub const SIGNALLED_SLOTS: u64 = 64;

const HANDLES: u64 = FENCES;
const MONITORED: u64 = HANDLES + MAX_FENCES as u64 * 8;
/// Global handles reported, ever; engine.
pub const SIGNALLED_WRITTEN: u64 = MONITORED + MAX_FENCES as u64 * 8;
/// Not zero: one did not fit, so the payload is empty and means all waiters; engine (or), daemon (swap).
pub const SIGNALLED_OVERFLOW: u64 = SIGNALLED_WRITTEN + 8;
/// Global handles read, ever; daemon.
pub const SIGNALLED_TAKEN: u64 = SIGNALLED_WRITTEN + 64;
const SIGNALLED: u64 = SIGNALLED_TAKEN + 64;
/// One past the last byte.
pub const END: u64 = SIGNALLED + SIGNALLED_SLOTS * 8;

/// Where the global handle of fence `index` lies; zero where there is none.
pub const fn handle(index: u32) -> u64 {
    HANDLES + index as u64 * 8
}

/// Where MonitoredValue of fence `index` lies (UMS-131).
pub const fn monitored(index: u32) -> u64 {
    MONITORED + index as u64 * 8
}

/// Where the `count`-th global handle of the report lies, counted from zero.
pub const fn signalled(count: u64) -> u64 {
    SIGNALLED + count % SIGNALLED_SLOTS * 8
}

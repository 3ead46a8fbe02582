//! Residency in the shared block: what an engine misses, and what it has used.
//!
//! | word | written by | read by | order |
//! |---|---|---|---|
//! | wanted entries, [`WANTED_WRITTEN`] | engine | daemon | entry first; an entry that does not fit is dropped, and written again later |
//! | [`WANTED_TAKEN`] | daemon | engine | after the entries were read |
//! | [`USE_EPOCH`] | daemon | engine | none: a hint |
//! | [`last_use`] | engine | daemon | none: a hint; a wrong one leads to an eviction that costs time, and to nothing else |
//!
//! An engine that ends leaves all of it as it was: what it wanted is wanted again by the next process, as long as the
//! queue is there.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::block::BLOCK_BYTES;
use crate::page_table::PAGE_SIZE;

/// Entries written, ever; engine.
pub const WANTED_WRITTEN: u64 = super::scheduling::END.next_multiple_of(64);
/// Entries taken, ever; daemon.
pub const WANTED_TAKEN: u64 = WANTED_WRITTEN + 64;
const WANTED: u64 = WANTED_TAKEN + 64;
/// Entries that fit.
pub const WANTED_ENTRIES: u64 = 16;
const WANTED_BYTES: u64 = 32;
/// Counts the decisions of the daemon on what to evict: the unit of [`last_use`].
pub const USE_EPOCH: u64 = WANTED + WANTED_ENTRIES * WANTED_BYTES;
const USES: u64 = USE_EPOCH + 64;
/// Parts that video memory is divided into, of each of which it is known when it was last used.
pub const GRANULES: u64 = 4096;

// These words are the last part of the block.
const _: () = assert!(BLOCK_BYTES == (USES + GRANULES * 8).next_multiple_of(4096));

/// Something that is not resident, and that a queue waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Wanted {
    /// Page index of the root page table.
    pub root: u64,
    /// GPU virtual address.
    pub va: u64,
    /// The same for all that is wanted at one place of one buffer, and else another.
    pub token: u64,
    /// The queue that waits: its place in the queue table, or the number of queues for the hardware queue.
    pub queue: u64,
}

/// Where the `count`-th entry lies.
pub const fn wanted(count: u64) -> u64 {
    WANTED + count % WANTED_ENTRIES * WANTED_BYTES
}

/// Where the epoch lies in which part `index` was last used.
pub const fn last_use(index: u64) -> u64 {
    USES + index % GRANULES * 8
}

/// By how many bits the offset in a video memory of `bytes` is to be shifted, for the number of its part.
pub const fn granule_shift(bytes: u64) -> u32 {
    let least = PAGE_SIZE.trailing_zeros();
    let shift = bytes.div_ceil(GRANULES).next_power_of_two().trailing_zeros();
    if shift < least { least } else { shift }
}

#[cfg(test)]
mod tests {
    use super::GRANULES;
    use super::granule_shift;

    #[test]
    fn every_offset_has_a_part() {
        for bytes in [4096, 16 << 20, 64 << 20, (64 << 20) + 8192, 32 << 30] {
            assert!((bytes - 1) >> granule_shift(bytes) < GRANULES, "{bytes}");
            assert!(granule_shift(bytes) >= 12);
        }
    }
}

//! Save areas: memory that engines keep in what a buffer that was put aside needs to go on (PRE-31 to PRE-39).
//!
//! Two kinds, both allocations of video memory that the daemon makes, and that no guest can name: one for each context,
//! and one that all contexts of a device (a guest process) share. They lie in an address space of their own, which
//! belongs to no guest process and has the same page-table entries as any other: there an engine finds out whether an
//! area is there, on the move, or to be asked for.
//!
//! ```text
//!   context's area (a page)                       device-wide area (16 pages)
//!   +--------+-------------+---------+ … +-----+  +--------+----------+----------+ …
//!   | header | kernel-mode | queue 0 |   | 61  |  | header | queue 62 | queue 63 |
//!   +--------+-------------+---------+ … +-----+  +--------+----------+----------+ …
//! ```
//!
//! Each box is a slot of 64 bytes. The buffers of a context run in order, so one slot is enough for all that it has in
//! kernel mode; a user-mode queue has the slot of its number in its device, and those that a page does not hold lie in
//! the device-wide area. An engine runs nothing of a context unless both areas are there (PRE-32, PRE-33).
//!
//! # The life of a slot
//!
//! ```text
//!           daemon: header, before the area is shown to any engine (PRE-37)
//!   EMPTY ────── engine: the buffer stops at a boundary ─────▶ WRITTEN ── saved word ──▶ SAVED
//!     ▲                                                                                   │ ▲
//!     │                                                                    runs on ▼      │ │ stops again
//!     └── engine: done, or a fault: the saved word names a buffer that is over ◀── RUNNING ─┘
//! ```
//!
//! | word | written by | order |
//! |---|---|---|
//! | header | daemon | before the page-table entry that shows the area |
//! | slot | engine | the seal last |
//! | saved word ([`super::block::QUEUE_SAVED`], [`super::block::HW_QUEUE_SAVED`]) | engine | after the slot, before the progress word says that nothing runs, before a page-table generation, a suspend or a preemption is acknowledged |
//!
//! Saved words lie in the shared block, since the daemon needs them: for a kernel-mode buffer the result says the same.
//! Whether something was saved is known from there alone, so an area that lost it is a fault, and no silent beginning
//! from the start.
//!
//! # What fails
//!
//! - *The engine ends between slot and saved word:* the progress word still says whose buffer ran. That device is lost.
//! - *The engine is reset while others are saved:* areas and words stay, and the next process goes on from them.
//! - *The area is on the move, or evicted:* what was resolved is dropped with the page-table generation, after the
//!   buffer that ran was saved where the area was; nothing of the context runs before it is there again.
//! - *There is no room to evict it to:* it stays. *There is none to bring it back to:* the context waits.
//!
//! The reader trusts nothing: a wrong seal or name, or a place that cannot be, is a fault of that buffer. The daemon
//! reads slots for reports alone.

use super::saved::Saved;
use crate::page_table::PAGE_SIZE;

/// Bytes of a slot.
pub const SLOT_BYTES: u64 = 64;
/// Bytes of the area of a context.
pub const CONTEXT_AREA_BYTES: u64 = PAGE_SIZE;
/// Bytes of the area that the contexts of a device share.
pub const DEVICE_AREA_BYTES: u64 = 16 * PAGE_SIZE;
/// Where the slot of the kernel-mode buffers lies in a context's area.
pub const KERNEL_MODE_SLOT: u64 = SLOT_BYTES;
/// Queues, counted by their number in the device, whose slot is in their context's area.
pub const QUEUES_IN_CONTEXT_AREA: u32 = 62;
const _: () =
    assert!((QUEUES_IN_CONTEXT_AREA as u64 + 2) * SLOT_BYTES == CONTEXT_AREA_BYTES, "a page is full");

/// Words of a slot, the seal included.
pub const SLOT_WORDS: usize = 6;

/// Which kind of area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaKind {
    /// That of one context.
    Context,
    /// That of all contexts of a device.
    Device,
}

impl AreaKind {
    /// Bytes of an area.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Context => CONTEXT_AREA_BYTES,
            Self::Device => DEVICE_AREA_BYTES,
        }
    }

    /// The first word of an area, once it was initialised; all others are zero then.
    pub const fn header(self) -> u64 {
        // "save" and a version.
        let kind = match self {
            Self::Context => 1,
            Self::Device => 2,
        };
        0x7361_7665_0001_0000 | kind
    }
}

/// The slot of a user-mode queue, by its number in its device: which area, and bytes into it.
pub const fn queue_slot(index: u32) -> (AreaKind, u64) {
    if index < QUEUES_IN_CONTEXT_AREA {
        (AreaKind::Context, (index as u64 + 2) * SLOT_BYTES)
    } else {
        (AreaKind::Device, (index as u64 - QUEUES_IN_CONTEXT_AREA as u64 + 1) * SLOT_BYTES)
    }
}

/// What a torn, lost or foreign slot would not have: depends on all words, and on their order.
const fn seal(words: [u64; SLOT_WORDS - 1]) -> u64 {
    let mut sum = AreaKind::Context.header();
    let mut at = 0;
    while at < words.len() {
        sum = (sum.rotate_left(23) ^ words[at]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        at += 1;
    }
    sum
}

/// The words of a slot for the buffer of this name: its count in its ring, or its number among the kernel-mode buffers
/// of its engine.
pub const fn slot_words(name: u64, saved: Saved) -> [u64; SLOT_WORDS] {
    let [x, y, z] = saved.grid;
    let words = [name, saved.at as u64, saved.done_in_packet, (y as u64) << 32 | x as u64, z as u64];
    [words[0], words[1], words[2], words[3], words[4], seal(words)]
}

/// What a slot holds for the buffer of this name; none where it holds nothing that was ever written for it.
pub const fn read_slot(words: [u64; SLOT_WORDS], name: u64) -> Option<Saved> {
    let [found, at, done_in_packet, xy, z, sealed] = words;
    let is_whole = seal([found, at, done_in_packet, xy, z]) == sealed;
    if !is_whole || found != name || at > u32::MAX as u64 || z > u32::MAX as u64 {
        return None;
    }
    let grid = [(xy & 0xffff_ffff) as u32, (xy >> 32) as u32, (z & 0xffff_ffff) as u32];
    Some(Saved { at: (at & 0xffff_ffff) as u32, done_in_packet, grid })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::AreaKind;
    use super::KERNEL_MODE_SLOT;
    use super::SLOT_BYTES;
    use super::SLOT_WORDS;
    use super::queue_slot;
    use super::read_slot;
    use super::slot_words;
    use crate::device_page::MAX_QUEUES;
    use crate::engine::saved::Saved;

    const SAVED: Saved = Saved { at: 64, done_in_packet: 1 << 40, grid: [7, u32::MAX, 1 << 31] };

    #[test]
    fn what_is_saved_is_found_by_its_own_buffer_alone_and_whole_or_not_at_all() {
        for name in [0, 7, u64::from(u32::MAX), 1 << 40, u64::MAX] {
            let words = slot_words(name, SAVED);
            assert_eq!(read_slot(words, name), Some(SAVED));
            assert_eq!(read_slot(words, name ^ 1), None);
            for (at, bit) in (0..SLOT_WORDS).flat_map(|at| (0..64).map(move |bit| (at, bit))) {
                let mut torn = words;
                torn[at] ^= 1 << bit;
                assert_eq!(read_slot(torn, name), None, "bit {bit} of word {at}");
            }
        }
        assert_eq!(read_slot([0; SLOT_WORDS], 0), None, "what was never written");
    }

    #[test]
    fn no_two_queues_and_nothing_else_share_a_slot() {
        let mut slots = BTreeSet::from([(1, 0), (2, 0), (1, KERNEL_MODE_SLOT)]);
        for index in 0..MAX_QUEUES {
            let (kind, offset) = queue_slot(index);
            let number = if kind == AreaKind::Context { 1 } else { 2 };
            assert!(slots.insert((number, offset)), "queue {index}");
            assert!(offset.is_multiple_of(SLOT_BYTES) && offset + SLOT_BYTES <= kind.bytes());
        }
        assert_ne!(AreaKind::Context.header(), AreaKind::Device.header());
    }
}

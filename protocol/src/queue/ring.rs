//! Ring entries and pointers.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// One DMA buffer to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingEntry {
    /// GPU virtual address of the buffer, a multiple of 8.
    pub buffer_va: u64,
    /// Bytes, a multiple of 8, at most [`crate::packet::MAX_DMA_BUFFER`]; 0 is an empty buffer.
    pub length: u32,
    /// Zero.
    pub flags: u32,
    /// What the engine stores in the progress fence when the buffer is done; rises along the ring (UMS-84).
    pub fence_value: u64,
    /// Zero.
    pub reserved: u64,
}

/// Bytes of a ring entry.
pub const RING_ENTRY_BYTES: u64 = 32;
/// Smallest ring.
pub const MIN_RING_ENTRIES: u32 = 2;
/// Largest ring.
pub const MAX_RING_ENTRIES: u32 = 1 << 16;

/// Write pointer in the ring control, written by the guest (UMS-40).
pub const CONTROL_WRITE_POINTER: u64 = 0;
/// Read pointer in the ring control, written by the engine, on a cache line of its own.
pub const CONTROL_READ_POINTER: u64 = 64;
/// Bytes of a ring control.
pub const CONTROL_BYTES: u64 = 128;

/// Where the `count`-th entry lies in a ring of `entries`, counted from zero.
pub const fn place(count: u64, entries: u32) -> u64 {
    count % entries as u64 * RING_ENTRY_BYTES
}

/// What a write pointer says, seen from the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Pending {
    /// Nothing new: also a repeated ring (UMS-91).
    Nothing,
    /// So many entries, from the consumed count on.
    Entries(u64),
    /// The pointer went backwards, or further than the ring is long (UMS-93).
    Invalid,
}

/// Judges `write_pointer` against what was consumed of a ring of `entries`.
pub const fn pending(consumed: u64, write_pointer: u64, entries: u32) -> Pending {
    match write_pointer.checked_sub(consumed) {
        None => Pending::Invalid,
        Some(0) => Pending::Nothing,
        Some(n) if n <= entries as u64 => Pending::Entries(n),
        Some(_) => Pending::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::Pending;
    use super::RING_ENTRY_BYTES;
    use super::RingEntry;
    use super::pending;
    use super::place;

    #[test]
    fn an_entry_has_the_size_it_says() {
        assert_eq!(size_of::<RingEntry>() as u64, RING_ENTRY_BYTES);
    }

    #[test]
    fn ums_93_every_write_pointer_of_every_small_ring_is_judged() {
        for entries in [2u32, 4, 8] {
            // From the first entry on, and where the counts come to their end.
            for base in [0, u64::MAX - 3 * u64::from(entries)] {
                let counts = || (0..=3 * u64::from(entries)).map(|count| base + count);
                for consumed in counts() {
                    for write in counts() {
                        let expected = match i128::from(write) - i128::from(consumed) {
                            0 => Pending::Nothing,
                            ahead if (1..=i128::from(entries)).contains(&ahead) => {
                                Pending::Entries(write - consumed)
                            }
                            _ => Pending::Invalid,
                        };
                        let verdict = pending(consumed, write, entries);
                        assert_eq!(verdict, expected, "{entries}: {write} after {consumed}");
                    }
                }
            }
        }
        assert_eq!(pending(u64::MAX, 0, 4), Pending::Invalid);
    }

    #[test]
    fn ums_93_a_ring_has_a_place_of_its_own_for_every_entry_under_way() {
        for entries in [2u32, 4, 8] {
            for consumed in 0..4 * u64::from(entries) {
                let under_way = consumed..consumed + u64::from(entries);
                let mut places: Vec<u64> = under_way.map(|count| place(count, entries)).collect();
                places.sort_unstable();
                let all = (0..u64::from(entries)).map(|place| place * RING_ENTRY_BYTES);
                assert!(places.into_iter().eq(all), "{entries} entries from {consumed} on");
            }
        }
    }
}

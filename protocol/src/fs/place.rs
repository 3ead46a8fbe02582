//! Offsets of the file `gpu`.
//!
//! ```text
//!   0            1 << 60          1 << 61                              1 << 62 = SIZE
//!   ├─ nothing ──┼─ staging ──────┼─ registration: blob id << 32 | byte ─┤
//! ```

/// A write at `STAGE_BASE + n` appends to the staged frames, of which there are n bytes; at n = 0 it begins anew.
pub const STAGE_BASE: u64 = 1 << 60;
/// First offset at which pages are registered.
pub const REGISTER_BASE: u64 = 1 << 61;
/// Bytes of a registered blob, at most.
pub const MAX_REGISTERED: u64 = 1 << 32;

/// Where the reads that register the pages of a blob begin: the byte of the blob is added.
pub const fn registration(blob: u32) -> u64 {
    REGISTER_BASE | (blob as u64) << 32
}

/// The blob, and the byte of it, that a read at `offset` registers pages for.
pub const fn registered(offset: u64) -> Option<(u32, u64)> {
    if offset < REGISTER_BASE || offset >= super::SIZE {
        return None;
    }
    let within = offset - REGISTER_BASE;
    Some(((within >> 32) as u32, within % MAX_REGISTERED))
}

/// The byte of the staged frames that a write at `offset` begins with.
pub const fn staged(offset: u64) -> Option<u64> {
    if offset < STAGE_BASE || offset >= REGISTER_BASE { None } else { Some(offset - STAGE_BASE) }
}

/// Most blobs that have an offset of their own.
pub const MAX_BLOB: u32 = (1 << 29) - 1;

#[cfg(test)]
mod tests {
    use super::super::SIZE;
    use super::MAX_BLOB;
    use super::MAX_REGISTERED;
    use super::REGISTER_BASE;
    use super::STAGE_BASE;
    use super::registered;
    use super::registration;
    use super::staged;

    #[test]
    fn each_blob_has_offsets_of_its_own_below_the_end_of_the_file() {
        assert_eq!(registered(registration(1)), Some((1, 0)));
        assert_eq!(registered(registration(7) + MAX_REGISTERED - 1), Some((7, MAX_REGISTERED - 1)));
        assert_eq!(registered(registration(7) + MAX_REGISTERED), Some((8, 0)));
        assert!(registration(MAX_BLOB) + MAX_REGISTERED <= SIZE);
        for nothing in [0, STAGE_BASE, REGISTER_BASE - 1, SIZE, u64::MAX] {
            assert_eq!(registered(nothing), None);
        }
    }

    #[test]
    fn staging_ends_where_registration_begins() {
        assert_eq!(staged(STAGE_BASE + 3), Some(3));
        for nothing in [0, STAGE_BASE - 1, REGISTER_BASE, u64::MAX] {
            assert_eq!(staged(nothing), None);
        }
    }
}

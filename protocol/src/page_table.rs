//! GPU page tables: three levels of 512 entries over 4 KiB pages, 39 bits of address.
//!
//! The daemon owns the tables (one file a vGPU), engines read them. A table lives at a page index of that
//! file; the root's index names the address space (MCDM-38).

/// Bytes of a page.
pub const PAGE_SIZE: u64 = 4096;
/// Bits of a GPU virtual address.
pub const ADDRESS_BITS: u32 = 39;
/// Entries of a table.
pub const TABLE_ENTRIES: u64 = 512;
/// Levels, the root being level 2 and the leaves level 0.
pub const LEVELS: u32 = 3;
/// The first usable address: a null pointer always faults.
pub const FIRST_ADDRESS: u64 = 1 << 16;
/// One past the last usable address.
pub const END_ADDRESS: u64 = 1 << ADDRESS_BITS;

/// The index into the table of `level` that `address` selects.
pub const fn table_index(address: u64, level: u32) -> u64 {
    (address >> (12 + 9 * level)) & (TABLE_ENTRIES - 1)
}

/// One entry: a table below, a page, a page on the move, or nothing.
///
/// ```text
///   63          52 51                              12 11 4    3      2      1         0
///  +--------------+----------------------------------+----+-------+------+---------+---------+
///  | segment (12) | page number in segment, or table | 0  |evicted|moving| writable| present |
///  +--------------+----------------------------------+----+-------+------+---------+---------+
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageTableEntry(pub u64);

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const MOVING: u64 = 4;
const EVICTED: u64 = 8;
const PAGE_MASK: u64 = 0x000f_ffff_ffff_f000;

impl PageTableEntry {
    /// Nothing is mapped.
    pub const NONE: Self = Self(0);
    /// The page is being moved: look again later.
    pub const MOVING: Self = Self(MOVING);

    /// The page is not resident: have it brought back, and look again later. Counts as being moved, too.
    pub const EVICTED: Self = Self(MOVING | EVICTED);

    /// Points to the table at page `index` of the table file.
    pub const fn table(index: u64) -> Self {
        Self(((index * PAGE_SIZE) & PAGE_MASK) | PRESENT)
    }

    /// Maps a page of a segment; `offset` in bytes, a multiple of the page size.
    pub const fn page(segment: SegmentId, offset: u64, writable: bool) -> Self {
        let writable = if writable { WRITABLE } else { 0 };
        Self(((segment.0 as u64) << 52) | (offset & PAGE_MASK) | writable | PRESENT)
    }

    /// Whether it leads anywhere.
    pub const fn is_present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether the page is on the move.
    pub const fn is_moving(self) -> bool {
        self.0 & MOVING != 0
    }

    /// Whether the page has to be asked for.
    pub const fn is_evicted(self) -> bool {
        self.0 & EVICTED != 0
    }

    /// Whether stores are allowed.
    pub const fn is_writable(self) -> bool {
        self.0 & WRITABLE != 0
    }

    /// The segment of a page.
    pub const fn segment(self) -> SegmentId {
        SegmentId((self.0 >> 52) as u16)
    }

    /// Byte offset of the page in its segment, or of the table in the table file.
    pub const fn offset(self) -> u64 {
        self.0 & PAGE_MASK
    }
}

/// Number of a segment within a vGPU; 12 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u16);

impl SegmentId {
    /// The video memory of the vGPU.
    pub const VRAM: Self = Self(0);
    /// The values of the VM's native fences, a page each ([`crate::engine::fences`]).
    pub const FENCES: Self = Self(Self::LIMIT - 1);
    /// Local memory that lies in a device's own: no CPU reaches it, offsets are those in the video memory.
    pub const LOCAL: Self = Self(Self::LIMIT - 2);
    /// The first number that no segment of guest RAM has.
    pub const END: Self = Self::LOCAL;
    /// Segments that a vGPU can have.
    pub const LIMIT: u16 = 1 << 12;
}

#[cfg(test)]
mod tests {
    use super::PageTableEntry;
    use super::SegmentId;
    use super::table_index;

    #[test]
    fn a_page_entry_gives_back_what_it_was_made_of() {
        let entry = PageTableEntry::page(SegmentId(4095), 0xf_ffff_f000, true);
        assert!(entry.is_present() && entry.is_writable() && !entry.is_moving());
        assert_eq!((entry.segment(), entry.offset()), (SegmentId(4095), 0xf_ffff_f000));
        assert!(!PageTableEntry::page(SegmentId::VRAM, 0, false).is_writable());
        assert!(PageTableEntry::EVICTED.is_moving() && PageTableEntry::EVICTED.is_evicted());
        assert!(!PageTableEntry::EVICTED.is_present() && !PageTableEntry::MOVING.is_evicted());
        assert!(PageTableEntry::MOVING.is_moving() && !PageTableEntry::MOVING.is_present());
    }

    #[test]
    fn indices_cover_the_address() {
        let address = (5 << 30) | (6 << 21) | (7 << 12) | 8;
        assert_eq!((table_index(address, 2), table_index(address, 1), table_index(address, 0)), (5, 6, 7));
    }
}

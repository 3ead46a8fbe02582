//! The daemon's side: builds and changes tables.

use std::fs::File;
use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::page_table::END_ADDRESS;
use campanile_protocol::page_table::FIRST_ADDRESS;
use campanile_protocol::page_table::LEVELS;
use campanile_protocol::page_table::PageTableEntry;
use campanile_protocol::page_table::SegmentId;
use campanile_protocol::page_table::TABLE_ENTRIES;
use campanile_protocol::page_table::table_index;

use crate::memory::mapping::Mapping;
use crate::memory::vram;

/// Tables of all address spaces of one vGPU, at the most (64 MiB of them map 32 GiB).
pub const MAX_TABLES: u64 = 16 * 1024;

/// Why a table could not be changed. Nothing was.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum TableError {
    /// An address or size that is misaligned or outside the space.
    #[error("GPU address {address:#x} with {size:#x} bytes is misaligned or outside the address space")]
    Range { address: u64, size: u64 },
    /// Something is mapped there already.
    #[error("GPU address {0:#x} is mapped already")]
    Overlap(u64),
    /// No table is left.
    #[error("all {MAX_TABLES} page tables of the vGPU are in use")]
    Exhausted,
}

/// The table file could not be made or mapped.
#[derive(Debug, thiserror::Error)]
#[error("making the page-table file: {0}")]
pub struct TableFileError(#[from] std::io::Error);

/// All page tables of one vGPU. Owned by its thread in the daemon.
///
/// Engines map the file read-only. The daemon decides by a copy of its own, and only ever stores to the file: which table
/// hangs below which, what is mapped and what is free does not depend on memory that another process could reach.
#[derive(Debug)]
pub struct PageTables {
    file: File,
    mapping: Mapping,
    /// The daemon's copy of table 1, 2, …; an empty one is free.
    own: Vec<Vec<PageTableEntry>>,
    free: Vec<u64>,
}

/// The root page table of one guest process: its whole address space (MCDM-38).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root(pub u64);

/// Where the daemon's copy of a table is. There is no table 0.
fn place(table: u64) -> Option<usize> {
    usize::try_from(table.checked_sub(1)?).ok()
}

impl PageTables {
    /// An empty table file.
    pub fn new() -> Result<Self, TableFileError> {
        let length = MAX_TABLES * PAGE_SIZE;
        let (file, mapping) = vram::create_read_only_memfd("campanile-page-tables", length)?;
        Ok(Self { file, mapping, own: Vec::new(), free: Vec::new() })
    }

    /// The file, which an engine can map read-only, and not otherwise.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What engines see.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    fn entry(&self, table: u64, index: u64) -> PageTableEntry {
        let own = place(table).and_then(|place| self.own.get(place));
        let entry = own.zip(usize::try_from(index).ok()).and_then(|(own, index)| own.get(index));
        entry.copied().unwrap_or(PageTableEntry::NONE)
    }

    fn store(&mut self, table: u64, index: u64, entry: PageTableEntry) {
        let own = place(table).and_then(|place| self.own.get_mut(place));
        if let Some((own, index)) = own.zip(usize::try_from(index).ok())
            && let Some(own) = own.get_mut(index)
        {
            *own = entry;
        }
        if let Some(word) = self.mapping.word(table * PAGE_SIZE + index * 8) {
            // PAIRS WITH reader.rs `walk`.
            word.store(entry.0, Ordering::Release);
        }
    }

    fn allocate(&mut self) -> Result<u64, TableError> {
        let next = self.own.len() as u64 + 1;
        let table = match self.free.pop() {
            Some(table) => table,
            None if next < MAX_TABLES => {
                self.own.push(Vec::new());
                next
            }
            None => return Err(TableError::Exhausted),
        };
        if let Some(own) = place(table).and_then(|place| self.own.get_mut(place)) {
            own.extend((0..TABLE_ENTRIES).map(|_| PageTableEntry::NONE));
        }
        for index in 0..TABLE_ENTRIES {
            self.store(table, index, PageTableEntry::NONE);
        }
        Ok(table)
    }

    /// A new, empty address space.
    pub fn create_root(&mut self) -> Result<Root, TableError> {
        self.allocate().map(Root)
    }

    /// Gives all tables of a space back. Only after every engine has forgotten it.
    pub fn destroy_root(&mut self, root: Root) {
        self.release(root.0, LEVELS - 1);
    }

    fn release(&mut self, table: u64, level: u32) {
        if level > 0 {
            for index in 0..TABLE_ENTRIES {
                let entry = self.entry(table, index);
                if entry.is_present() {
                    self.release(entry.offset() / PAGE_SIZE, level - 1);
                }
            }
        }
        if let Some(own) = place(table).and_then(|place| self.own.get_mut(place)) {
            *own = Vec::new();
        }
        self.free.push(table);
    }

    /// The leaf table that holds `address`, made where it is missing.
    fn leaf(&mut self, root: Root, address: u64) -> Result<u64, TableError> {
        let mut table = root.0;
        for level in (1..LEVELS).rev() {
            let index = table_index(address, level);
            let entry = self.entry(table, index);
            table = if entry.is_present() {
                entry.offset() / PAGE_SIZE
            } else {
                let below = self.allocate()?;
                self.store(table, index, PageTableEntry::table(below));
                below
            };
        }
        Ok(table)
    }

    /// Whether a range can be mapped at all, whatever is there.
    ///
    /// # Errors
    /// `Range` where it cannot.
    pub fn check(address: u64, size: u64) -> Result<(), TableError> {
        let range = TableError::Range { address, size };
        let end = address.checked_add(size).ok_or(TableError::Range { address, size })?;
        let aligned = address.is_multiple_of(PAGE_SIZE) && size.is_multiple_of(PAGE_SIZE);
        if aligned && size > 0 && address >= FIRST_ADDRESS && end <= END_ADDRESS {
            Ok(())
        } else {
            Err(range)
        }
    }

    fn set(
        &mut self,
        root: Root,
        address: u64,
        size: u64,
        mut entry: impl FnMut(u64) -> PageTableEntry,
    ) -> Result<(), TableError> {
        let mut at = 0;
        while at < size {
            let table = self.leaf(root, address + at)?;
            let mut index = table_index(address + at, 0);
            while index < TABLE_ENTRIES && at < size {
                self.store(table, index, entry(at));
                index += 1;
                at += PAGE_SIZE;
            }
        }
        Ok(())
    }

    /// Maps `size` bytes of `segment` from `offset` at `address`, where nothing may be mapped.
    pub fn map(
        &mut self,
        root: Root,
        address: u64,
        segment: SegmentId,
        offset: u64,
        size: u64,
        writable: bool,
    ) -> Result<(), TableError> {
        self.check_free(root, address, size)?;
        self.set(root, address, size, |at| PageTableEntry::page(segment, offset + at, writable))
    }

    /// Maps at `address`, where nothing may be mapped, what is on the move (see [`Self::end_move`]).
    pub fn map_moving(&mut self, root: Root, address: u64, size: u64) -> Result<(), TableError> {
        self.check_free(root, address, size)?;
        self.start_move(root, address, size)
    }

    /// Maps at `address`, where nothing may be mapped, what is not resident (see [`Self::end_move`]).
    pub fn map_evicted(&mut self, root: Root, address: u64, size: u64) -> Result<(), TableError> {
        self.check_free(root, address, size)?;
        self.evict(root, address, size)
    }

    /// Makes what tables a range needs, so that nothing can be missing when it is mapped. Nothing is mapped yet.
    pub fn prepare(&mut self, root: Root, address: u64, size: u64) -> Result<(), TableError> {
        Self::check(address, size)?;
        let leaf_bytes = PAGE_SIZE * TABLE_ENTRIES;
        let mut at = address;
        while at < address + size {
            self.leaf(root, at)?;
            at = (at / leaf_bytes + 1) * leaf_bytes;
        }
        Ok(())
    }

    fn check_free(&mut self, root: Root, address: u64, size: u64) -> Result<(), TableError> {
        Self::check(address, size)?;
        let mut at = address;
        while at < address + size {
            let table = self.leaf(root, at)?;
            let mut index = table_index(at, 0);
            while index < TABLE_ENTRIES && at < address + size {
                let entry = self.entry(table, index);
                if entry.is_present() || entry.is_moving() {
                    return Err(TableError::Overlap(at));
                }
                index += 1;
                at += PAGE_SIZE;
            }
        }
        Ok(())
    }

    /// Unmaps. Engines may still use what they have resolved, until they have acknowledged the next generation.
    pub fn unmap(&mut self, root: Root, address: u64, size: u64) -> Result<(), TableError> {
        Self::check(address, size)?;
        self.set(root, address, size, |_| PageTableEntry::NONE)
    }

    /// Marks a mapping as on the move.
    pub fn start_move(&mut self, root: Root, address: u64, size: u64) -> Result<(), TableError> {
        Self::check(address, size)?;
        self.set(root, address, size, |_| PageTableEntry::MOVING)
    }

    /// Marks a mapping as not resident.
    pub fn evict(&mut self, root: Root, address: u64, size: u64) -> Result<(), TableError> {
        Self::check(address, size)?;
        self.set(root, address, size, |_| PageTableEntry::EVICTED)
    }

    /// Maps again what was on the move, or not resident.
    pub fn end_move(
        &mut self,
        root: Root,
        address: u64,
        segment: SegmentId,
        offset: u64,
        size: u64,
        writable: bool,
    ) -> Result<(), TableError> {
        Self::check(address, size)?;
        self.set(root, address, size, |at| PageTableEntry::page(segment, offset + at, writable))
    }
}

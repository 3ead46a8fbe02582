//! The engine's side: from an address range to runs of segments.

use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::page_table::END_ADDRESS;
use campanile_protocol::page_table::LEVELS;
use campanile_protocol::page_table::PageTableEntry;
use campanile_protocol::page_table::SegmentId;
use campanile_protocol::page_table::table_index;

use crate::memory::mapping::Mapping;

/// What an access wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// The work loads from it.
    Read,
    /// The work stores to it, and may load from it.
    Write,
}

/// A range that lies in one piece in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The segment.
    pub segment: SegmentId,
    /// Bytes into it.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Why an address leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// Not mapped, or not for that intent: a GPU page fault at the address.
    Fault(u64),
    /// On the move: look again later.
    Moving(u64),
    /// Not resident: have it brought back, and look again later.
    Evicted(u64),
}

/// Looks `address` up in the space of `root`.
fn walk(tables: &Mapping, root: u64, address: u64, intent: Intent) -> Result<PageTableEntry, Miss> {
    let mut table = root * PAGE_SIZE;
    for level in (0..LEVELS).rev() {
        let place = table + table_index(address, level) * 8;
        let word = tables.word(place).ok_or(Miss::Fault(address))?;
        // PAIRS WITH writer.rs `store`.
        let entry = PageTableEntry(word.load(Ordering::Acquire));
        if entry.is_moving() {
            let is_evicted = entry.is_evicted();
            return Err(if is_evicted { Miss::Evicted(address) } else { Miss::Moving(address) });
        }
        if !entry.is_present() {
            return Err(Miss::Fault(address));
        }
        if level == 0 {
            let allowed = intent == Intent::Read || entry.is_writable();
            return if allowed { Ok(entry) } else { Err(Miss::Fault(address)) };
        }
        table = entry.offset();
    }
    Err(Miss::Fault(address))
}

/// Resolves `address .. address + length` in the space of `root`, calling `each` for every run in order.
/// A range of no bytes has no runs.
pub fn resolve(
    tables: &Mapping,
    root: u64,
    address: u64,
    length: u64,
    intent: Intent,
    mut each: impl FnMut(Run),
) -> Result<(), Miss> {
    let end = address.checked_add(length).filter(|&end| end <= END_ADDRESS).ok_or(Miss::Fault(address))?;
    let mut at = address;
    let mut open: Option<Run> = None;
    while at < end {
        let entry = walk(tables, root, at, intent)?;
        let within = at % PAGE_SIZE;
        let piece = Run {
            segment: entry.segment(),
            offset: entry.offset() + within,
            length: (PAGE_SIZE - within).min(end - at),
        };
        at += piece.length;
        open = Some(match open {
            Some(run) if run.segment == piece.segment && run.offset + run.length == piece.offset => {
                Run { length: run.length + piece.length, ..run }
            }
            Some(run) => {
                each(run);
                piece
            }
            None => piece,
        });
    }
    if let Some(run) = open {
        each(run);
    }
    Ok(())
}

/// Resolves a range that must lie in one run, such as a ring.
pub fn resolve_one(
    tables: &Mapping,
    root: u64,
    address: u64,
    length: u64,
    intent: Intent,
) -> Result<Run, Miss> {
    let mut runs = 0;
    let mut first = None;
    resolve(tables, root, address, length, intent, |run| {
        runs += 1;
        first.get_or_insert(run);
    })?;
    match first {
        Some(run) if runs == 1 => Ok(run),
        _ => Err(Miss::Fault(address)),
    }
}

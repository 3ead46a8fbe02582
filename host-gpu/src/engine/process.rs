//! A guest process, as the engine watches it.

use std::collections::BTreeMap;

use campanile_protocol::device_page;
use campanile_protocol::engine::block::ProcessEntry;

use super::rescan::Rescan;
use crate::ids::QueueIndex;
use crate::memory::mapping::Mapping;
use crate::memory::segment::Place;
use crate::memory::segment::Segments;
use crate::node::space::Space;
use crate::node::space::Stop;

/// One guest process.
#[derive(Debug)]
pub struct Process {
    pub(super) entry: ProcessEntry,
    pub(super) page: Option<Place>,
    /// Each watched doorbell of the dedicated model, by summary bit.
    pub(super) cells: BTreeMap<u32, Vec<Cell>>,
    /// The queues behind the global cell, in the global model.
    pub(super) rescan: Rescan,
}

/// A watched doorbell cell.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) cell: u16,
    pub(super) queue: QueueIndex,
    /// What it last held: a neighbour's ring makes the engine read it, and mostly nothing has changed.
    pub(super) seen: Option<u64>,
}

impl Process {
    /// Its address space.
    pub fn space<'a>(&self, tables: &'a Mapping, segments: &'a Segments) -> Space<'a> {
        Space { tables, root: self.entry.root, segments }
    }

    /// The address space that its save areas lie in.
    pub fn areas<'a>(&self, tables: &'a Mapping, segments: &'a Segments) -> Space<'a> {
        Space { tables, root: self.entry.area_root, segments }
    }

    /// Where in it its device-wide one lies.
    pub fn area_va(&self) -> u64 {
        self.entry.area_va
    }

    /// The bits of the summary word that each watched queue alone raises; none where it shares its bit.
    pub(super) fn own_bits(&self) -> BTreeMap<QueueIndex, u64> {
        let mut own = BTreeMap::new();
        for (&bit, cells) in &self.cells {
            let is_alone = cells.len() == 1;
            for cell in cells {
                own.insert(cell.queue, if is_alone { 1 << bit } else { 0 });
            }
        }
        own
    }

    /// Its device page, resolved anew where that was dropped.
    ///
    /// # Errors
    /// It is on the move, or lies in several pieces.
    pub fn page(&mut self, tables: &Mapping, segments: &Segments) -> Result<&Place, Stop> {
        let page = match self.page.take() {
            Some(page) => page,
            None => {
                let space = Space { tables, root: self.entry.root, segments };
                space.place_to_keep(self.entry.page_va, device_page::DEVICE_PAGE_BYTES)?
            }
        };
        Ok(self.page.insert(page))
    }
}

/// The lower half of a generation.
pub const fn low_half(generation: u64) -> u32 {
    (generation & 0xffff_ffff) as u32
}

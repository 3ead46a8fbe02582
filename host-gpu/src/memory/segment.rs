//! The segments that an engine can reach.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use campanile_protocol::page_table::SegmentId;

use super::mapping::Mapping;
use super::page_table::reader::Run;
use super::wants::Uses;
use super::wants::Wants;
use super::writes::Writes;

/// The segments of one vGPU, as one engine has them mapped.
#[derive(Debug, Default)]
pub struct Segments {
    vram: Option<Arc<Mapping>>,
    others: HashMap<SegmentId, Arc<Mapping>>,
    /// What was looked for and is not resident.
    pub wants: Wants,
    /// What was used.
    pub uses: Uses,
    /// What is written.
    pub writes: Writes,
}

impl Segments {
    /// Adds a segment, or replaces what had its number.
    pub fn insert(&mut self, id: SegmentId, mapping: Arc<Mapping>) {
        if id == SegmentId::VRAM {
            self.vram = Some(mapping);
        } else {
            self.others.insert(id, mapping);
        }
    }

    /// Takes a segment away.
    pub fn remove(&mut self, id: SegmentId) {
        self.others.remove(&id);
    }

    /// The mapping of a segment.
    pub fn get(&self, id: SegmentId) -> Option<&Arc<Mapping>> {
        if id == SegmentId::VRAM { self.vram.as_ref() } else { self.others.get(&id) }
    }

    /// Bytes of a segment; zero where there is none.
    pub fn length(&self, id: SegmentId) -> u64 {
        self.get(id).map_or(0, |mapping| mapping.len())
    }

    /// Where a run lies, if it lies inside its segment.
    pub fn place(&self, run: Run) -> Option<Place> {
        let mapping = self.get(run.segment)?;
        mapping.slice(run.offset, run.length)?;
        Some(Place { mapping: Arc::clone(mapping), offset: run.offset })
    }
}

/// A place in a mapped segment, kept mapped while this lives.
#[derive(Debug, Clone)]
pub struct Place {
    /// The mapping.
    pub mapping: Arc<Mapping>,
    /// Bytes into it.
    pub offset: u64,
}

impl Place {
    /// The word `bytes` further on.
    pub fn word(&self, bytes: u64) -> Option<&AtomicU64> {
        self.mapping.word(self.offset.checked_add(bytes)?)
    }
}

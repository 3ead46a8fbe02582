//! Guest RAM as segments: the page list of a guest blob, which engines map as one piece.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::engine::message::RunRecord;
use campanile_host_gpu::memory::mapping::MapError;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use campanile_host_gpu::memory::view::FileRange;
use campanile_host_gpu::memory::vram::create_constant_memfd;
use campanile_protocol::page_table::SegmentId;
use zerocopy::IntoBytes;

use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::list_bytes;

/// Runs of all segments of one VM: each is a mapping of its own in every engine, and Linux lets a process have
/// 65,530 of them.
pub const MAX_RUNS_OF_VM: usize = 48 * 1024;
/// Bytes of a segment besides its page list, and of the messages about it.
const SEGMENT_BYTES: u64 = 1024;

/// What is charged for a page list: its runs are as many as its pieces, but where those lie side by side.
pub(in crate::vgpu) fn price(pieces: usize) -> u64 {
    let each = size_of::<RunRecord>() + size_of::<(u64, u64)>();
    list_bytes(pieces, each).saturating_add(SEGMENT_BYTES)
}

/// Guest RAM that engines map as one segment. Holds no descriptors of its own: the files are those of the VM's
/// memory table.
#[derive(Debug)]
pub struct GuestSegment {
    runs: Vec<RunRecord>,
    files: Vec<Arc<File>>,
    pieces: Vec<(u64, u64)>,
}

impl GuestSegment {
    /// Files that one segment can lie in.
    pub const MAX_FILES: usize = 30;

    /// A segment of `runs` in `files`, which the guest knows as `pieces`: guest-physical address and bytes.
    pub fn new(runs: Vec<RunRecord>, files: Vec<Arc<File>>, pieces: Vec<(u64, u64)>) -> Self {
        Self { runs, files, pieces }
    }

    /// Bytes in all.
    pub fn length(&self) -> u64 {
        self.runs.iter().map(|run| run.length).sum()
    }

    /// Guest-physical address and bytes of each piece.
    pub fn pieces(&self) -> &[(u64, u64)] {
        &self.pieces
    }

    /// Calls `found` with each piece (guest-physical address, bytes) of the bytes from `offset` on, as far as they are
    /// in it.
    pub fn pieces_of(&self, offset: u64, length: u64, mut found: impl FnMut(u64, u64)) {
        let end = offset.saturating_add(length);
        let mut at: u64 = 0;
        for (address, length) in &self.pieces {
            let (first, last) = (at.max(offset), (at + length).min(end));
            if first < last {
                found(address + (first - at), last - first);
            }
            at += length;
            if at >= end {
                return;
            }
        }
    }

    /// What is charged for it.
    pub(in crate::vgpu) fn price(&self) -> u64 {
        price(self.pieces.len())
    }

    /// How many runs it has.
    pub fn run_count(&self) -> u64 {
        self.runs.len() as u64
    }

    /// The files that the runs lie in.
    pub fn files(&self) -> &[Arc<File>] {
        &self.files
    }

    /// A new file with the list of runs, for an engine to read.
    pub fn list(&self) -> io::Result<File> {
        create_constant_memfd("campanile-run-list", self.runs.as_bytes())
    }

    /// The daemon's own view of `length` bytes at `offset`, both whole pages. `domain` has its faults.
    pub fn map(
        &self,
        offset: u64,
        length: u64,
        domain: Option<&Arc<FaultDomain>>,
    ) -> Result<Mapping, MapError> {
        let end = offset.saturating_add(length);
        let mut ranges = Vec::new();
        let mut at: u64 = 0;
        for run in &self.runs {
            let (first, last) = (at.max(offset), (at + run.length).min(end));
            let file = usize::try_from(run.file).ok().and_then(|file| self.files.get(file));
            if let Some(file) = file.filter(|_| first < last) {
                ranges.push(FileRange { file, offset: run.offset + (first - at), length: last - first });
            }
            at += run.length;
        }
        Mapping::of_foreign_ranges(&ranges, domain)
    }
}

/// The guest RAM segments of a session.
#[derive(Debug, Default)]
pub struct Segments {
    table: BTreeMap<u16, GuestSegment>,
    runs: usize,
    /// Segments of a session that came from elsewhere, whose pages are not found yet: guest memory is not known.
    unknown: BTreeMap<u16, Vec<(u64, u64)>>,
    /// What was charged for each of them.
    charges: BTreeMap<u16, Charge>,
}

impl Segments {
    /// Adds one under a free number; `None` when all numbers, or [`MAX_RUNS_OF_VM`], are taken.
    pub fn insert(&mut self, segment: GuestSegment, charge: Charge) -> Option<SegmentId> {
        let runs = self.runs + segment.runs.len();
        let is_taken = |id: &u16| self.table.contains_key(id) || self.unknown.contains_key(id);
        let free = (1..SegmentId::END.0).find(|id| !is_taken(id))?;
        if runs > MAX_RUNS_OF_VM {
            return None;
        }
        self.runs = runs;
        self.table.insert(free, segment);
        self.charges.insert(free, charge);
        Some(SegmentId(free))
    }

    /// Segments whose pages are still to be found.
    pub(in crate::vgpu) fn with_unknown(
        unknown: BTreeMap<u16, Vec<(u64, u64)>>,
        charges: BTreeMap<u16, Charge>,
    ) -> Self {
        Self { unknown, charges, ..Self::default() }
    }

    /// Those whose pages are still to be found: guest-physical address and bytes of each piece.
    pub(in crate::vgpu) fn unknown(&self) -> &BTreeMap<u16, Vec<(u64, u64)>> {
        &self.unknown
    }

    /// The pages of one are found; false where there is no room for its runs.
    pub(in crate::vgpu) fn found(&mut self, id: u16, segment: GuestSegment) -> bool {
        let runs = self.runs + segment.runs.len();
        if runs > MAX_RUNS_OF_VM || self.unknown.remove(&id).is_none() {
            return false;
        }
        self.runs = runs;
        self.table.insert(id, segment);
        true
    }

    /// Guest-physical address and bytes of each piece of all of them, found or not.
    pub(in crate::vgpu) fn all_pieces(&self) -> BTreeMap<u16, &[(u64, u64)]> {
        let found = self.table.iter().map(|(id, segment)| (*id, segment.pieces()));
        found.chain(self.unknown.iter().map(|(id, pieces)| (*id, pieces.as_slice()))).collect()
    }

    /// Takes one out.
    pub fn remove(&mut self, id: SegmentId) {
        self.unknown.remove(&id.0);
        self.charges.remove(&id.0);
        if let Some(segment) = self.table.remove(&id.0) {
            self.runs -= segment.runs.len();
        }
    }

    /// One of them.
    pub fn get(&self, id: SegmentId) -> Option<&GuestSegment> {
        self.table.get(&id.0)
    }

    /// All numbers.
    pub fn ids(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.table.keys().copied().map(SegmentId)
    }
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::engine::message::RunRecord;

    use super::GuestSegment;

    #[test]
    fn dirty_55_bytes_of_a_segment_are_found_where_the_guest_has_them() {
        let run = |offset, length| RunRecord { file: 0, offset, length };
        let runs = vec![run(0x9000, 0x2000), run(0x1000, 0x1000), run(0x4000, 0x3000)];
        let known = vec![(0x10_9000, 0x2000), (0x1000, 0x1000), (0x8_4000, 0x3000)];
        let segment = GuestSegment::new(runs, Vec::new(), known);
        assert_eq!(segment.length(), 0x6000);
        let pieces = |offset, length| {
            let mut pieces = Vec::new();
            segment.pieces_of(offset, length, |address, length| pieces.push((address, length)));
            pieces
        };
        assert_eq!(pieces(0x1800, 0x1000), [(0x10_a800, 0x800), (0x1000, 0x800)]);
        assert_eq!(pieces(0x5fff, u64::MAX), [(0x8_6fff, 1)]);
        assert_eq!(pieces(0, u64::MAX), [(0x10_9000, 0x2000), (0x1000, 0x1000), (0x8_4000, 0x3000)]);
        assert!(pieces(0x6000, 1).is_empty() && pieces(u64::MAX, u64::MAX).is_empty());
    }
}

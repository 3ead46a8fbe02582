//! The memory of one guest process, as a buffer reaches it.

use campanile_protocol::packet::Fault;
use campanile_protocol::page_table::SegmentId;

use crate::memory::mapping::Mapping;
use crate::memory::page_table::reader;
use crate::memory::page_table::reader::Intent;
use crate::memory::page_table::reader::Miss;
use crate::memory::page_table::reader::Run;
use crate::memory::segment::Place;
use crate::memory::segment::Segments;
use crate::memory::wants::Missing;

/// Why a packet could not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The guest's fault: code and address.
    Fault(Fault, u64),
    /// Memory is on the move: try again.
    Moving,
}

impl Stop {
    /// A fault that no address explains.
    pub const fn fault(fault: Fault) -> Self {
        Self::Fault(fault, 0)
    }
}

/// One address space with the segments that it leads to.
#[derive(Debug, Clone, Copy)]
pub struct Space<'a> {
    /// The table file of the vGPU.
    pub tables: &'a Mapping,
    /// Page index of the root.
    pub root: u64,
    /// The segments.
    pub segments: &'a Segments,
}

impl Space<'_> {
    /// Notes what is missing, so that it is asked for, and found out when it is there.
    fn stop(&self, miss: Miss) -> Stop {
        match miss {
            Miss::Fault(address) => Stop::Fault(Fault::PageFault, address),
            Miss::Moving(address) => {
                self.segments.wants.note(self.root, address, false);
                Stop::Moving
            }
            Miss::Evicted(address) => {
                self.segments.wants.note(self.root, address, true);
                Stop::Moving
            }
        }
    }

    /// Whether an address that was missing, in this space or another, still is.
    pub fn is_missing(&self, missing: Missing) -> bool {
        let looked = reader::resolve(self.tables, missing.root, missing.va, 1, Intent::Read, |_| {});
        looked.is_err_and(|miss| Self { root: missing.root, ..*self }.stop(miss) == Stop::Moving)
    }

    /// A range that must lie in one piece, to be stored to by a caller that says so before each time
    /// ([`crate::memory::writes::Writes::open`]).
    pub fn run(&self, address: u64, length: u64) -> Result<(Run, Place), Stop> {
        let run = reader::resolve_one(self.tables, self.root, address, length, Intent::Write)
            .map_err(|miss| self.stop(miss))?;
        self.segments.uses.note(run);
        let place = self.segments.place(run).ok_or(Stop::Fault(Fault::PageFault, address))?;
        Ok((run, place))
    }

    /// The runs of a range.
    pub fn runs(&self, address: u64, length: u64, intent: Intent) -> Result<Vec<Run>, Stop> {
        let mut runs = Vec::new();
        reader::resolve(self.tables, self.root, address, length, intent, |run| runs.push(run))
            .map_err(|miss| self.stop(miss))?;
        for run in &runs {
            self.segments.uses.note(*run);
            if intent == Intent::Write {
                self.segments.writes.open(*run, self.segments.length(run.segment));
            }
        }
        Ok(runs)
    }

    /// A range that must lie in one piece.
    pub fn place(&self, address: u64, length: u64, intent: Intent) -> Result<Place, Stop> {
        let run = reader::resolve_one(self.tables, self.root, address, length, intent)
            .map_err(|miss| self.stop(miss))?;
        self.segments.uses.note(run);
        if intent == Intent::Write {
            self.segments.writes.open(run, self.segments.length(run.segment));
        }
        self.segments.place(run).ok_or(Stop::Fault(Fault::PageFault, address))
    }

    /// As [`Self::place`], to be stored to at any time until what was resolved is dropped.
    pub fn place_to_keep(&self, address: u64, length: u64) -> Result<Place, Stop> {
        let run = reader::resolve_one(self.tables, self.root, address, length, Intent::Write)
            .map_err(|miss| self.stop(miss))?;
        self.segments.uses.note(run);
        self.segments.writes.hold(run, self.segments.length(run.segment));
        self.segments.place(run).ok_or(Stop::Fault(Fault::PageFault, address))
    }

    /// A 64-bit word, which must be aligned.
    pub fn word(&self, address: u64, intent: Intent) -> Result<Place, Stop> {
        if !address.is_multiple_of(8) {
            return Err(Stop::Fault(Fault::PacketField, address));
        }
        self.place(address, 8, intent)
    }

    /// The grid of an indirect dispatch: three words.
    pub fn read_grid(&self, address: u64) -> Result<[u32; 3], Stop> {
        let mut bytes = [0; 12];
        self.read(address, &mut bytes)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Ok([word(0), word(4), word(8)])
    }

    /// Copies `into.len()` bytes out of the space.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Stop> {
        let mut at: usize = 0;
        let mut outside = false;
        let mut is_lost = false;
        reader::resolve(self.tables, self.root, address, into.len() as u64, Intent::Read, |run| {
            if run.segment == SegmentId::LOCAL {
                self.segments.uses.note(run);
                let end = usize::try_from(run.length).map_or(usize::MAX, |length| at.saturating_add(length));
                let read = into.get_mut(at..end).and_then(|part| self.segments.read_by_device(run, part));
                match read {
                    Some(Ok(())) => at = end,
                    Some(Err(_)) => is_lost = true,
                    None => outside = true,
                }
                return;
            }
            let Some(slice) =
                self.segments.get(run.segment).and_then(|map| map.slice(run.offset, run.length))
            else {
                outside = true;
                return;
            };
            self.segments.uses.note(run);
            let end = at + slice.len();
            slice.copy_to(&mut into[at..end]);
            at = end;
        })
        .map_err(|miss| self.stop(miss))?;
        if is_lost {
            return Err(Stop::Fault(Fault::Driver, address));
        }
        if outside { Err(Stop::Fault(Fault::PageFault, address)) } else { Ok(()) }
    }
}

//! Copies and fills, a chunk at a time.

use campanile_protocol::packet::Copy;
use campanile_protocol::packet::Fault;
use campanile_protocol::packet::Fill;
use campanile_protocol::page_table::SegmentId;

use super::space::Space;
use super::space::Stop;
use crate::memory::page_table::reader::Intent;
use crate::memory::page_table::reader::Run;

/// Bytes between two looks at whether to stop: the preemption granularity of a transfer.
pub const CHUNK_BYTES: u64 = 256 * 1024;

/// The same where the device copies: each chunk is a submission of its own, and faster.
const DEVICE_CHUNK_BYTES: u64 = 4 << 20;

const PATTERN_BYTES: usize = 4096;

/// Refuses a copy whose ranges overlap or leave the 64-bit space.
pub fn check_copy(copy: &Copy) -> Result<(), Fault> {
    let source_end = copy.source_va.checked_add(copy.size).ok_or(Fault::PacketField)?;
    let target_end = copy.target_va.checked_add(copy.size).ok_or(Fault::PacketField)?;
    if copy.source_va < target_end && copy.target_va < source_end && copy.size > 0 {
        return Err(Fault::PacketField);
    }
    Ok(())
}

/// Copies the chunk that begins `done` bytes into the packet; returns its length, 0 at the end.
pub fn copy_chunk(space: &Space<'_>, copy: &Copy, done: u64) -> Result<u64, Stop> {
    let length = (copy.size - done).min(chunk_bytes(space));
    if length == 0 {
        return Ok(0);
    }
    let mut sources = space.runs(copy.source_va + done, length, Intent::Read)?.into_iter();
    let mut targets = space.runs(copy.target_va + done, length, Intent::Write)?.into_iter();
    let mut source = sources.next();
    let mut target = targets.next();
    while let (Some(from), Some(to)) = (source, target) {
        let piece = from.length.min(to.length);
        let missing = Stop::Fault(Fault::PageFault, copy.source_va);
        if from.segment == SegmentId::LOCAL || to.segment == SegmentId::LOCAL {
            let copied = space.segments.copy_by_device(from, to, piece).ok_or(missing)?;
            copied.map_err(|_lost| Stop::Fault(Fault::Driver, copy.source_va))?;
        } else {
            let from_slice = segment_slice(space, from, piece).ok_or(missing)?;
            let to_slice = segment_slice(space, to, piece).ok_or(missing)?;
            from_slice.copy_to_volatile_slice(to_slice);
        }
        source = advance(from, piece).or_else(|| sources.next());
        target = advance(to, piece).or_else(|| targets.next());
    }
    Ok(length)
}

/// Fills the chunk that begins `done` bytes into the packet; returns its length, 0 at the end.
pub fn fill_chunk(space: &Space<'_>, fill: &Fill, done: u64) -> Result<u64, Stop> {
    let length = (fill.size - done).min(chunk_bytes(space));
    if length == 0 {
        return Ok(0);
    }
    let address = fill.target_va.checked_add(done).ok_or(Stop::fault(Fault::PacketField))?;
    let mut pattern = [0u8; PATTERN_BYTES];
    for word in pattern.chunks_exact_mut(4) {
        word.copy_from_slice(&fill.value.to_le_bytes());
    }
    for run in space.runs(address, length, Intent::Write)? {
        let missing = Stop::Fault(Fault::PageFault, address);
        if run.segment == SegmentId::LOCAL {
            let filled = space.segments.fill_by_device(run, fill.value).ok_or(missing)?;
            filled.map_err(|_lost| Stop::Fault(Fault::Driver, address))?;
            continue;
        }
        let mut at = 0;
        while at < run.length {
            let piece = (run.length - at).min(PATTERN_BYTES as u64);
            let slice = segment_slice(space, Run { offset: run.offset + at, ..run }, piece).ok_or(missing)?;
            slice.copy_from(&pattern[..slice.len()]);
            at += piece;
        }
    }
    Ok(length)
}

fn chunk_bytes(space: &Space<'_>) -> u64 {
    if space.segments.has_device() { DEVICE_CHUNK_BYTES } else { CHUNK_BYTES }
}

fn segment_slice<'a>(space: &Space<'a>, run: Run, length: u64) -> Option<vm_memory::VolatileSlice<'a>> {
    space.segments.get(run.segment)?.slice(run.offset, length)
}

fn advance(run: Run, piece: u64) -> Option<Run> {
    (run.length > piece).then(|| Run { offset: run.offset + piece, length: run.length - piece, ..run })
}

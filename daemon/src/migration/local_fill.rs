//! Local memory of a device's own at the end of a migration: what has come for it lies in a file, and the device copies it to where it
//! belongs, before the guest goes on.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;

use campanile_host_gpu::engine::message::MoveSide;
use campanile_host_gpu::memory::vram::create_memfd;
use rustix::fs::FallocateFlags;

use super::error::MigrationError;
use super::pages::PAGE;
use super::pages::PageSet;
use crate::vgpu::memory::vidmm::in_device::Claimed;
use crate::vgpu::memory::vidmm::local_port::LocalPort;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::session::Session;
use crate::vgpu::state::restore::install::claim_local;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::memory::SavedAllocation;
use crate::vgpu::state::saved::memory::SavedPlace;

/// Zero pages between others that are copied with them: a request more would take as long.
const GAP: u64 = 64;
/// How often it is tried, with a process each.
const ATTEMPTS: u32 = 3;

/// Where the contents of local memory are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// In the file that has come.
    InFile,
    /// In the device's memory: it is the same memory.
    InPlace,
}

/// Has the allocations of a state that lie in a device's own memory find their contents there. `received` are the pages that have
/// come; nothing was restored yet.
///
/// # Errors
/// Two allocations have one place, or the device does not do it.
pub(super) fn fill(
    session: &mut Session,
    contents: Contents,
    received: &PageSet,
    state: &SavedSession,
) -> Result<(), MigrationError> {
    let Some(port) = session.video_memory().device().map(|device| device.reader().port().clone()) else {
        return Ok(());
    };
    let mut pieces = Vec::new();
    for SavedAllocation(id, bytes, place, _) in &state.allocations {
        let SavedPlace::Local(offset) = *place else { continue };
        let claimed = claim_local(session, offset, *bytes);
        let claimed = claimed.ok_or_else(|| {
            MigrationError::State(format!(
                "the place of allocation {id} is taken, or outside of local memory"
            ))
        })?;
        let (first, end) = (offset / PAGE, (offset + bytes) / PAGE);
        match claimed {
            Claimed::Unclean => pieces.push((first, end)),
            Claimed::Zero => pieces.extend(runs(received, first, end)),
        }
    }
    if contents == Contents::InFile {
        let file = session.video_memory().file();
        copy(&port, file, &pieces)
            .map_err(|error| MigrationError::State(format!("filling local memory of the device: {error}")))?;
        free(file, &port);
    }
    if let Some(device) = session.video_memory().device() {
        device.is_filled();
    }
    Ok(())
}

/// Device pages that would lie in a device's own memory, where no CPU sees them, lie among what is evicted instead: their
/// allocations were in no guest's sight where local memory is the host's, or are those of a process that is away.
///
/// # Errors
/// There is no room for them, or they cannot be copied.
pub(super) fn lift_pages(session: &Session, state: &mut SavedSession) -> Result<(), MigrationError> {
    let memory = session.video_memory();
    if memory.device().is_none() {
        return Ok(());
    }
    let pages: BTreeSet<u64> =
        state.processes.iter().filter_map(|process| Some(process.device.as_ref()?.page_allocation)).collect();
    let evicted = |it: &SavedAllocation| match it.2 {
        SavedPlace::Host(offset) => offset.checked_add(it.1),
        _ => None,
    };
    let mut free = state.allocations.iter().filter_map(evicted).max().unwrap_or(0);
    for SavedAllocation(id, bytes, place, _) in &mut state.allocations {
        let SavedPlace::Local(offset) = *place else { continue };
        if !pages.contains(id) {
            continue;
        }
        let nowhere =
            || MigrationError::State(format!("no room for allocation {id}, which has a device page"));
        if !memory.has_place(Place::Local(offset), *bytes) || !memory.has_place(Place::Host(free), *bytes) {
            return Err(nowhere());
        }
        let from = memory.mapping().slice(offset, *bytes);
        let to = memory.mapping_of(Place::Host(free)).slice(free, *bytes);
        let (from, to) = from.zip(to).ok_or_else(nowhere)?;
        from.copy_to_volatile_slice(to);
        memory.mark(Place::Host(free), free, *bytes);
        *place = SavedPlace::Host(free);
        free += *bytes;
    }
    Ok(())
}

/// Runs of what was received from page `first` to page `end`, with short gaps between them.
fn runs(received: &PageSet, first: u64, end: u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut at = first;
    while let Some(run) = received.next_run(at, end.saturating_sub(at)).filter(|run| run.start < end) {
        let stop = run.end.min(end);
        match runs.last_mut() {
            Some((_, last)) if run.start - *last <= GAP => *last = stop,
            _ => runs.push((run.start, stop)),
        }
        at = stop;
    }
    runs
}

fn copy(port: &LocalPort, file: &File, pieces: &[(u64, u64)]) -> io::Result<()> {
    if pieces.is_empty() {
        return Ok(());
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        match copy_once(port, file, pieces) {
            Err(error) if attempts < ATTEMPTS => {
                log::warn!("filling local memory of the device: {error}; once more");
            }
            done => return done,
        }
    }
}

fn copy_once(port: &LocalPort, file: &File, pieces: &[(u64, u64)]) -> io::Result<()> {
    let nothing = create_memfd("campanile-nothing", PAGE)?;
    let mut process = port.open(&nothing, file)?;
    pieces.iter().try_for_each(|(first, end)| {
        let (offset, bytes) = (first * PAGE, (end - first) * PAGE);
        process.carry_out(MoveSide::Evicted(offset), MoveSide::Local(offset), bytes)
    })
}

/// What came for local memory is not needed any more.
fn free(file: &File, port: &LocalPort) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(error) = rustix::fs::fallocate(file, flags, port.start(), port.bytes()) {
        log::warn!("giving back what came for local memory of the device: {error}");
    }
}

#[cfg(test)]
mod tests;

//! A session whose engines run, as data: for a daemon that goes on with it if this one is killed.
//!
//! ```text
//!   session ──save_at_work──▶ state, SavedAtWork         shared blocks, values of native fences: in files that outlive the daemon
//!                                       └──────── overtake ◀────────┘
//!                                                     │
//!                                   state, as it was when the last engine had ended ──restore──▶ session
//! ```
//!
//! What engines change without the session is in their blocks, and nowhere else: how far user-mode queues are, and what has become of kernel-mode
//! buffers. So is what they ran. Whatever else changes, the session has changed, and what was taken before counts no more.

use std::fs::File;
use std::sync::Arc;

use rustix::time::ClockId;
use rustix::time::clock_gettime;

use super::snapshot::SaveError;
use super::snapshot::Saver;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::objects::process::MAX_SOFTWARE_QUEUE;
use crate::vgpu::session::Session;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::at_work::SavedAtWork;
use crate::vgpu::state::saved::at_work::SavedFlight;
use crate::vgpu::state::saved::at_work::SavedWatch;

/// The session as it is, while engines run, and what of it they change. Nothing stops for that.
///
/// # Errors
/// Something is under way that has no place in a state.
pub fn save_at_work(session: &Session) -> Result<(SavedSession, SavedAtWork), SaveError> {
    if session.is_stopping() {
        return Err(SaveError::NotSettled("a standstill"));
    }
    let saver = Saver::of(session);
    saver.check_settled()?;
    let is_starting = |slot: &EngineSlot| slot.hears() && !slot.has_begun();
    // What the one before it has half done is for it to make up for, in the same block.
    if session.vm.engines.iter().any(is_starting) {
        return Err(SaveError::NotSettled("the start of an engine"));
    }
    // Buffers that engines have, and those behind them, are one queue in a state.
    let with_engines: usize = session.vm.engines.iter().map(|slot| slot.in_flight.len()).sum();
    let devices = session.vm.objects.processes.values().filter_map(|process| process.device.as_ref());
    let mut contexts = devices.flat_map(|device| device.contexts.iter());
    if contexts.any(|(_, context)| context.software_queue.len() + with_engines > MAX_SOFTWARE_QUEUE) {
        return Err(SaveError::NotSettled("a full queue"));
    }
    Ok((saver.collect()?, watched(session)))
}

/// Milliseconds of the host since it was started.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}

/// The shared block of each engine that has one, by its place.
pub fn blocks(session: &Session) -> impl Iterator<Item = (u32, &Arc<File>)> {
    let slots = (0..).zip(session.vm.engines.iter());
    slots.filter_map(|(place, slot)| Some((place, slot.process()?.block())))
}

/// The file that the values of native fences lie in.
pub fn fence_values(session: &Session) -> &Arc<File> {
    session.vm.fences.file()
}

fn watched(session: &Session) -> SavedAtWork {
    let mut queues = Vec::new();
    for (process, its) in &session.vm.objects.processes {
        let places = its.device.iter().flat_map(|device| (0..).zip(device.doorbells.places()));
        let known = places.filter_map(|(place, (_, doorbell))| {
            let doorbell = doorbell?;
            let engine = u32::try_from(doorbell.at.index()).ok()?;
            Some(SavedWatch(*process, place, engine, doorbell.hw_queue?.get()))
        });
        queues.extend(known);
    }
    let flights = (0..).zip(session.vm.engines.iter()).flat_map(|(engine, slot)| {
        slot.in_flight.iter().map(move |flight| {
            let order = flight.owner.map_or(0, |(_, buffer)| buffer.order);
            let owner = flight.owner.map(|(of, buffer)| (of, buffer.context.get().index()));
            SavedFlight(engine, flight.fence_id, order, owner)
        })
    });
    SavedAtWork {
        taken: now(),
        engines: blocks(session).map(|(place, _)| place).collect(),
        queues,
        flights: flights.collect(),
    }
}

//! A session whose engines run, as data: for a daemon that goes on with it if this one is killed.
//!
//! ```text
//!   session ──save_at_work──▶ state, SavedAtWork         shared blocks, values of native fences: in files that outlive the daemon
//!                                       └──────── overtake ◀────────┘
//!                                                     │
//!                                   state, as it was when the last engine had ended ──restore──▶ session
//! ```
//!
//! What engines change without the session is in their blocks, and nowhere else: how far user-mode queues are. So is what they ran. Whatever else
//! changes, the session has changed, and what was taken before counts no more.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

use super::snapshot::SaveError;
use super::snapshot::Saver;
use crate::ids::GuestProcess;
use crate::vgpu::session::Session;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::at_work::SavedAtWork;
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
    Ok((saver.collect()?, watched(session)))
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
    let with_engines = session.vm.engines.iter().flat_map(|slot| &slot.in_flight);
    let interrupted: BTreeSet<GuestProcess> =
        with_engines.filter_map(|flight| Some(flight.owner.as_ref()?.0)).collect();
    SavedAtWork {
        engines: blocks(session).map(|(place, _)| place).collect(),
        queues,
        interrupted: interrupted.into_iter().collect(),
    }
}

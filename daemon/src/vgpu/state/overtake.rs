//! A state that was taken while engines ran becomes that of the moment in which the last of them had ended.
//!
//! | engine, when it ended | its user-mode queues | the process whose work it ran |
//! |---|---|---|
//! | had put all aside | go on from where they are | — |
//! | was killed within a buffer | the others go on from where they are | its device is lost: a buffer that ran half is not to run again |
//!
//! Kernel-mode buffers that an engine had are known to have been run or not by a session alone: the devices of their processes are lost.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use campanile_host_gpu::adapter::remnant::Remnant;
use campanile_host_gpu::ids::QueueIndex;
use campanile_protocol::engine::progress::Work;

use super::saved::SavedSession;
use super::saved::at_work::SavedAtWork;
use super::saved::at_work::SavedWatch;
use super::saved::process::SavedQueuePlace;
use crate::ids::GuestProcess;

/// Why a state cannot be brought up to date.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OvertakeError {
    /// What an engine has left is not there.
    #[error("the block of engine {0} is missing")]
    Block(u32),
    /// An engine ran what the state does not know.
    #[error("engine {0} ran {1}, which the state does not know")]
    Unknown(u32, &'static str),
    /// A native fence whose value is not there.
    #[error("the value of native fence {0} is missing")]
    Fence(u32),
    /// The queue of a doorbell that there is not.
    #[error("process {0} has no doorbell {1}")]
    Doorbell(GuestProcess, u32),
}

/// Brings a state up to date by what engines have left, each by its place, and by the values of native fences. The guest processes whose devices
/// are to be lost.
///
/// # Errors
/// Something is missing, or does not fit: nothing is known of the session then.
pub fn overtake(
    saved: &mut SavedSession,
    at_work: &SavedAtWork,
    engines: &BTreeMap<u32, Remnant>,
    value: impl Fn(u32) -> Option<u64>,
) -> Result<BTreeSet<GuestProcess>, OvertakeError> {
    let mut lost: BTreeSet<GuestProcess> = at_work.interrupted.iter().copied().collect();
    for place in &at_work.engines {
        let engine = engines.get(place).ok_or(OvertakeError::Block(*place))?;
        match engine.work() {
            Work::Nothing => {}
            // Whose it was, is among these.
            Work::HwQueue if !lost.is_empty() => {}
            Work::HwQueue => return Err(OvertakeError::Unknown(*place, "a kernel-mode buffer")),
            Work::UserQueue(queue) => {
                let its = |watch: &&SavedWatch| (watch.2, watch.3) == (*place, queue);
                let owner = at_work.queues.iter().find(its);
                lost.insert(owner.ok_or(OvertakeError::Unknown(*place, "a user-mode queue"))?.0);
            }
        }
    }
    for SavedWatch(process, doorbell, engine, queue) in &at_work.queues {
        let engine = engines.get(engine).ok_or(OvertakeError::Block(*engine))?;
        let device = saved.processes.iter_mut().find(|saved| saved.context == *process);
        let mut doorbells = device.and_then(|process| process.device.as_mut()).map(|device| &mut device.doorbells.0);
        let place = usize::try_from(*doorbell).unwrap_or(usize::MAX);
        let found = doorbells.as_mut().and_then(|doorbells| doorbells.get_mut(place)?.1.as_mut());
        let found = found.ok_or(OvertakeError::Doorbell(*process, *doorbell))?;
        let at = engine.queue_place(QueueIndex::new(*queue));
        found.place = Some(SavedQueuePlace {
            consumed: at.consumed,
            completed: at.completed,
            is_saved: at.is_saved,
            progress: None,
        });
    }
    for fence in &mut saved.fences {
        fence.3 = value(fence.0).ok_or(OvertakeError::Fence(fence.0))?;
    }
    Ok(lost)
}

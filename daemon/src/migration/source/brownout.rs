//! What the thread of a brownout does.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use super::departure::Departure;
use super::departure::Job;
use super::departure::To;
use super::progress::Step;
use super::road::Road;
use super::road::greet;
use crate::migration::brownout::pace::Pace;
use crate::migration::brownout::pass::lower_priority;
use crate::migration::brownout::plan::Next;
use crate::migration::brownout::plan::estimate;
use crate::migration::brownout::sheet::Sheet;
use crate::migration::channel::line::Line;
use crate::migration::error::MigrationError;
use crate::migration::id::BundleId;

/// How long one that waits for the pause waits before it looks again what is dirty.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Passes until the VM is paused, or it is called off; then the lines are left for the save.
pub(super) fn run(departure: &Departure, job: &Job) {
    lower_priority();
    let outcome = passes(departure, job);
    departure.park(job, outcome);
}

fn passes(departure: &Departure, job: &Job) -> Result<Road<Line>, MigrationError> {
    let To::Peer(peer, vgpu) = &job.to else {
        return Err(MigrationError::State("a side file has no brownout".to_owned()));
    };
    let (settings, departing, progress) = (&departure.settings, &job.departing, &*job.progress);
    // First of all, whether tracking is cheap or not (LM-15).
    let sheet = Sheet::begin(departing.memories())?;
    progress.step(Step::Begin { left_bytes: sheet.pending_bytes() });
    progress.say("greeting the target");
    let bundle = BundleId::random()?;
    let lines = greet(departing, vgpu, bundle, peer, settings)?;
    let mut road = Road::new(bundle, lines, sheet);
    log::info!("vGPU {}: bundle {bundle} is on its way to {peer}", departure.name);
    let pace = settings.bandwidth.map(|rate| Mutex::new(Pace::new(rate, Instant::now())));
    if !departing.memories().iter().all(|memory| memory.is_tracked()) {
        // What would be sent now would be sent again (DIRTY-60).
        progress.say("waiting for the pause: writes are not tracked, so all goes then");
        while !job.stop.load(Ordering::Acquire) {
            road.still()?;
            nap(departure, job);
        }
        return Ok(road);
    }
    let mut is_waiting = false;
    while !job.stop.load(Ordering::Acquire) {
        if !is_waiting {
            progress.begin_pass(road.sheet.pending_bytes());
            let sent = road.pass(departing, settings, pace.as_ref(), &job.stop, progress)?;
            progress.end_pass(road.passes(), false, sent);
            if job.stop.load(Ordering::Acquire) {
                break;
            }
        }
        let left = road.query(departing, progress)?;
        progress.left(left);
        let rate = progress.rate();
        // While the VM is awaited, passes keep what is left small.
        let keep = is_waiting && estimate(left, rate) > settings.goal.pause;
        is_waiting = match settings.goal.next(road.passes(), left, rate) {
            Next::Pass => false,
            Next::Converged | Next::GaveUp if keep => false,
            Next::Converged => {
                progress.say("waiting for the pause");
                true
            }
            Next::GaveUp => {
                progress.say("waiting for the pause: the guest writes faster than the line takes");
                true
            }
        };
        if is_waiting {
            road.still()?;
            nap(departure, job);
        }
    }
    Ok(road)
}

/// Waits a little, or until it is to end.
fn nap(departure: &Departure, job: &Job) {
    let state = departure.lock();
    let goes_on = |_: &mut super::departure::State| !job.stop.load(Ordering::Acquire);
    let _over = departure
        .changed
        .wait_timeout_while(state, LOOK_AGAIN, goes_on)
        .unwrap_or_else(PoisonError::into_inner);
}

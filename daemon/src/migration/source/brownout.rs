//! A brownout: how it begins, and what its thread does.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::log_limit::inherit;

use super::departure::Departure;
use super::departure::Job;
use super::departure::State;
use super::departure::To;
use super::departure::Way;
use super::kernels::KernelsAhead;
use super::phase::Phase;
use super::progress::Step;
use super::sinks::Sinks;
use super::sinks::greet;
use crate::migration::channel::address::Peer;
use crate::migration::channel::line::Line;
use crate::migration::error::MigrationError;
use crate::migration::id::BundleId;
use crate::migration::passes::dirty_bitmap::DirtyBitmap;
use crate::migration::passes::pace::Pace;
use crate::migration::passes::pass::lower_priority;
use crate::migration::passes::plan::Next;
use crate::migration::passes::plan::estimate;
use crate::vgpu::objects::spans::TARGET;

/// How long a brownout that waits for the pause waits before it queries the dirty pages again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Departure {
    /// Begins a brownout to `peer`, where the vGPU is called `vgpu`; to the configured peer without one (LM-11).
    ///
    /// # Errors
    /// No VM is connected, a migration is under way, or there is no peer.
    pub fn start(self: &Arc<Self>, to: Option<(Peer, String)>) -> Result<(), MigrationError> {
        let configured = self.settings.peer.clone().map(|peer| (peer, self.name.clone()));
        let (peer, vgpu) = to
            .or(configured)
            .ok_or_else(|| MigrationError::State("there is no peer: give --migrate-to".to_owned()))?;
        let mut state = self.lock();
        let job = self.prepare(&mut state, To::Peer(peer, vgpu))?;
        state.way = Way::Busy;
        let departure = Arc::clone(self);
        let begun =
            thread::Builder::new().name("migrate".to_owned()).spawn(inherit(move || run(&departure, &job)));
        match begun {
            Ok(thread) => {
                state.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                state.way = Way::None;
                self.over(&mut state, "no thread for it");
                Err(error.into())
            }
        }
    }

    /// The front-end begins to log dirty pages of guest memory, or ends that: it migrates, or has changed its mind.
    pub fn log_changed(self: &Arc<Self>, is_set: bool) {
        let begun = is_set && self.settings.peer.is_some();
        if begun && self.lock().phase == Phase::Idle {
            match self.start(None) {
                Ok(()) => self.lock().by_front_end = true,
                Err(error) => log::warn!("vGPU {}: no brownout: {error}", self.name),
            }
        } else if !is_set && self.lock().by_front_end {
            let _nothing = self.cancel("the front-end has called its migration off");
        }
    }
}

/// Passes until the VM is paused, or it is called off; then the lines are left for the save.
fn run(departure: &Departure, job: &Job) {
    lower_priority();
    let _span = tracing::info_span!(target: TARGET, "migration", vgpu = departure.name).entered();
    let outcome = passes(departure, job);
    departure.park(job, outcome);
}

fn passes(departure: &Departure, job: &Job) -> Result<Sinks<Line>, MigrationError> {
    let To::Peer(peer, vgpu) = &job.to else {
        return Err(MigrationError::State("a side file has no brownout".to_owned()));
    };
    let (settings, departing, progress) = (&departure.settings, &job.departing, &*job.progress);
    // First of all, whether tracking is cheap or not (LM-15).
    let dirty = DirtyBitmap::begin(departing.memories())?;
    progress.step(Step::Begin { left_bytes: dirty.pending_bytes() });
    progress.say("greeting the target");
    let bundle = BundleId::random()?;
    let (version, lines) = greet(departing, vgpu, bundle, peer, settings)?;
    let mut ahead = KernelsAhead::to(version);
    let mut sinks = Sinks::new(bundle, lines, dirty);
    log::info!("vGPU {}: bundle {bundle} is on its way to {peer}", departure.name);
    let pace = settings.bandwidth.map(|rate| Mutex::new(Pace::new(rate, Instant::now())));
    if !departing.memories().iter().all(|memory| memory.is_tracked()) {
        // What would be sent now would be sent again (DIRTY-60).
        progress.say("waiting for the pause: writes are not tracked, so all goes then");
        while !job.stop.load(Ordering::Acquire) {
            send_kernels(&mut ahead, &mut sinks, job, pace.as_ref())?;
            sinks.still()?;
            nap(departure, job);
        }
        return Ok(sinks);
    }
    let mut is_waiting = false;
    while !job.stop.load(Ordering::Acquire) {
        // First, so that the target compiles while pages come.
        let kernels_left = send_kernels(&mut ahead, &mut sinks, job, pace.as_ref())?;
        if !is_waiting {
            progress.begin_pass(sinks.dirty.pending_bytes());
            let sent = sinks.pass(departing, settings, pace.as_ref(), &job.stop, progress)?;
            progress.end_pass(sinks.passes(), false, sent);
            if job.stop.load(Ordering::Acquire) {
                break;
            }
        }
        let left = sinks.query(departing, progress)?;
        progress.left(left);
        let rate = progress.rate();
        // While the VM is awaited, passes keep what is left small.
        let keep = is_waiting && estimate(left, rate) > settings.goal.pause;
        is_waiting = match settings.goal.next(sinks.passes(), left, rate) {
            Next::Pass => false,
            Next::Converged | Next::GaveUp if keep => false,
            Next::Converged => {
                match kernels_left {
                    0 => progress.say("waiting for the pause"),
                    left => {
                        progress.say(&format!("waiting for the pause: the target compiles {left} kernels"))
                    }
                }
                true
            }
            Next::GaveUp => {
                progress.say("waiting for the pause: the guest writes faster than the line takes");
                true
            }
        };
        if is_waiting {
            sinks.still()?;
            nap(departure, job);
        }
    }
    Ok(sinks)
}

/// Sends new kernels over the line that is spoken over. How many the target has still to compile.
fn send_kernels(
    ahead: &mut KernelsAhead,
    sinks: &mut Sinks<Line>,
    job: &Job,
    pace: Option<&Mutex<Pace>>,
) -> Result<u64, MigrationError> {
    let Some(line) = sinks.each.first_mut() else { return Ok(0) };
    let kernels = ahead.send(line, &job.departing.kernels, pace, &job.stop)?;
    job.progress.kernels(kernels);
    Ok(kernels.left)
}

/// Waits a little, or until it is to end.
fn nap(departure: &Departure, job: &Job) {
    let state = departure.lock();
    let goes_on = |_: &mut State| !job.stop.load(Ordering::Acquire);
    let _over = departure
        .changed
        .wait_timeout_while(state, LOOK_AGAIN, goes_on)
        .unwrap_or_else(PoisonError::into_inner);
}

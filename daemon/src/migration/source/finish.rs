//! The last pass, with the VM paused.

use campanile_host_gpu::log_limit::inherit;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use super::departure::Departure;
use super::departure::Held;
use super::departure::Job;
use super::departure::State;
use super::departure::To;
use super::departure::Way;
use super::departure::order;
use super::hold::Hold;
use super::phase::OutOfOrder;
use super::phase::Phase;
use super::progress::Step;
use super::sinks::Sinks;
use super::sinks::greet;
use super::sinks::hello;
use crate::migration::channel::address::Peer;
use crate::migration::channel::message::Message;
use crate::migration::error::MigrationError;
use crate::migration::file::write::Draft;
use crate::migration::id::BundleId;
use crate::migration::passes::dirty_bitmap::DirtyBitmap;
use crate::migration::passes::pass::Sink;

impl Departure {
    /// The VM is paused, and nothing writes to the memories any more: sends the rest, or everything where there was no brownout.
    /// Waits, on a thread that may; returns once a target has everything. The state that is saved must name the bundle.
    ///
    /// # Errors
    /// It has failed, and the source goes on: nothing is left at the target.
    pub fn finish(&self) -> Result<BundleId, MigrationError> {
        let (job, way, stopped) = {
            let mut state = self.lock();
            let stopped = state.stopped.take().unwrap_or_else(Instant::now);
            let job = if state.phase == Phase::Idle {
                // Where a brownout was wanted that has failed, it is tried once more.
                let to = state.to.take().unwrap_or_else(|| self.configured());
                self.prepare(&mut state, to)?
            } else {
                self.current(&state)?
            };
            state.phase.finish().map_err(order)?;
            job.stop.store(true, Ordering::Release);
            self.changed.notify_all();
            let busy = |state: &mut State| matches!(state.way, Way::Busy);
            // It looks at `stop` between two records.
            let limit = self.settings.timeouts.message * 2;
            let waited = self.changed.wait_timeout_while(state, limit, busy);
            let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            if waited.timed_out() {
                self.over(&mut state, "the brownout does not end");
                return Err(MigrationError::Stalled);
            }
            (job, std::mem::take(&mut state.way), stopped)
        };
        let last = Arc::new(AtomicBool::new(false));
        self.lock().stop = Arc::clone(&last);
        let outcome = match (&job.to, way) {
            (To::Peer(peer, vgpu), way) => self.finish_line(&job, peer, vgpu, way, &last),
            (To::SideFile, _) => self.finish_file(&job, &last),
        };
        let mut state = self.lock();
        match outcome {
            Ok((bundle, held)) => {
                // Called off meanwhile: the target forgets it.
                if !Arc::ptr_eq(&state.stop, &last) {
                    self.forget(&held);
                    return Err(MigrationError::CalledOff("the VM runs again".to_owned()));
                }
                if let Err(error) = state.phase.hold() {
                    self.forget(&held);
                    return Err(order(error));
                }
                let blackout = stopped.elapsed();
                log::info!(
                    "vGPU {}: bundle {bundle} is complete, {} ms after the vGPU was to stand still",
                    self.name,
                    blackout.as_millis()
                );
                job.progress.blackout(blackout);
                // Nothing is written any more, and a vGPU that goes on from here begins anew.
                job.departing.end();
                state.held = Some(held);
                job.progress.say("complete");
                Ok(bundle)
            }
            Err(error) => {
                if state.phase == Phase::Finishing && Arc::ptr_eq(&state.stop, &last) {
                    let failed = error.to_string();
                    self.over(&mut state, &failed);
                }
                Err(error)
            }
        }
    }

    fn current(&self, state: &State) -> Result<Job, MigrationError> {
        let none = || order(OutOfOrder::NotPrepared);
        Ok(Job {
            departing: state.departing.clone().ok_or_else(none)?,
            to: state.to.clone().unwrap_or_else(|| self.configured()),
            stop: Arc::clone(&state.stop),
            progress: Arc::clone(&state.progress),
        })
    }

    /// Where bundles go where no request says otherwise.
    pub(super) fn configured(&self) -> To {
        let peer = self.settings.peer.clone();
        peer.map_or(To::SideFile, |peer| To::Peer(peer, self.name.clone()))
    }

    fn forget(&self, held: &Held) {
        match held {
            Held::Line(hold) => {
                let _runs = hold.thaw(Duration::ZERO);
            }
            Held::File(bundle) => {
                let _taken = self.side_files.as_ref().map(|files| files.take(*bundle));
            }
        }
    }

    /// Sends what is pending, at full speed.
    fn last_pass<S: Sink>(
        &self,
        job: &Job,
        sinks: &mut Sinks<S>,
        stop: &AtomicBool,
    ) -> Result<(), MigrationError> {
        job.progress.begin_pass(sinks.dirty.pending_bytes());
        let sent = sinks.pass(&job.departing, &self.settings, None, stop, &job.progress)?;
        job.progress.end_pass(sinks.passes(), true, sent);
        Ok(())
    }

    fn finish_line(
        &self,
        job: &Job,
        peer: &Peer,
        vgpu: &str,
        way: Way,
        stop: &AtomicBool,
    ) -> Result<(BundleId, Held), MigrationError> {
        let departing = &job.departing;
        let mut sinks = match way {
            Way::Parked(mut sinks) => {
                if sinks.owes_first_pass(departing) {
                    self.last_pass(job, &mut sinks, stop)?;
                }
                sinks.query(departing, &job.progress)?;
                *sinks
            }
            Way::None | Way::Busy => {
                let bundle = BundleId::random()?;
                let (_, lines) = greet(departing, vgpu, bundle, peer, &self.settings)?;
                Sinks::new(bundle, lines, begin_paused(job)?)
            }
        };
        self.last_pass(job, &mut sinks, stop)?;
        job.progress.left(0);
        let bundle = sinks.bundle;
        let line = sinks.complete()?;
        let hold = Arc::new(Hold::new()?);
        let (its_hold, timeouts) = (Arc::clone(&hold), self.settings.timeouts);
        let thread = thread::Builder::new()
            .name("migrate-hold".to_owned())
            .spawn(inherit(move || its_hold.keep(line, &timeouts)))?;
        self.lock().threads.push(thread);
        Ok((bundle, Held::Line(hold)))
    }

    fn finish_file(&self, job: &Job, stop: &AtomicBool) -> Result<(BundleId, Held), MigrationError> {
        let nowhere = || {
            MigrationError::State("there is no peer (--migrate-to) and no folder (--state-dir)".to_owned())
        };
        let files = self.side_files.as_ref().ok_or_else(nowhere)?;
        let bundle = BundleId::random()?;
        let mut draft = Draft::new(&files.path(bundle))?;
        draft.say(&Message::Hello(hello(&job.departing, &self.name, bundle, 1)))?;
        let mut sinks = Sinks::new(bundle, vec![draft], begin_paused(job)?);
        self.last_pass(job, &mut sinks, stop)?;
        if sinks.dirty.pending_bytes() > 0 {
            return Err(MigrationError::CalledOff("the last pass was cut short".to_owned()));
        }
        let sum = sinks.sum;
        let draft = sinks.each.pop().ok_or_else(nowhere)?;
        draft.finish(&sum)?;
        Ok((bundle, Held::File(bundle)))
    }
}

/// All goes in one pass, since the VM is paused: there is nothing to be asked after that.
fn begin_paused(job: &Job) -> Result<DirtyBitmap, MigrationError> {
    let dirty = DirtyBitmap::begin_paused(job.departing.memories())?;
    job.progress.step(Step::Begin { left_bytes: dirty.pending_bytes() });
    Ok(dirty)
}

//! One vGPU's migrations away from here.

use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;

use super::departing::Departing;
use super::hold::Hold;
use super::phase::OutOfOrder;
use super::phase::Phase;
use super::progress::Progress;
use super::sinks::Sinks;
use crate::migration::channel::address::Peer;
use crate::migration::channel::line::Line;
use crate::migration::error::MigrationError;
use crate::migration::file::side::SideFiles;
use crate::migration::id::BundleId;
use crate::migration::lock::locked;
use crate::migration::settings::Settings;

/// Where a bundle goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    /// To a daemon, and the name of the vGPU there.
    Peer(Peer, String),
    /// Into a side file.
    SideFile,
}

/// Whether the guest may run here.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Thaw {
    /// It may.
    Run,
    /// It runs elsewhere, or may: all devices are lost, for this reason.
    Lost(String),
}

/// The lines of a migration while they are not in use.
#[derive(Debug, Default)]
pub(super) enum Way {
    /// There are none yet, and none is being made.
    #[default]
    None,
    /// The brownout has them.
    Busy,
    /// The brownout has left them.
    Parked(Box<Sinks<Line>>),
}

#[derive(Debug)]
pub(super) enum Held {
    Line(Arc<Hold>),
    File(BundleId),
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) departing: Option<Arc<Departing>>,
    pub(super) to: Option<To>,
    /// Whether the front-end began it, and may so end it.
    pub(super) by_front_end: bool,
    /// When the vGPU was told to stand still.
    pub(super) stopped: Option<Instant>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) way: Way,
    pub(super) progress: Arc<Progress>,
    pub(super) held: Option<Held>,
    /// Set once the guest may run elsewhere, until its session ends.
    lost: Option<String>,
    /// How the last one ended.
    last: Option<String>,
    pub(super) threads: Vec<JoinHandle<()>>,
}

/// One vGPU, as a source; outlives its sessions.
#[derive(Debug)]
pub struct Departure {
    pub(super) name: String,
    pub(super) settings: Settings,
    pub(super) side_files: Option<SideFiles>,
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

/// What a migration works with while no lock is held.
pub(super) struct Job {
    pub(super) departing: Arc<Departing>,
    pub(super) to: To,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) progress: Arc<Progress>,
}

impl Departure {
    /// Of the vGPU `name`.
    ///
    /// # Errors
    /// The folder of side files cannot be made.
    pub fn new(name: String, settings: Settings) -> Result<Self, MigrationError> {
        let folder = settings.side_files.as_deref();
        let side_files =
            folder.map(|folder| SideFiles::open(folder, settings.keep_side_files)).transpose()?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        Ok(Self { name, settings, side_files, state, changed })
    }

    /// Whether a peer is configured.
    pub fn has_peer(&self) -> bool {
        self.settings.peer.is_some()
    }

    /// Whether a migration or a snapshot is under way.
    pub fn is_under_way(&self) -> bool {
        self.lock().phase != Phase::Idle
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// A session begins: this is what of it can move.
    pub fn attach(&self, departing: Departing) {
        let mut state = self.lock();
        state.departing = Some(Arc::new(departing));
        state.lost = None;
    }

    /// The session is gone. What is complete may run elsewhere from here on; what is not is called off.
    pub fn detach(&self) {
        let mut state = self.lock();
        if let Some(Held::Line(hold)) = state.held.take() {
            hold.close();
        }
        if state.phase == Phase::Held {
            self.over(&mut state, "the VM has gone to where its bundle is");
        } else if state.phase != Phase::Idle {
            self.over(&mut state, "the VM is gone");
        }
        state.departing = None;
        state.lost = None;
        state.to = None;
    }

    /// Back to where nothing is under way.
    pub(super) fn over(&self, state: &mut State, why: &str) {
        log::info!("vGPU {}: migration: {why}", self.name);
        state.stop.store(true, Ordering::Release);
        state.phase = Phase::Idle;
        state.held = None;
        if let Way::Parked(sinks) = std::mem::take(&mut state.way) {
            sinks.give_up(why);
        }
        if let Some(departing) = &state.departing {
            departing.end();
        }
        state.last = Some(why.to_owned());
        state.threads.retain(|thread| !thread.is_finished());
        self.changed.notify_all();
    }

    /// The VMM has told the vGPU to stand still: a blackout begins (DIRTY-62).
    pub fn stopped(&self) {
        self.lock().stopped = Some(Instant::now());
    }

    pub(super) fn prepare(&self, state: &mut State, to: To) -> Result<Job, MigrationError> {
        let departing = state.departing.clone();
        let departing = departing.ok_or_else(|| MigrationError::State("no VM is connected".to_owned()))?;
        if let Some(lost) = &state.lost {
            return Err(MigrationError::State(lost.clone()));
        }
        // A brownout that was called off may still be on its way out, and has the memories.
        if matches!(state.way, Way::Busy) {
            return Err(order(OutOfOrder::Twice));
        }
        state.phase.prepare().map_err(order)?;
        state.stop = Arc::new(AtomicBool::new(false));
        state.progress = Arc::new(Progress::default());
        state.to = Some(to.clone());
        state.by_front_end = false;
        Ok(Job { departing, to, stop: Arc::clone(&state.stop), progress: Arc::clone(&state.progress) })
    }

    /// A snapshot begins; nothing else does until [`Self::end_snapshot`].
    pub(super) fn begin_snapshot(&self) -> Result<Job, MigrationError> {
        let mut state = self.lock();
        let job = self.prepare(&mut state, To::SideFile)?;
        state.to = None;
        state.way = Way::Busy;
        Ok(job)
    }

    /// It is over. A save that was asked for meanwhile has waited for that.
    pub(super) fn end_snapshot(&self, job: &Job, words: &str) {
        let mut state = self.lock();
        job.departing.end();
        state.way = Way::None;
        if state.phase == Phase::Brownout && Arc::ptr_eq(&state.stop, &job.stop) {
            self.over(&mut state, words);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Calls a migration off (LM-65).
    ///
    /// # Errors
    /// There is none, or it is complete.
    pub fn cancel(&self, why: &str) -> Result<(), MigrationError> {
        let mut state = self.lock();
        state.phase.abort().map_err(order)?;
        state.to = None;
        self.over(&mut state, why);
        Ok(())
    }

    /// The brownout of `job` is over, and has left its lines, or has failed.
    pub(super) fn park(&self, job: &Job, outcome: Result<Sinks<Line>, MigrationError>) {
        let mut state = self.lock();
        let is_ours = Arc::ptr_eq(&state.stop, &job.stop);
        if outcome.is_err() || !is_ours || state.phase == Phase::Idle {
            // It may have begun after it was called off.
            job.departing.end();
        }
        match outcome {
            Ok(sinks) if is_ours && state.phase != Phase::Idle => state.way = Way::Parked(Box::new(sinks)),
            Ok(sinks) => {
                sinks.give_up("called off");
                if is_ours {
                    state.way = Way::None;
                }
            }
            Err(error) => {
                if is_ours {
                    state.way = Way::None;
                    // Where the VM is paused meanwhile, the save tries once more.
                    if state.phase == Phase::Brownout {
                        log::warn!("vGPU {}: the brownout has failed: {error}", self.name);
                        let failed = error.to_string();
                        self.over(&mut state, &failed);
                    }
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The guest's rings run again here: whether they may. Where a target was already let run, asks it, which takes up to the
    /// time that the operator allows for an answer; else at once.
    pub fn thaw(&self) -> Thaw {
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Thaw::Lost(lost.clone());
        }
        match state.phase {
            Phase::Idle | Phase::Brownout => return Thaw::Run,
            Phase::Finishing => {
                self.over(&mut state, "the VM runs again");
                return Thaw::Run;
            }
            Phase::Held => {}
        }
        let held = state.held.take();
        drop(state);
        let lost = match held {
            Some(Held::Line(hold)) => {
                let runs = hold.thaw(self.settings.timeouts.answer);
                (!runs).then(|| "the guest runs elsewhere, or that cannot be known".to_owned())
            }
            Some(Held::File(bundle)) => {
                let files = self.side_files.as_ref();
                files.and_then(|files| files.take(bundle).err()).map(|error| error.to_string())
            }
            None => None,
        };
        let mut state = self.lock();
        let why = lost.as_deref().unwrap_or("the VM runs here again");
        self.over(&mut state, why);
        state.to = None;
        state.lost.clone_from(&lost);
        lost.map_or(Thaw::Run, Thaw::Lost)
    }

    /// How far it is, for people and scripts.
    pub fn describe(&self) -> Value {
        let state = self.lock();
        let held = match &state.held {
            Some(Held::Line(hold)) => json!(hold.state()),
            Some(Held::File(_)) => json!("in a side file"),
            None => Value::Null,
        };
        let phase = match state.phase {
            Phase::Idle => "idle",
            Phase::Brownout => "brownout",
            Phase::Finishing => "finishing",
            Phase::Held => "complete",
        };
        let to = match &state.to {
            Some(To::Peer(peer, vgpu)) => json!(format!("{peer} as {vgpu}")),
            Some(To::SideFile) => json!("a side file"),
            None => Value::Null,
        };
        json!({ "vgpu": self.name, "phase": phase, "to": to, "ownership": held, "last": state.last,
                "lost": state.lost, "progress": state.progress.describe() })
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.detach();
        for thread in std::mem::take(&mut self.lock().threads) {
            // The last handle may be a thread's own.
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                log::error!("vGPU {}: a migration thread panicked", self.name);
            }
        }
    }
}

/// A step that is not possible now.
pub(super) fn order(error: OutOfOrder) -> MigrationError {
    MigrationError::State(error.to_string())
}

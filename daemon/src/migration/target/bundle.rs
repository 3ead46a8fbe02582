//! One bundle on the target.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::event::Event;

use super::compiling::Compiles;
use crate::migration::channel::message::Hello;
use crate::migration::channel::message::Message;
use crate::migration::channel::stream::Stream;
use crate::migration::error::MigrationError;
use crate::migration::id::BundleId;
use crate::migration::lock::locked;
use crate::migration::ownership::claimant::Claimant;
use crate::migration::ownership::claimant::Step;
use crate::migration::stage::Stage;

/// How far it is.
pub(super) enum Life {
    /// Pages come.
    Receiving(Arc<Stage>),
    /// All has come.
    Held(Claimant, Arc<Stage>),
    /// It runs; its memories are the session's.
    Committed,
    /// It is freed, and why.
    Dropped(String),
}

/// One bundle, shared by its lines and by the session that claims it.
pub(super) struct Bundle {
    pub(super) id: BundleId,
    pub(super) vgpu: String,
    pub(super) begun: Instant,
    /// What is spoken over its lines.
    pub(super) version: u32,
    /// What is compiled for it meanwhile.
    pub(super) compiles: Compiles,
    /// Lines that may still come, after the first.
    pub(super) lines_left: AtomicUsize,
    life: Mutex<Life>,
    changed: Condvar,
    /// Wakes the thread of the first line.
    pub(super) bell: Event,
    /// Its lines, so that none outlives it.
    lines: Mutex<Vec<Box<dyn Stream>>>,
}

impl Bundle {
    /// The one that `hello` announces, over lines of this version.
    pub(super) fn new(hello: &Hello, version: u32, stage: Stage, compiles: Compiles) -> io::Result<Self> {
        Ok(Self {
            id: hello.bundle,
            vgpu: hello.vgpu.clone(),
            begun: Instant::now(),
            version,
            compiles,
            lines_left: AtomicUsize::new(usize::from(hello.streams.saturating_sub(1))),
            life: Mutex::new(Life::Receiving(Arc::new(stage))),
            changed: Condvar::new(),
            bell: Event::new()?,
            lines: Mutex::default(),
        })
    }

    /// Its line is ended when it is over.
    pub(super) fn add_line(&self, handle: Box<dyn Stream>) {
        locked(&self.lines).push(handle);
    }

    /// Ends the lines that may still be there.
    pub(super) fn close(&self) {
        for line in locked(&self.lines).drain(..) {
            line.shutdown();
        }
    }

    /// Where pages go, as long as they may come.
    pub(super) fn stage(&self) -> Result<Arc<Stage>, MigrationError> {
        match &*locked(&self.life) {
            Life::Receiving(stage) => Ok(Arc::clone(stage)),
            Life::Dropped(why) => Err(MigrationError::CalledOff(why.clone())),
            Life::Held(..) | Life::Committed => Err(MigrationError::protocol("pages after all had come")),
        }
    }

    /// All has come.
    pub(super) fn seal(&self, records: u64, bytes: u64) -> Result<(), MigrationError> {
        let mut life = locked(&self.life);
        let Life::Receiving(stage) = &*life else {
            return Err(MigrationError::protocol("all has come already"));
        };
        stage.seal(records, bytes)?;
        let stage = Arc::clone(stage);
        *life = Life::Held(Claimant::stored(), stage);
        Ok(())
    }

    /// Frees it, unless it runs. Its lines end, after `word` was said by their threads.
    pub(super) fn drop_for(&self, why: &dyn Display) {
        let mut life = locked(&self.life);
        if !matches!(*life, Life::Committed | Life::Dropped(_)) {
            log::info!("vGPU {}: bundle {} is dropped: {why}", self.vgpu, self.id);
            *life = Life::Dropped(why.to_string());
        }
        drop(life);
        self.changed.notify_all();
        self.bell.signal();
    }

    /// One step of which side may run; what the thread of the line has to say about it.
    pub(super) fn step(&self, why: &str, act: impl FnOnce(&mut Claimant) -> Step) -> Option<Message> {
        let mut life = locked(&self.life);
        let step = match &mut *life {
            Life::Held(claimant, _) => act(claimant),
            Life::Committed => act(&mut Claimant::Runs),
            Life::Dropped(_) => act(&mut Claimant::Dropped),
            Life::Receiving(_) => Step::Refuse,
        };
        let word = match step {
            Step::Nothing | Step::Refuse => None,
            Step::Ask => Some(Message::MayIRun),
            Step::Run => {
                *life = Life::Committed;
                None
            }
            Step::Drop | Step::DropAndConfirm => {
                log::info!("vGPU {}: bundle {} is dropped: {why}", self.vgpu, self.id);
                *life = Life::Dropped(why.to_owned());
                (step == Step::DropAndConfirm).then_some(Message::Revoked)
            }
            Step::Confirm => Some(Message::Revoked),
            Step::Insist => Some(Message::Committed),
        };
        drop(life);
        self.changed.notify_all();
        word
    }

    /// A session takes it.
    pub(super) fn claim(&self) -> Result<Arc<Stage>, MigrationError> {
        let mut life = locked(&self.life);
        match &mut *life {
            Life::Held(claimant, stage) => match claimant.load() {
                Step::Nothing => Ok(Arc::clone(stage)),
                _ => Err(MigrationError::State("the bundle was loaded already".to_owned())),
            },
            Life::Dropped(why) => Err(MigrationError::CalledOff(why.clone())),
            Life::Receiving(_) => Err(MigrationError::State("not all of the bundle has come".to_owned())),
            Life::Committed => Err(MigrationError::State("the bundle runs already".to_owned())),
        }
    }

    /// Its session is about to run: asks the source, where it has not said so already, and waits.
    pub(super) fn start(&self, limit: Duration) -> Result<(), MigrationError> {
        let refused = |why: &str| Err(MigrationError::CalledOff(why.to_owned()));
        let mut life = locked(&self.life);
        match &mut *life {
            Life::Held(claimant, _) => match claimant.started() {
                Step::Run => {
                    *life = Life::Committed;
                    self.bell.signal();
                    return Ok(());
                }
                Step::Ask => self.bell.signal(),
                _ => return refused("it cannot start twice"),
            },
            Life::Committed => return refused("it runs already"),
            Life::Dropped(why) => return refused(why),
            Life::Receiving(_) => return refused("not all of it has come"),
        }
        let asks = |life: &mut Life| matches!(life, Life::Held(Claimant::Asks, _));
        let (mut life, waited) =
            self.changed.wait_timeout_while(life, limit, asks).unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out()
            && let Life::Held(claimant, _) = &mut *life
            && claimant.unreachable() == Step::Drop
        {
            *life = Life::Dropped("the source does not say whether the guest may run here".to_owned());
            self.bell.signal();
        }
        match &*life {
            Life::Committed => Ok(()),
            Life::Dropped(why) => refused(why),
            _ => refused("another device holds it"),
        }
    }

    /// Whether the source's word is waited for.
    pub(super) fn asks(&self) -> bool {
        matches!(*locked(&self.life), Life::Held(Claimant::Asks, _))
    }

    /// Whether it is lost for ever, or runs: nothing to do for the line any more, but to answer.
    pub(super) fn is_over(&self) -> bool {
        matches!(*locked(&self.life), Life::Committed | Life::Dropped(_))
    }

    /// Whether its session runs.
    pub(super) fn runs(&self) -> bool {
        matches!(*locked(&self.life), Life::Committed)
    }

    /// Whether a session has it that does not run yet.
    pub(super) fn is_claimed(&self) -> bool {
        matches!(*locked(&self.life), Life::Held(Claimant::Claimed { .. } | Claimant::Asks, _))
    }

    pub(super) fn state(&self) -> (&'static str, u64) {
        match &*locked(&self.life) {
            Life::Receiving(stage) => ("receiving", stage.bytes()),
            Life::Held(Claimant::Stored { .. }, stage) => ("stored", stage.bytes()),
            Life::Held(_, stage) => ("loaded", stage.bytes()),
            Life::Committed => ("running", 0),
            Life::Dropped(_) => ("dropped", 0),
        }
    }
}

//! One vGPU behind a front: its session, and where it comes from and goes.

use std::io;
use std::sync::Arc;

use super::waiting::Command;
use super::waiting::WaitingList;
use crate::migration::endpoint::Endpoint;
use crate::migration::endpoint::Right;
use crate::migration::quiesce::Answer;
use crate::vgpu::config::Config;
use crate::vgpu::counters::Counters;
use crate::vgpu::counters::count;
use crate::vgpu::objects::timeline::Token;
use crate::vgpu::session::Session;

/// What every front has behind it.
pub struct Vgpu<C> {
    pub(super) session: Session,
    pub(super) config: Arc<Config>,
    pub(super) counters: Arc<Counters>,
    pub(super) waiting: WaitingList<C>,
    /// Where it comes from, and goes.
    pub(super) endpoint: Option<Arc<Endpoint>>,
    /// What it must take before its guest runs here.
    pub(super) right: Option<Right>,
    /// It stands still for a snapshot, and the request that asked for its state.
    pub(super) quiesce: Option<Option<Answer>>,
    /// It was told to freeze, and what engines wrote to guest RAM until they stopped is in the VMM's log.
    pub(super) freeze: Freeze,
}

/// Whether the VMM has the guest paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freeze {
    No,
    Asked,
    Done,
}

impl<C: Command> Vgpu<C> {
    /// One with nothing in it.
    pub(super) fn new(config: Arc<Config>, counters: Arc<Counters>) -> io::Result<Self> {
        let mut session = Session::new(Arc::clone(&config), Arc::clone(&counters))?;
        if !config.window {
            session.set_window(false);
        }
        let (waiting, freeze) = (WaitingList::default(), Freeze::No);
        let (endpoint, right, quiesce) = (None, None, None);
        Ok(Self { session, config, counters, waiting, endpoint, right, quiesce, freeze })
    }

    /// The vGPU's name.
    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn new_token(&mut self) -> Token {
        self.waiting.new_token()
    }

    /// A command got an error.
    pub(super) fn count_refused(&self) {
        count(&self.counters.refused_commands);
    }

    /// Whether there is any way in or out.
    pub(super) fn moves(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.moves())
    }

    /// Whether the VMM has not asked to quiesce.
    pub(super) fn is_running(&self) -> bool {
        self.freeze == Freeze::No
    }

    /// Whether its state was taken, and it does not go on yet.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self.quiesce, Some(None))
    }

    /// Whether everything has stopped: then the last of what engines wrote is told.
    pub(super) fn look_at_freeze(&mut self) {
        if self.freeze == Freeze::Asked && self.session.is_frozen() {
            self.session.guest_pages().sweep_guest_ram();
            self.freeze = Freeze::Done;
        }
    }

    /// The guest has reset the device.
    pub(super) fn reset(&mut self) {
        self.waiting.clear();
        self.freeze = Freeze::No;
        self.session.reset();
        self.config.ledger.forget_guest();
        self.begin_anew();
        if !self.config.window {
            self.session.set_window(false);
        }
    }
}

impl<C> Drop for Vgpu<C> {
    fn drop(&mut self) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.departure.detach();
        }
    }
}

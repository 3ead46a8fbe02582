//! A front and its vGPU, as the device behind the rings of one connection.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::kind::Front;
use super::vgpu::Freeze;
use super::vgpu::Vgpu;
use super::vhost::answers::Answers;
use super::vhost::device::AtWork;
use super::vhost::device::Device;
use super::vhost::device::Offer;
use super::vhost::device::Save;
use super::vhost::device::WindowError;
use super::vhost::malformed::MalformedChain;
use super::vhost::ticket::Ticket;
use super::waiting::Found;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::guest_ram::mark::MarkGuestRam;
use crate::guest_ram::memory::GuestRam;
use crate::migration::state::BundleId;
use crate::migration::state::State;
use crate::vgpu::config::Config;
use crate::vgpu::counters::Counters;
use crate::vgpu::session::Session;
use crate::vgpu::state::restore::install::check_immutable;
use crate::vgpu::state::saved::bytes::Bytes;

/// The device of one connection.
pub struct FrontDevice<F: Front> {
    pub(super) vgpu: Vgpu<F::Command>,
    pub(super) front: F,
}

impl<F: Front<Options: Default>> FrontDevice<F> {
    /// A device with nothing in it.
    ///
    /// # Errors
    /// The system refused something.
    pub fn new(config: Arc<Config>, counters: Arc<Counters>) -> io::Result<Self> {
        Self::with(F::Options::default(), config, counters)
    }
}

impl<F: Front> FrontDevice<F> {
    /// A device with nothing in it.
    ///
    /// # Errors
    /// The system refused something.
    pub fn with(options: F::Options, config: Arc<Config>, counters: Arc<Counters>) -> io::Result<Self> {
        Ok(Self { vgpu: Vgpu::new(config, counters)?, front: F::new(options)? })
    }

    /// All of it but its memories, which `bundle` names: the commands that wait, and the session behind them.
    ///
    /// # Errors
    /// It does not stand still.
    pub fn state(&self, bundle: BundleId) -> Result<State, String> {
        let session = self.vgpu.session.save().map_err(|error| error.to_string())?;
        let front = Bytes(self.front.save(&self.vgpu.waiting)?);
        Ok(State { immutable: self.vgpu.session.immutable(), bundle, session, front })
    }

    /// Becomes the device that a state is of; its memories are there already ([`Session::adopt_memory`]). Tickets follow
    /// ([`Device::restored`]).
    ///
    /// # Errors
    /// Why it cannot; nothing was applied.
    pub fn take_over(&mut self, state: &State) -> Result<(), String> {
        let (front, waiting) = self.front.load(&state.front.0)?;
        check_immutable(self.vgpu.session.config(), &state.immutable).map_err(|error| error.to_string())?;
        self.vgpu.session.restore(&state.session).map_err(|error| error.to_string())?;
        (self.front, self.vgpu.waiting) = (front, waiting);
        Ok(())
    }

    /// What stands behind it.
    pub fn session(&mut self) -> &mut Session {
        &mut self.vgpu.session
    }

    /// Answers what is due, but for a device whose state was taken: the one that goes on with that answers it.
    fn answer_due(&mut self, answers: &mut Answers) {
        if self.vgpu.is_taken() {
            return;
        }
        for (token, outcome) in self.vgpu.session.take_due() {
            self.front.due(&mut self.vgpu, token, outcome, answers);
        }
        if !self.vgpu.session.is_stopping() {
            self.front.look(&mut self.vgpu, answers);
        }
    }
}

impl<F: Front> Device for FrontDevice<F> {
    fn offer(&self) -> io::Result<Offer> {
        self.front.offer(&self.vgpu)
    }

    fn command(&mut self, queue: u16, request: &[u8], ticket: Ticket, answers: &mut Answers) {
        self.vgpu.take_file();
        self.front.command(&mut self.vgpu, queue, request, ticket, answers);
        self.answer_due(answers);
    }

    fn malformed(&mut self, _queue: u16, reason: MalformedChain, ticket: Ticket, answers: &mut Answers) {
        self.vgpu.count_refused();
        log::debug!("{}: malformed command: {reason}", self.vgpu.name());
        self.front.refuse(None, ticket, answers);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.vgpu.session.event_fd())
    }

    fn event(&mut self, answers: &mut Answers) {
        self.vgpu.session.event();
        self.answer_due(answers);
        self.vgpu.look_at_freeze();
        self.look_at_quiesce();
        self.answer_due(answers);
    }

    fn memory_changed(&mut self, memory: Arc<GuestRam>, _answers: &mut Answers) {
        self.front.memory_changed(&self.vgpu, &memory);
        self.vgpu.session.set_guest_memory(memory);
    }

    fn window(&mut self, state: Result<(), WindowError>, answers: &mut Answers) {
        if let Err(error) = &state {
            log::warn!("{}: the guest cannot see video memory: {error}", self.vgpu.name());
        }
        self.vgpu.session.set_window(state.is_ok());
        self.answer_due(answers);
    }

    fn reset(&mut self) {
        log::debug!("{}: the guest has reset the device", self.vgpu.name());
        self.vgpu.reset();
        self.front.reset();
    }

    fn freeze(&mut self) {
        self.vgpu.freeze = Freeze::Asked;
        if let Some(endpoint) = &self.vgpu.endpoint {
            endpoint.departure.stopped();
        }
        self.vgpu.session.freeze();
        self.vgpu.look_at_freeze();
    }

    fn is_frozen(&self) -> bool {
        self.vgpu.freeze == Freeze::Done
    }

    fn thaw(&mut self) {
        self.vgpu.freeze = Freeze::No;
        self.vgpu.lose_if_gone();
        // Else it goes on when its snapshot is there.
        if self.vgpu.quiesce.is_none() {
            self.vgpu.session.thaw();
        }
    }

    fn log_changed(&mut self, log: Option<Arc<DirtyLog>>) {
        if let Some(endpoint) = &self.vgpu.endpoint {
            endpoint.departure.log_changed(log.is_some());
        }
        self.vgpu.session.guest_pages().set_dirty_log(log.map(|log| -> Arc<dyn MarkGuestRam> { log }));
    }

    fn holds(&self) -> bool {
        self.vgpu.quiesce.is_some()
    }

    fn save(&mut self) -> Save {
        self.save_for_departure()
    }

    fn at_work(&mut self) -> Option<AtWork> {
        self.checkpoint()
    }

    fn load(&mut self, state: Vec<u8>) -> Result<(), String> {
        self.load_arrival(&state)
    }

    fn started(&mut self) -> Result<(), String> {
        self.vgpu.right.take().map_or(Ok(()), |right| right.start().map_err(|error| error.to_string()))
    }

    fn restored(&mut self, request: Result<&[u8], MalformedChain>, ticket: Ticket, answers: &mut Answers) {
        let Err(reason) = request else {
            match self.vgpu.waiting.restored(ticket) {
                Found::Waits(token) => self.front.found(&mut self.vgpu, token),
                Found::Due(due) => self.front.answer(&mut self.vgpu, due, answers),
                Found::Unknown(ticket) => {
                    self.vgpu.count_refused();
                    self.front.refuse(None, ticket, answers);
                }
            }
            return self.answer_due(answers);
        };
        log::warn!("{}: a command that waited cannot be answered: {reason}", self.vgpu.name());
        let command = self.vgpu.waiting.lost(ticket.queue(), ticket.head());
        self.vgpu.count_refused();
        self.front.refuse(command, ticket, answers);
    }
}

//! What one front is, beside the others.

use std::io;
use std::sync::Arc;

use super::vgpu::Vgpu;
use super::vhost::answers::Answers;
use super::vhost::device::Offer;
use super::vhost::ticket::Ticket;
use super::waiting::Command;
use super::waiting::Due;
use super::waiting::WaitingList;
use crate::guest_ram::memory::GuestRam;
use crate::ledger::lost::Lost;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// What a guest speaks with. One of them stands before each vGPU; [`super::device::FrontDevice`] puts it behind rings.
pub trait Front: Sized + Send {
    /// What the operator decides.
    type Options: Clone + Send;
    /// What is kept of a command that waits.
    type Command: Command;

    /// A front to which nothing was said.
    ///
    /// # Errors
    /// The system refused something.
    fn new(options: Self::Options) -> io::Result<Self>;

    /// What the device shows.
    ///
    /// # Errors
    /// The system refused something.
    fn offer(&self, vgpu: &Vgpu<Self::Command>) -> io::Result<Offer>;

    /// One request.
    fn command(
        &mut self,
        vgpu: &mut Vgpu<Self::Command>,
        queue: u16,
        request: &[u8],
        ticket: Ticket,
        answers: &mut Answers,
    );

    /// A request that cannot be read, or that cannot be answered any more. Counted.
    fn refuse(&mut self, command: Option<(Token, Self::Command)>, ticket: Ticket, answers: &mut Answers);

    /// Answers a command.
    fn answer(&mut self, vgpu: &mut Vgpu<Self::Command>, due: Due<Self::Command>, answers: &mut Answers);

    /// The session is done with what a token names: a command that waits, unless the front has other names.
    fn due(
        &mut self,
        vgpu: &mut Vgpu<Self::Command>,
        token: Token,
        outcome: Result<(), Refusal>,
        answers: &mut Answers,
    ) {
        if let Some(due) = vgpu.waiting.due(token, outcome) {
            self.answer(vgpu, due, answers);
        }
    }

    /// A daemon that was killed has left these names: what they named is gone.
    fn begin_bereft(&mut self, _lost: &Lost) {}

    /// After everything that happens, while the session runs.
    fn look(&mut self, _vgpu: &mut Vgpu<Self::Command>, _answers: &mut Answers) {}

    /// A command that was restored was found, and waits.
    fn found(&mut self, _vgpu: &mut Vgpu<Self::Command>, _token: Token) {}

    /// Guest memory is now this.
    fn memory_changed(&mut self, _vgpu: &Vgpu<Self::Command>, _memory: &Arc<GuestRam>) {}

    /// The guest has reset the device, and the session was: as if new.
    fn reset(&mut self);

    /// Its part of the state, with the commands that wait.
    ///
    /// # Errors
    /// Why it has none.
    fn save(&self, waiting: &WaitingList<Self::Command>) -> Result<Vec<u8>, String> {
        waiting.save().map_err(|error| error.to_string())
    }

    /// What [`Self::save`] has written: the front and the commands that wait. Nothing is changed yet.
    ///
    /// # Errors
    /// Why it is none, or cannot be.
    fn load(&self, bytes: &[u8]) -> Result<(Self, WaitingList<Self::Command>), String>;
}

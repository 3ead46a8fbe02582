//! The virtio-gpu device of one connection.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use campanile_protocol::virtio_gpu;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::config::Config as DeviceConfig;
use campanile_protocol::virtio_gpu::response;
use campanile_protocol::virtio_gpu::response::MapInfo;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::waiting::Due;
use super::waiting::Found;
use super::waiting::Response;
use super::waiting::WaitingList;
use crate::migration::passage::Passage;
use crate::migration::passage::Right;
use crate::migration::standstill::Answer;
use crate::migration::state::BundleId;
use crate::migration::state::State;
use crate::session::config::Config;
use crate::session::counters::Counters;
use crate::session::counters::count;
use crate::session::saved::bytes::Bytes;
use crate::session::state::Refusal;
use crate::session::state::Session;
use crate::session::timeline::Token;
use crate::vhost::answers::Answers;
use crate::vhost::device::Aperture;
use crate::vhost::device::Device;
use crate::vhost::device::Offer;
use crate::vhost::device::Save;
use crate::vhost::log::DirtyLog;
use crate::vhost::malformed::MalformedChain;
use crate::vhost::mark::MarkGuestRam;
use crate::vhost::memory::GuestRam;
use crate::vhost::ticket::Ticket;
use crate::vhost::window::WindowError;

/// What a command came to.
pub(super) enum Reply {
    /// Answer now.
    Now(Vec<u8>),
    /// Answer with `Response` when the session says so.
    When(Token, Response),
}

/// A virtio-gpu device over a session.
pub struct GpuDevice {
    pub(super) session: Session,
    pub(super) config: Arc<Config>,
    counters: Arc<Counters>,
    waiting: WaitingList,
    /// Where it comes from, and goes.
    pub(super) passage: Option<Arc<Passage>>,
    /// What it must take before its guest runs here.
    pub(super) right: Option<Right>,
    /// It stands still for a snapshot, and whom to tell its state.
    pub(super) standstill: Option<Option<Answer>>,
    /// It was told to freeze, and what engines wrote to guest RAM until they stopped is in the VMM's log.
    freeze: Freeze,
}

/// Whether the VMM has the guest paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freeze {
    No,
    Asked,
    Done,
}

impl GpuDevice {
    /// A device with nothing in it.
    pub fn new(config: Arc<Config>, counters: Arc<Counters>) -> io::Result<Self> {
        let mut session = Session::new(Arc::clone(&config), Arc::clone(&counters))?;
        if !config.window {
            session.set_window(false);
        }
        Ok(Self {
            session,
            config,
            counters,
            waiting: WaitingList::default(),
            passage: None,
            right: None,
            standstill: None,
            freeze: Freeze::No,
        })
    }

    /// All of it but its memories, which `bundle` names: the commands that wait, and the session behind them.
    ///
    /// # Errors
    /// It does not stand still.
    pub fn state(&self, bundle: BundleId) -> Result<State, String> {
        let session = self.session.save().map_err(|error| error.to_string())?;
        let front = Bytes(self.waiting.save().map_err(|error| error.to_string())?);
        Ok(State { immutable: self.session.immutable(), bundle, session, front })
    }

    /// Becomes the device that a state is of; its memories are there already ([`Session::adopt_memory`]). Tickets follow
    /// ([`Device::restored`]).
    ///
    /// # Errors
    /// Why it cannot; nothing was applied.
    pub fn take_over(&mut self, state: &State) -> Result<(), String> {
        let waiting = WaitingList::load(&state.front.0).map_err(|error| error.to_string())?;
        self.session.check_immutable(&state.immutable).map_err(|error| error.to_string())?;
        self.session.restore(&state.session).map_err(|error| error.to_string())?;
        self.waiting = waiting;
        Ok(())
    }

    /// What stands behind it.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The vGPU's name.
    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn new_token(&mut self) -> Token {
        self.waiting.new_token()
    }

    /// Whether the VMM has not asked for a standstill.
    pub(super) fn is_running(&self) -> bool {
        self.freeze == Freeze::No
    }

    /// Whether everything has stopped: then the last of what engines wrote is told.
    fn look_at_freeze(&mut self) {
        if self.freeze == Freeze::Asked && self.session.is_frozen() {
            self.session.sweep_guest_ram();
            self.freeze = Freeze::Done;
        }
    }

    fn answer_due(&mut self, answers: &mut Answers) {
        for (token, outcome) in self.session.take_due() {
            if let Some(due) = self.waiting.due(token, outcome) {
                self.answer_now(due, answers);
            }
        }
    }

    /// A command of before a migration that nobody can do any more.
    fn fail(&self, header: Header, ticket: Ticket, answers: &mut Answers) {
        count(&self.counters.refused_commands);
        answers.answer(ticket, reply_header(&header, response::ERR_UNSPEC).as_bytes());
    }

    fn answer_now(&self, Due { ticket, header, response, outcome }: Due, answers: &mut Answers) {
        match outcome {
            Ok(()) if response == Response::MapInfo => {
                let header = reply_header(&header, response::OK_MAP_INFO);
                let map_info = virtio_gpu::blob::MAP_CACHE_CACHED;
                answers.answer(ticket, MapInfo { header, map_info, padding: 0 }.as_bytes());
            }
            Ok(()) => answers.answer(ticket, reply_header(&header, response::OK_NODATA).as_bytes()),
            Err(refusal) => {
                count(&self.counters.refused_commands);
                answers.answer(ticket, reply_header(&header, code_of(refusal)).as_bytes());
            }
        }
    }
}

/// The response code of a refusal.
pub(super) const fn code_of(refusal: Refusal) -> u32 {
    match refusal {
        Refusal::OutOfMemory => response::ERR_OUT_OF_MEMORY,
        Refusal::Resource => response::ERR_INVALID_RESOURCE_ID,
        Refusal::Context => response::ERR_INVALID_CONTEXT_ID,
        Refusal::Parameter => response::ERR_INVALID_PARAMETER,
        Refusal::Unspecified => response::ERR_UNSPEC,
    }
}

/// A response header: the code, and the request's fence.
pub(super) fn reply_header(request: &Header, kind: u32) -> Header {
    let fenced = request.flags & command::FLAG_FENCE != 0;
    Header {
        kind,
        flags: request.flags & (command::FLAG_FENCE | command::FLAG_INFO_RING_IDX),
        fence_id: if fenced { request.fence_id } else { 0 },
        context_id: request.context_id,
        ring_index: request.ring_index,
        padding: [0; 3],
    }
}

impl Device for GpuDevice {
    fn offer(&self) -> io::Result<Offer> {
        let memory = self.session.video_memory();
        let aperture = if self.config.window {
            Some(Aperture {
                region: virtio_gpu::SHM_HOST_VISIBLE,
                file: memory.file().try_clone()?,
                offset: 0,
                length: memory.aperture_bytes(),
            })
        } else {
            log::info!("{}: no window onto video memory is offered (--no-window)", self.config.name);
            None
        };
        Ok(Offer {
            features: virtio_gpu::F_VIRGL | virtio_gpu::F_RESOURCE_BLOB | virtio_gpu::F_CONTEXT_INIT,
            queues: virtio_gpu::QUEUE_COUNT,
            config: DeviceConfig::COMPUTE_ONLY.as_bytes().to_vec(),
            smallest_answer: size_of::<Header>(),
            aperture,
            migrates: self.passage.as_ref().is_some_and(|passage| passage.moves()),
        })
    }

    fn command(&mut self, queue: u16, request: &[u8], ticket: Ticket, answers: &mut Answers) {
        let Ok((header, body)) = Header::read_from_prefix(request) else {
            count(&self.counters.refused_commands);
            answers.answer(ticket, reply_header(&Header::default(), response::ERR_UNSPEC).as_bytes());
            return;
        };
        let reply = if queue == virtio_gpu::CONTROL_QUEUE {
            self.execute(&header, body)
        } else {
            Err(Refusal::Unspecified)
        };
        match reply {
            Ok(Reply::Now(bytes)) => answers.answer(ticket, &bytes),
            Ok(Reply::When(token, response)) => {
                self.waiting.insert(token, ticket, header, response);
            }
            Err(refusal) => {
                count(&self.counters.refused_commands);
                answers.answer(ticket, reply_header(&header, code_of(refusal)).as_bytes());
            }
        }
        self.answer_due(answers);
    }

    fn malformed(&mut self, _queue: u16, reason: MalformedChain, ticket: Ticket, answers: &mut Answers) {
        count(&self.counters.refused_commands);
        log::debug!("{}: malformed command: {reason}", self.config.name);
        answers.answer(ticket, reply_header(&Header::default(), response::ERR_UNSPEC).as_bytes());
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.session.event_fd())
    }

    fn event(&mut self, answers: &mut Answers) {
        self.session.event();
        self.look_at_freeze();
        self.look_at_standstill();
        self.answer_due(answers);
    }

    fn memory_changed(&mut self, memory: Arc<GuestRam>, _answers: &mut Answers) {
        self.session.set_guest_memory(memory);
    }

    fn window(&mut self, state: Result<(), WindowError>, answers: &mut Answers) {
        if let Err(error) = &state {
            log::warn!("{}: the guest cannot see video memory: {error}", self.config.name);
        }
        self.session.set_window(state.is_ok());
        self.answer_due(answers);
    }

    fn reset(&mut self) {
        log::debug!("{}: the guest has reset the device", self.config.name);
        self.waiting.clear();
        self.freeze = Freeze::No;
        self.session.reset();
        self.begin_anew();
        if !self.config.window {
            self.session.set_window(false);
        }
    }

    fn freeze(&mut self) {
        self.freeze = Freeze::Asked;
        self.session.freeze();
        self.look_at_freeze();
    }

    fn is_frozen(&self) -> bool {
        self.freeze == Freeze::Done
    }

    fn thaw(&mut self) {
        self.freeze = Freeze::No;
        self.lose_if_gone();
        // Else it goes on when its snapshot is there.
        if self.standstill.is_none() {
            self.session.thaw();
        }
    }

    fn log_changed(&mut self, log: Option<Arc<DirtyLog>>) {
        if let Some(passage) = &self.passage {
            passage.departure.log_changed(log.is_some());
        }
        self.session.set_dirty_log(log.map(|log| -> Arc<dyn MarkGuestRam> { log }));
    }

    fn holds(&self) -> bool {
        self.standstill.is_some()
    }

    fn save(&mut self) -> Save {
        self.save_for_departure()
    }

    fn load(&mut self, state: Vec<u8>) -> Result<(), String> {
        self.load_arrival(&state)
    }

    fn started(&mut self) -> Result<(), String> {
        self.right.take().map_or(Ok(()), |right| right.start().map_err(|error| error.to_string()))
    }

    fn restored(&mut self, request: Result<&[u8], MalformedChain>, ticket: Ticket, answers: &mut Answers) {
        let Err(reason) = request else {
            return match self.waiting.restored(ticket) {
                Found::Waits => {}
                Found::Due(due) => self.answer_now(due, answers),
                Found::Unknown(ticket) => self.fail(Header::default(), ticket, answers),
            };
        };
        log::warn!("{}: a command that waited cannot be answered: {reason}", self.config.name);
        let header = self.waiting.lost(ticket.queue(), ticket.head()).unwrap_or_default();
        self.fail(header, ticket, answers);
    }
}

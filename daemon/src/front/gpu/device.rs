//! The virtio-gpu device of one connection.

use std::collections::HashMap;
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

use crate::session::config::Config;
use crate::session::counters::Counters;
use crate::session::counters::count;
use crate::session::state::Refusal;
use crate::session::state::Session;
use crate::session::timeline::Token;
use crate::vhost::answers::Answers;
use crate::vhost::device::Aperture;
use crate::vhost::device::Device;
use crate::vhost::device::Offer;
use crate::vhost::malformed::MalformedChain;
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

/// What to say when a token is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Response {
    /// OK_NODATA.
    Plain,
    /// OK_MAP_INFO.
    MapInfo,
}

struct Waiting {
    ticket: Ticket,
    header: Header,
    response: Response,
}

/// A virtio-gpu device over a session.
pub struct GpuDevice {
    pub(super) session: Session,
    config: Arc<Config>,
    counters: Arc<Counters>,
    waiting: HashMap<Token, Waiting>,
    next_token: u64,
}

impl GpuDevice {
    /// A device with nothing in it.
    pub fn new(config: Arc<Config>, counters: Arc<Counters>) -> io::Result<Self> {
        let mut session = Session::new(Arc::clone(&config), Arc::clone(&counters))?;
        if !config.window {
            session.set_window(false);
        }
        Ok(Self { session, config, counters, waiting: HashMap::new(), next_token: 0 })
    }

    /// The vGPU's name.
    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn new_token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn answer_due(&mut self, answers: &mut Answers) {
        for (token, outcome) in self.session.take_due() {
            let Some(waiting) = self.waiting.remove(&token) else { continue };
            match outcome {
                Ok(()) if waiting.response == Response::MapInfo => {
                    let header = reply_header(&waiting.header, response::OK_MAP_INFO);
                    let map_info = virtio_gpu::blob::MAP_CACHE_CACHED;
                    answers.answer(waiting.ticket, MapInfo { header, map_info, padding: 0 }.as_bytes());
                }
                Ok(()) => {
                    answers.answer(
                        waiting.ticket,
                        reply_header(&waiting.header, response::OK_NODATA).as_bytes(),
                    );
                }
                Err(refusal) => {
                    count(&self.counters.refused_commands);
                    answers
                        .answer(waiting.ticket, reply_header(&waiting.header, code_of(refusal)).as_bytes());
                }
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
            migrates: false,
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
                self.waiting.insert(token, Waiting { ticket, header, response });
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
        self.session.reset();
        if !self.config.window {
            self.session.set_window(false);
        }
    }
}

//! The virtio-gpu device of one connection.

use std::io;

use campanile_protocol::virtio_gpu;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::config::Config as DeviceConfig;
use campanile_protocol::virtio_gpu::response;
use campanile_protocol::virtio_gpu::response::MapInfo;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::waiting::Asked;
use super::waiting::Response;
use crate::frontend::device::FrontDevice;
use crate::frontend::kind::Front;
use crate::frontend::status::code_of;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::device::Aperture;
use crate::frontend::vhost::device::Offer;
use crate::frontend::vhost::ticket::Ticket;
use crate::frontend::waiting::Due;
use crate::frontend::waiting::WaitingList;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// What a command came to.
pub(super) enum Reply {
    /// Answer now.
    Now(Vec<u8>),
    /// Answer with `Response` when the session says so.
    When(Token, Response),
}

/// The virtio-gpu front: it keeps nothing of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gpu;

/// A virtio-gpu device over a session.
pub type GpuDevice = FrontDevice<Gpu>;

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

impl Front for Gpu {
    type Options = ();
    type Command = Asked;

    fn new(_options: ()) -> io::Result<Self> {
        Ok(Self)
    }

    fn offer(&self, vgpu: &Vgpu<Asked>) -> io::Result<Offer> {
        let memory = vgpu.session.video_memory();
        let aperture = if vgpu.config.window {
            Some(Aperture {
                region: virtio_gpu::SHM_HOST_VISIBLE,
                file: memory.file().try_clone()?,
                offset: 0,
                length: memory.aperture_bytes(),
            })
        } else {
            log::info!("{}: no window onto video memory is offered (--no-window)", vgpu.name());
            None
        };
        Ok(Offer {
            features: virtio_gpu::F_VIRGL | virtio_gpu::F_RESOURCE_BLOB | virtio_gpu::F_CONTEXT_INIT,
            queues: virtio_gpu::QUEUE_COUNT,
            config: DeviceConfig::COMPUTE_ONLY.as_bytes().to_vec(),
            smallest_answer: size_of::<Header>(),
            aperture,
            migrates: vgpu.moves(),
        })
    }

    fn command(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        queue: u16,
        request: &[u8],
        ticket: Ticket,
        answers: &mut Answers,
    ) {
        let Ok((header, body)) = Header::read_from_prefix(request) else {
            vgpu.count_refused();
            return self.refuse(None, ticket, answers);
        };
        let reply = if queue == virtio_gpu::CONTROL_QUEUE {
            Self::execute(vgpu, &header, body)
        } else {
            Err(Refusal::Unspecified)
        };
        match reply {
            Ok(Reply::Now(bytes)) => answers.answer(ticket, &bytes),
            Ok(Reply::When(token, response)) => {
                vgpu.waiting.insert(token, ticket, Asked { header, response });
            }
            Err(refusal) => {
                vgpu.count_refused();
                answers.answer(ticket, reply_header(&header, code_of(refusal)).as_bytes());
            }
        }
    }

    fn refuse(&mut self, command: Option<(Token, Asked)>, ticket: Ticket, answers: &mut Answers) {
        let header = command.map(|(_, asked)| asked.header).unwrap_or_default();
        answers.answer(ticket, reply_header(&header, response::ERR_UNSPEC).as_bytes());
    }

    fn answer(&mut self, vgpu: &mut Vgpu<Asked>, due: Due<Asked>, answers: &mut Answers) {
        let Due { ticket, command: Asked { header, response }, outcome } = due;
        match outcome {
            Ok(()) if response == Response::MapInfo => {
                let header = reply_header(&header, response::OK_MAP_INFO);
                let map_info = virtio_gpu::blob::MAP_CACHE_CACHED;
                answers.answer(ticket, MapInfo { header, map_info, padding: 0 }.as_bytes());
            }
            Ok(()) => answers.answer(ticket, reply_header(&header, response::OK_NODATA).as_bytes()),
            Err(refusal) => {
                vgpu.count_refused();
                answers.answer(ticket, reply_header(&header, code_of(refusal)).as_bytes());
            }
        }
    }

    fn reset(&mut self) {}

    fn load(&self, bytes: &[u8]) -> Result<(Self, WaitingList<Asked>), String> {
        Ok((Self, WaitingList::load(bytes).map_err(|error| error.to_string())?))
    }
}

//! The fs front as the device of a connection.

use std::io;
use std::sync::Arc;

use campanile_protocol::fs;
use campanile_protocol::fs::errno;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::OutHeader;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryRegion;
use zerocopy::FromBytes;

use super::answer;
use super::limits::REQUEST_QUEUES;
use super::parked::Asked;
use super::parked::What;
use super::registration::pages;
use super::registration::price;
use super::saved::SavedFs;
use super::state::Fs;
use super::state::FsOptions;
use super::state::random;
use crate::frontend::device::FrontDevice;
use crate::frontend::kind::Front;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::device::Offer;
use crate::frontend::vhost::ticket::Ticket;
use crate::frontend::waiting::Due;
use crate::frontend::waiting::WaitingList;
use crate::guest_ram::memory::GuestRam;
use crate::ledger::lost::Lost;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// A virtio-fs device over a session.
pub type FsDevice = FrontDevice<Fs>;

/// `struct virtio_fs_config` (virtio 1.3, 5.11.4), without what notifications need.
fn config(tag: &str) -> Vec<u8> {
    let mut config = tag.as_bytes().to_vec();
    config.resize(fs::TAG_BYTES, 0);
    config.extend(u32::from(REQUEST_QUEUES).to_le_bytes());
    config
}

impl Front for Fs {
    type Options = FsOptions;
    type Command = Asked;

    fn new(options: FsOptions) -> io::Result<Self> {
        Ok(Self::with(options, random()?))
    }

    fn offer(&self, vgpu: &Vgpu<Asked>) -> io::Result<Offer> {
        Ok(Offer {
            features: 0,
            queues: fs::REQUEST_QUEUE + REQUEST_QUEUES,
            config: self.options.tag.as_deref().map(config).unwrap_or_default(),
            smallest_answer: 0,
            aperture: None,
            migrates: vgpu.moves(),
        })
    }

    fn command(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        _queue: u16,
        request: &[u8],
        ticket: Ticket,
        answers: &mut Answers,
    ) {
        let Ok((header, body)) = InHeader::read_from_prefix(request) else {
            vgpu.count_refused();
            return self.refuse(None, ticket, answers);
        };
        self.request(vgpu, &header, body, ticket, answers);
    }

    fn refuse(&mut self, command: Option<(Token, Asked)>, ticket: Ticket, answers: &mut Answers) {
        let mut unique = 0;
        if let Some((token, asked)) = command {
            unique = asked.unique;
            self.forget(token, &asked.what);
            if let What::Read { blob, at, .. } = asked.what {
                self.blobs.part_is_lost(blob, at);
            }
        }
        let bytes = answer::failed(unique, errno::EIO);
        // FORGET has no room for an answer.
        let room = if ticket.writable() < size_of::<OutHeader>() { &[] } else { bytes.as_slice() };
        answers.answer(ticket, room);
    }

    fn answer(&mut self, vgpu: &mut Vgpu<Asked>, due: Due<Asked>, answers: &mut Answers) {
        // It was settled before it was found.
        self.parked.take_room(&due.ticket, &due.command.what);
        self.answer_due(vgpu, due, answers);
    }

    fn due(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        token: Token,
        outcome: Result<(), Refusal>,
        answers: &mut Answers,
    ) {
        if let Some((file, sequence)) = self.files.fences.remove(&token) {
            let waiters =
                self.files.sessions.get_mut(&file).and_then(|session| session.open.remove(&sequence));
            for waiter in waiters.unwrap_or_default() {
                self.settle(vgpu, waiter, Ok(()), answers);
            }
        } else if let Some(blob) = self.blobs.making.remove(&token) {
            self.blob_is_made(vgpu, blob, outcome, answers);
        } else if let Some(blob) = self.blobs.retired.remove(&token) {
            self.blob_is_gone(vgpu, blob, answers);
        } else {
            if let Some(What::Create { blob, .. }) = vgpu.waiting.command(token).map(|asked| asked.what) {
                self.blob_is_made(vgpu, blob, outcome, answers);
            }
            self.settle(vgpu, token, outcome, answers);
        }
    }

    fn begin_bereft(&mut self, lost: &Lost) {
        self.begin_with(lost);
    }

    fn look(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        self.make_blobs(vgpu, answers);
        self.look_at_deadlines(vgpu, answers);
    }

    fn found(&mut self, vgpu: &mut Vgpu<Asked>, token: Token) {
        let Some(asked) = vgpu.waiting.command(token).copied() else { return };
        let Some(ticket) = vgpu.waiting.ticket(token) else { return };
        self.parked.take_room(ticket, &asked.what);
        if let What::Read { blob, at, bytes } = asked.what {
            let pages = pages(ticket, bytes);
            let price = pages.as_deref().map_or(0, price);
            let charge = vgpu.session.blobs().charge_front(price).ok();
            self.blobs.part_is_found(blob, at, pages, charge);
        }
    }

    fn memory_changed(&mut self, vgpu: &Vgpu<Asked>, memory: &Arc<GuestRam>) {
        self.blobs.memory_bytes = memory.iter().map(|region| region.len()).sum();
        if self.aperture.look(memory) {
            let (name, wanted) = (vgpu.name(), self.aperture.wanted());
            match self.aperture.found() {
                0 => log::warn!("{name}: the VM's aperture of {wanted} bytes is gone"),
                _ => log::info!("{name}: the VM has its aperture of {wanted} bytes"),
            }
        }
    }

    fn reset(&mut self) {
        // Without random numbers: another one than before at least.
        let generation = random().unwrap_or(self.files.generation.wrapping_add(1));
        let (memory_bytes, mut next) =
            (self.blobs.memory_bytes, Self::with(self.options.clone(), generation));
        next.aperture.place_as(&self.aperture);
        next.blobs.memory_bytes = memory_bytes;
        *self = next;
    }

    fn save(&self, waiting: &WaitingList<Asked>) -> Result<Vec<u8>, String> {
        SavedFs::of(self, waiting)?.encode()
    }

    fn load(&self, bytes: &[u8]) -> Result<(Self, WaitingList<Asked>), String> {
        if bytes.is_empty() {
            let generation = random().map_err(|error| error.to_string())?;
            return Ok((Self::with(self.options.clone(), generation), WaitingList::default()));
        }
        SavedFs::decode(bytes)?.build(&self.options)
    }
}

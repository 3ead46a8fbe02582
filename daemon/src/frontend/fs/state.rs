//! What the fs front keeps.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use campanile_protocol::fs;
use campanile_protocol::fs::body::Key;
use campanile_protocol::fs::errno;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::OutHeader;
use rustix::rand::GetRandomFlags;
use rustix::rand::getrandom;
use vm_memory::GuestMemoryBackend;
use vm_memory::GuestMemoryRegion;
use zerocopy::FromBytes;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;

use super::answer;
use super::aperture::Aperture;
use super::blob::Blob;
use super::parked::Asked;
use super::parked::Load;
use super::parked::What;
use super::saved::SavedFs;
use crate::frontend::device::FrontDevice;
use crate::frontend::kind::Front;
use crate::frontend::vgpu::Vgpu;
use crate::frontend::vhost::answers::Answers;
use crate::frontend::vhost::device::Offer;
use crate::frontend::vhost::ticket::Ticket;
use crate::frontend::waiting::Due;
use crate::frontend::waiting::WaitingList;
use crate::guest_ram::memory::GuestRam;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// Request queues.
pub const REQUEST_QUEUES: u16 = 8;
/// Open files of one VM.
pub const MAX_FILES: usize = 4096;
/// Blobs of one VM.
pub const MAX_BLOBS: usize = 8192;
/// Parked requests of one VM.
pub const MAX_PARKED: usize = 4096;
/// Parked waits of one session.
pub const MAX_WAITS: usize = 64;
/// Submissions of one session that are not done, and of one VM.
pub const MAX_OPEN: [usize; 2] = [1024, 16 * 1024];
/// Bytes of one VM that are staged.
pub const MAX_STAGED: usize = 8 << 20;

/// The fs front as the operator asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsOptions {
    /// Bytes of the VM's aperture, an ivshmem device; 0: it has none.
    pub aperture: u64,
    /// The mount tag, where the VMM leaves it to the device (cloud-hypervisor); at most [`fs::TAG_BYTES`] bytes.
    pub tag: Option<String>,
}

/// A guest process that uses the device.
#[derive(Debug, Default)]
pub(super) struct ProcessFile {
    pub(super) key: Option<Key>,
    /// Last number of a submission.
    pub(super) sequence: u64,
    /// Submissions that are not done, and the requests that wait for them.
    pub(super) open: BTreeMap<u64, Vec<Token>>,
    /// Waits that are parked.
    pub(super) waits: usize,
    /// Frames for the next submission.
    pub(super) staged: Vec<u8>,
    /// What was charged for them.
    pub(super) staged_charge: Option<Charge>,
}

/// An open file that is no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenFile {
    /// Nothing was asked of it.
    Blank,
    /// It registers pages for that session, if there still is one.
    Registrar(u32),
}

/// The fs front of one connection.
#[derive(Debug)]
pub struct Fs {
    pub(super) options: FsOptions,
    /// Random: part of handles.
    pub(super) generation: u32,
    pub(super) last_file: u32,
    pub(super) files: BTreeMap<u32, OpenFile>,
    /// Files that are sessions: contexts of the same number.
    pub(super) sessions: BTreeMap<u32, ProcessFile>,
    pub(super) last_blob: u32,
    pub(super) blobs: BTreeMap<u32, Blob>,
    /// What the session will say of: submissions (file, number).
    pub(super) fences: BTreeMap<Token, (u32, u64)>,
    /// Blobs whose pages may all be there.
    pub(super) complete: BTreeSet<u32>,
    /// And blobs of pages that are being made.
    pub(super) making: BTreeMap<Token, u32>,
    /// And blobs without a name.
    pub(super) retired: BTreeMap<Token, u32>,
    pub(super) deadlines: BTreeSet<(Instant, Token)>,
    pub(super) loads: BTreeMap<u16, Load>,
    pub(super) parked: usize,
    pub(super) aperture: Aperture,
    /// Bytes of guest memory, and those of them that are registered.
    pub(super) memory_bytes: u64,
    pub(super) registered_bytes: u64,
}

/// A virtio-fs device over a session.
pub type FsDevice = FrontDevice<Fs>;

fn random() -> io::Result<u32> {
    let mut number = 0u32;
    getrandom(number.as_mut_bytes(), GetRandomFlags::empty())?;
    Ok(number)
}

/// `struct virtio_fs_config` (virtio 1.3, 5.11.4), without what notifications need.
fn config(tag: &str) -> Vec<u8> {
    let mut config = tag.as_bytes().to_vec();
    config.resize(fs::TAG_BYTES, 0);
    config.extend(u32::from(REQUEST_QUEUES).to_le_bytes());
    config
}

impl Fs {
    pub(super) fn with(options: FsOptions, generation: u32) -> Self {
        let aperture = Aperture::new(options.aperture);
        Self {
            options,
            generation,
            last_file: 0,
            files: BTreeMap::new(),
            sessions: BTreeMap::new(),
            last_blob: 0,
            blobs: BTreeMap::new(),
            fences: BTreeMap::new(),
            complete: BTreeSet::new(),
            making: BTreeMap::new(),
            retired: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            loads: BTreeMap::new(),
            parked: 0,
            aperture,
            memory_bytes: 0,
            registered_bytes: 0,
        }
    }
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
                self.part_is_lost(blob, at);
            }
        }
        let bytes = answer::failed(unique, errno::EIO);
        // FORGET has no room for an answer.
        let room = if ticket.writable() < size_of::<OutHeader>() { &[] } else { bytes.as_slice() };
        answers.answer(ticket, room);
    }

    fn answer(&mut self, vgpu: &mut Vgpu<Asked>, due: Due<Asked>, answers: &mut Answers) {
        // It was settled before it was found.
        self.count_parked(&due.ticket, &due.command.what);
        self.answer_due(vgpu, due, answers);
    }

    fn due(
        &mut self,
        vgpu: &mut Vgpu<Asked>,
        token: Token,
        outcome: Result<(), Refusal>,
        answers: &mut Answers,
    ) {
        if let Some((file, sequence)) = self.fences.remove(&token) {
            let waiters = self.sessions.get_mut(&file).and_then(|session| session.open.remove(&sequence));
            for waiter in waiters.unwrap_or_default() {
                self.settle(vgpu, waiter, Ok(()), answers);
            }
        } else if let Some(blob) = self.making.remove(&token) {
            self.blob_is_made(vgpu, blob, outcome, answers);
        } else if let Some(blob) = self.retired.remove(&token) {
            self.blob_is_gone(vgpu, blob, answers);
        } else {
            if let Some(What::Create { blob, .. }) = vgpu.waiting.command(token).map(|asked| asked.what) {
                self.blob_is_made(vgpu, blob, outcome, answers);
            }
            self.settle(vgpu, token, outcome, answers);
        }
    }

    fn look(&mut self, vgpu: &mut Vgpu<Asked>, answers: &mut Answers) {
        self.make_blobs(vgpu, answers);
        self.look_at_deadlines(vgpu, answers);
    }

    fn found(&mut self, vgpu: &mut Vgpu<Asked>, token: Token) {
        let Some(asked) = vgpu.waiting.command(token).copied() else { return };
        let Some(ticket) = vgpu.waiting.ticket(token) else { return };
        self.count_parked(ticket, &asked.what);
        if let What::Read { blob, at, bytes } = asked.what {
            let pages = super::registration::pages(ticket, bytes);
            let price = pages.as_deref().map_or(0, super::registration::price);
            let charge = vgpu.session.charge_front(price).ok();
            self.part_is_found(blob, at, pages, charge);
        }
    }

    fn memory_changed(&mut self, vgpu: &Vgpu<Asked>, memory: &Arc<GuestRam>) {
        self.memory_bytes = memory.iter().map(|region| region.len()).sum();
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
        let generation = random().unwrap_or(self.generation.wrapping_add(1));
        let (memory_bytes, mut next) = (self.memory_bytes, Self::with(self.options.clone(), generation));
        next.aperture.place_as(&self.aperture);
        next.memory_bytes = memory_bytes;
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

/// A random key.
pub(super) fn new_key() -> io::Result<Key> {
    let mut key = Key::new_zeroed();
    getrandom(key.as_mut_bytes(), GetRandomFlags::empty())?;
    Ok(key)
}

//! The virtio-fs device: FUSE requests, calls by ioctl on the file `gpu`, and pages that parked reads register. What a stock guest's kernel
//! and a process in it do, without either.

use campanile_protocol::capset::Capset;
use campanile_protocol::fs;
use campanile_protocol::fs::HIPRIO_QUEUE;
use campanile_protocol::fs::REQUEST_QUEUE;
use campanile_protocol::fs::body;
use campanile_protocol::fs::body::About;
use campanile_protocol::fs::body::AwaitBlob;
use campanile_protocol::fs::body::CreateBlob;
use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::body::Key;
use campanile_protocol::fs::body::Submit;
use campanile_protocol::fs::body::Submitted;
use campanile_protocol::fs::body::Wait;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::call;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::call::ReplyHeader;
use campanile_protocol::fs::call::RequestHeader;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::file::IoctlIn;
use campanile_protocol::fs::fuse::file::IoctlOut;
use campanile_protocol::fs::fuse::file::OpenIn;
use campanile_protocol::fs::fuse::file::OpenOut;
use campanile_protocol::fs::fuse::file::ReadIn;
use campanile_protocol::fs::fuse::node::EntryOut;
use campanile_protocol::fs::fuse::opcode;
use campanile_protocol::fs::fuse::start;
use campanile_protocol::fs::fuse::start::InitIn;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::arena::Arena;
use crate::fault::Fault;
use crate::memory::Memory;
use crate::virtio::Device;
use crate::virtqueue::VirtQueue;

/// How long a request may take; none is parked for more than a second.
const PATIENCE_MS: u32 = 3_000;
/// How long a call asks to be parked, in nanoseconds, and how often.
const PARKED: u64 = 250_000_000;
const TURNS: u32 = 80;
/// `O_RDWR`.
const READ_WRITE: u32 = 2;
/// Where the number of request queues is in the configuration, behind the tag.
const QUEUES: u64 = fs::TAG_BYTES as u64;
/// Zeros behind a call that is shorter than its reply.
static ZEROS: [u8; 2048] = [0; 2048];

/// The request queue of the device, and its file.
pub(crate) struct Fs {
    queue: VirtQueue,
    unique: u64,
    node: u64,
    /// The session, and the file that registers pages for it.
    file: u64,
    registrar: u64,
}

/// The answer to CAPSET.
#[derive(FromBytes, IntoBytes)]
#[repr(C)]
struct AboutAndCapset {
    about: About,
    capset: Capset,
}

fn small(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

impl Fs {
    /// Sets the queues of a device up.
    pub(crate) fn begin(device: &Device, arena: &mut Arena) -> Result<Self, Fault> {
        let _forgets = device.queue(HIPRIO_QUEUE, arena)?;
        let queue = device.queue(REQUEST_QUEUE, arena)?;
        Ok(Self { queue, unique: 0, node: 0, file: 0, registrar: 0 })
    }

    /// That the device has a tag, and request queues.
    pub(crate) fn check_config(device: &Device) -> Result<(), Fault> {
        let right =
            device.config(0) != 0 && device.config(0) != u32::MAX && (1..=8).contains(&device.config(QUEUES));
        if right { Ok(()) } else { Err(Fault::Device("its configuration is not that of a file system")) }
    }

    fn header(&mut self, opcode: u32, length: usize) -> InHeader {
        self.unique += 2;
        InHeader {
            length: small(size_of::<InHeader>() + length),
            opcode,
            unique: self.unique,
            node: self.node,
            user: 0,
            group: 0,
            process: 1,
            extensions: 0,
        }
    }

    /// Sends a request; its results.
    fn request(&mut self, name: &'static str, opcode: u32, parts: [&[u8]; 5]) -> Result<Memory, Fault> {
        let header = self.header(opcode, parts.iter().map(|part| part.len()).sum());
        let command = [header.as_bytes(), parts[0], parts[1], parts[2], parts[3], parts[4]];
        let (answer, length) = self.queue.call(&command, PATIENCE_MS).ok_or(Fault::Silence(name))?;
        let out: OutHeader = answer.read_as(0);
        let head = size_of::<OutHeader>() as u64;
        if length < head || out.unique != header.unique {
            return Err(Fault::Fuse(name, 0));
        }
        if out.error != 0 {
            Err(Fault::Fuse(name, -out.error))
        } else {
            Ok(answer.part(head, answer.length() - head))
        }
    }

    fn open_file(&mut self) -> Result<u64, Fault> {
        let open = OpenIn { flags: READ_WRITE, open_flags: 0 };
        let answer = self.request("OPEN", opcode::OPEN, [open.as_bytes(), &[], &[], &[], &[]])?;
        Ok(answer.read_as::<OpenOut>(0).handle)
    }

    /// Mounts, and opens the file twice: a session, and the registrar of its pages. What was there before is gone.
    pub(crate) fn open(&mut self) -> Result<(), Fault> {
        let init =
            InitIn { major: start::MAJOR, minor: start::MINOR, max_readahead: 0, flags: start::WANTED };
        self.node = 0;
        self.request("INIT", opcode::INIT, [init.as_bytes(), &[], &[], &[], &[]])?;
        self.queue.forget_parked();
        self.node = fs::ROOT;
        let found = self.request("LOOKUP", opcode::LOOKUP, [fs::NAME, &[0], &[], &[], &[]])?;
        self.node = found.read_as::<EntryOut>(0).node;
        self.file = self.open_file()?;
        let key: Key = self.ask("KEY", self.file, Call::Key, [&[], &[], &[]])?;
        self.registrar = self.open_file()?;
        self.ask::<()>("JOIN", self.registrar, Call::Join, [key.as_bytes(), &[], &[]])
    }

    /// A call on an open file.
    fn ask<T: FromBytes + IntoBytes>(
        &mut self,
        name: &'static str,
        handle: u64,
        call: Call,
        body: [&[u8]; 3],
    ) -> Result<T, Fault> {
        let size = size_of::<RequestHeader>() + body.iter().map(|part| part.len()).sum::<usize>();
        let room = size.max(size_of::<ReplyHeader>() + size_of::<T>());
        let number = call.number(room).ok_or(Fault::Device("a call is too long"))?;
        let (in_size, out_size) = (small(room), small(room));
        let ioctl = IoctlIn { handle, flags: 0, number, argument: 0, in_size, out_size };
        let header = RequestHeader { size: small(size), reserved: 0 };
        let mut front = [0; size_of::<IoctlIn>() + size_of::<RequestHeader>()];
        front[..size_of::<IoctlIn>()].copy_from_slice(ioctl.as_bytes());
        front[size_of::<IoctlIn>()..].copy_from_slice(header.as_bytes());
        let parts = [&front, body[0], body[1], body[2], &ZEROS[..room - size]];
        let answer = self.request(name, opcode::IOCTL, parts)?;
        let at = size_of::<IoctlOut>() as u64;
        let reply: ReplyHeader = answer.read_as(at);
        if reply.status != call::OK {
            return Err(Fault::Command(name, reply.status));
        }
        Ok(answer.read_as(at + size_of::<ReplyHeader>() as u64))
    }

    /// What the device can do.
    pub(crate) fn capset(&mut self) -> Result<Capset, Fault> {
        let answer: AboutAndCapset = self.ask("CAPSET", self.file, Call::Capset, [&[], &[], &[]])?;
        Ok(answer.capset)
    }

    /// Makes a blob of pages that a parked read registers, or of video memory; its number.
    pub(crate) fn create_blob(&mut self, size: u64, pages: Option<Memory>) -> Result<u32, Fault> {
        let memory = if pages.is_some() { body::MEMORY_PAGES } else { body::MEMORY_VIDEO };
        let create = CreateBlob { memory, flags: 0, size };
        let created: CreatedBlob =
            self.ask("CREATE_BLOB", self.file, Call::CreateBlob, [create.as_bytes(), &[], &[]])?;
        let Some(pages) = pages else { return Ok(created.blob) };
        let read = ReadIn {
            handle: self.registrar,
            offset: created.offset,
            size: u32::try_from(size).unwrap_or(u32::MAX),
            ..ReadIn::default()
        };
        let header = self.header(opcode::READ, size_of::<ReadIn>());
        let command = [header.as_bytes(), read.as_bytes()];
        if !self.queue.park(&command, size_of::<OutHeader>() as u64, pages) {
            return Err(Fault::Device("too many reads are parked"));
        }
        let wait = AwaitBlob { blob: created.blob, reserved: 0, timeout: PARKED };
        for _ in 0..TURNS {
            let waited: Waited =
                self.ask("AWAIT_BLOB", self.file, Call::AwaitBlob, [wait.as_bytes(), &[], &[]])?;
            if waited.done != 0 {
                return Ok(created.blob);
            }
        }
        Err(Fault::NoProgress)
    }

    /// Sends a control message, and waits until it and its work are done.
    pub(crate) fn submit(
        &mut self,
        name: &'static str,
        frame_header: &[u8],
        body: &[u8],
    ) -> Result<(), Fault> {
        let length = small(frame_header.len() + body.len());
        let submit = Submit { flags: body::SUBMIT_FENCE, ring: 1, length, reserved: 0 };
        let parts = [submit.as_bytes(), frame_header, body];
        let submitted: Submitted = self.ask(name, self.file, Call::Submit, parts)?;
        let wait = Wait { sequence: submitted.sequence, timeout: PARKED };
        for _ in 0..TURNS {
            let waited: Waited = self.ask(name, self.file, Call::Wait, [wait.as_bytes(), &[], &[]])?;
            if waited.done != 0 {
                return Ok(());
            }
        }
        Err(Fault::NoProgress)
    }
}

//! One guest process of a loopback VM with a virtio-fs device.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::capset::Capset;
use campanile_protocol::control::frame::MAX_CONTROL_BYTES;
use campanile_protocol::fs::body;
use campanile_protocol::fs::body::About;
use campanile_protocol::fs::body::AwaitBlob;
use campanile_protocol::fs::body::BlobName;
use campanile_protocol::fs::body::CreateBlob;
use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::body::Key;
use campanile_protocol::fs::body::Submit;
use campanile_protocol::fs::body::Submitted;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::call;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::call::MAX_CALL_BYTES;
use campanile_protocol::fs::call::ReplyHeader;
use campanile_protocol::fs::call::RequestHeader;
use campanile_protocol::fs::fuse::file::IoctlIn;
use campanile_protocol::fs::fuse::file::IoctlOut;
use campanile_protocol::fs::fuse::file::OpenIn;
use campanile_protocol::fs::fuse::file::OpenOut;
use campanile_protocol::fs::fuse::file::ReadIn;
use campanile_protocol::fs::fuse::file::ReleaseIn;
use campanile_protocol::fs::fuse::file::WriteIn;
use campanile_protocol::fs::fuse::opcode;
use campanile_protocol::fs::place::STAGE_BASE;
use rustix::io::Errno;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::super::guest_ram::RamBlock;
use super::super::vm::LoopbackVm;
use super::request::FuseError;
use super::request::FuseReply;
use super::request::FuseRequest;
use super::waiting::MOMENT;
use super::waiting::Waiting;
use super::waiting::is_full;
use crate::transport::Transport;
use crate::transport::blob::Blob;
use crate::transport::blob::BlobMemory;
use crate::transport::error::Refusal;
use crate::transport::error::TransportError;
use crate::transport::shared_memory::Piece;
use crate::transport::shared_memory::SharedMemory;
use crate::transport::submission::Submission;

/// Pages of one read: what a ring of 128 descriptors lets the kernel ask for.
const READ_PAGES: u64 = 124;
/// Longest frames that go with a SUBMIT.
const MAX_INLINE: usize = MAX_CALL_BYTES - size_of::<RequestHeader>() - size_of::<Submit>();
/// Timelines.
const RINGS: u8 = 64;

/// The file `gpu`, opened. Dropping it closes it.
#[derive(Debug)]
pub struct FuseFile {
    vm: Arc<LoopbackVm>,
    generation: u64,
    /// What the device calls it.
    pub handle: u64,
}

impl FuseFile {
    /// Opens it.
    ///
    /// # Errors
    /// What the device said.
    pub fn open(vm: &Arc<LoopbackVm>) -> Result<Self, TransportError> {
        let generation = vm.generation();
        let open = OpenIn { flags: 2, open_flags: 0 };
        let request = FuseRequest::new(opcode::OPEN, open.as_bytes(), size_of::<OpenOut>());
        let opened = vm.fuse(&request)?.wait().map_err(|error| of("OPEN", error))?;
        let opened: OpenOut = read("OPEN", &opened)?;
        Ok(Self { vm: Arc::clone(vm), generation, handle: opened.handle })
    }

    fn check(&self) -> Result<(), TransportError> {
        if self.generation == self.vm.generation() { Ok(()) } else { Err(TransportError::DeviceReset) }
    }

    /// An ioctl under way, with a buffer of `room` bytes.
    ///
    /// # Errors
    /// The device is gone.
    pub fn begin(
        &self,
        call: Call,
        body: &[u8],
        room: usize,
        user: u32,
    ) -> Result<FuseReply, TransportError> {
        self.check()?;
        let size = size_of::<RequestHeader>() + body.len();
        let room = size.max(size_of::<ReplyHeader>() + room);
        let limit = MAX_CALL_BYTES as u64;
        let bytes = room as u64;
        let number = call.number(room).ok_or(TransportError::Size { what: "a call", bytes, limit })?;
        let small = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let ioctl = IoctlIn {
            handle: self.handle,
            number,
            in_size: small(room),
            out_size: small(room),
            ..IoctlIn::default()
        };
        let header = RequestHeader { size: small(size), reserved: 0 };
        let mut arguments = [ioctl.as_bytes(), header.as_bytes(), body].concat();
        arguments.resize(size_of::<IoctlIn>() + room, 0);
        let room = size_of::<IoctlOut>() + room;
        self.vm.fuse(&FuseRequest { user, ..FuseRequest::new(opcode::IOCTL, &arguments, room) })
    }

    /// The body of a call's reply.
    ///
    /// # Errors
    /// What the device said.
    pub fn call(
        &self,
        name: &'static str,
        call: Call,
        body: &[u8],
        room: usize,
    ) -> Result<Vec<u8>, TransportError> {
        let results = self.begin(call, body, room, 1000)?.wait().map_err(|error| of(name, error))?;
        let why = "it is no reply";
        let bad = TransportError::BadAnswer { command: name, why };
        let Some((header, body)) =
            results.get(size_of::<IoctlOut>()..).and_then(|reply| ReplyHeader::read_from_prefix(reply).ok())
        else {
            return Err(bad);
        };
        if let Some(refusal) = Refusal::from_code(header.status) {
            return Err(TransportError::Refused { command: name, refusal });
        }
        let size = usize::try_from(header.size).unwrap_or(usize::MAX);
        match size.checked_sub(size_of::<ReplyHeader>()).and_then(|size| body.get(..size)) {
            Some(body) if header.status == call::OK => Ok(body.to_vec()),
            _ => Err(bad),
        }
    }

    /// A call whose reply is a `T`.
    ///
    /// # Errors
    /// What the device said.
    pub fn ask<T: FromBytes + KnownLayout + Immutable, B: IntoBytes + Immutable>(
        &self,
        name: &'static str,
        call: Call,
        body: &B,
    ) -> Result<T, TransportError> {
        read(name, &self.call(name, call, body.as_bytes(), size_of::<T>())?)
    }

    /// A write.
    ///
    /// # Errors
    /// What the device said.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), TransportError> {
        self.check()?;
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let write = WriteIn { handle: self.handle, offset, size, ..WriteIn::default() };
        let arguments = [write.as_bytes(), bytes].concat();
        let request = FuseRequest::new(opcode::WRITE, &arguments, 8);
        self.vm.fuse(&request)?.wait().map(drop).map_err(|error| of("WRITE", error))
    }

    /// A direct read into pages of a block, from byte `at` of it on.
    pub(super) fn read(
        &self,
        offset: u64,
        block: &Arc<RamBlock>,
        first: u64,
        pages: u64,
    ) -> Result<FuseReply, TransportError> {
        self.check()?;
        let size = u32::try_from(pages * PAGE_SIZE).unwrap_or(u32::MAX);
        let read = ReadIn { handle: self.handle, offset, size, ..ReadIn::default() };
        self.vm.fuse_read(&FuseRequest::new(opcode::READ, read.as_bytes(), 0), block, first, pages)
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        if self.check().is_err() || !self.vm.is_connected() {
            return;
        }
        let release = ReleaseIn { handle: self.handle, ..ReleaseIn::default() };
        let released = self.vm.fuse(&FuseRequest::new(opcode::RELEASE, release.as_bytes(), 0));
        let released = released.map_err(FuseError::from).and_then(|reply| reply.wait());
        if let Err(error) = released {
            log::debug!("closing a file: {error}");
        }
    }
}

/// What an error of the device means.
fn of(command: &'static str, error: FuseError) -> TransportError {
    match error {
        FuseError::Errno(Errno::NODEV) => TransportError::DeviceReset,
        FuseError::Errno(errno) => {
            TransportError::System { what: command, source: std::io::Error::from(errno).into() }
        }
        FuseError::Transport(error) => error,
    }
}

fn read<T: FromBytes + KnownLayout + Immutable>(
    command: &'static str,
    bytes: &[u8],
) -> Result<T, TransportError> {
    let why = "it has another length";
    T::read_from_bytes(bytes).map_err(|_| TransportError::BadAnswer { command, why })
}

/// A blob of this process.
#[derive(Debug)]
struct Record {
    memory: SharedMemory,
    /// Reads that keep its pages registered.
    reads: Vec<FuseReply>,
}

/// A session. Dropping it closes its files, and the device frees what belongs to it.
#[derive(Debug)]
pub struct FuseContext {
    file: Arc<FuseFile>,
    registrar: OnceLock<FuseFile>,
    blobs: Mutex<HashMap<u32, Record>>,
    staging: Mutex<()>,
    aperture: bool,
}

/// CAPSET's reply.
#[derive(FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct AboutAndCapset {
    about: About,
    capset: Capset,
}

impl FuseContext {
    /// Opens the file.
    ///
    /// # Errors
    /// What the device said.
    pub fn open(vm: &Arc<LoopbackVm>) -> Result<Self, TransportError> {
        let file = Arc::new(FuseFile::open(vm)?);
        let aperture = about(&file)?.about.aperture_bytes > 0;
        let (registrar, blobs, staging) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Ok(Self { file, registrar, blobs, staging, aperture })
    }

    /// The open file that is the session.
    pub fn file(&self) -> &Arc<FuseFile> {
        &self.file
    }

    /// The file through which pages are registered.
    ///
    /// # Errors
    /// What the device said.
    pub fn registrar(&self) -> Result<&FuseFile, TransportError> {
        if let Some(file) = self.registrar.get() {
            return Ok(file);
        }
        let key: Key = self.file.ask("KEY", Call::Key, &())?;
        let file = FuseFile::open(&self.file.vm)?;
        file.call("JOIN", Call::Join, key.as_bytes(), 0)?;
        Ok(self.registrar.get_or_init(|| file))
    }

    /// The reads that keep the pages of a blob registered.
    pub fn reads(&self, resource_id: u32) -> Vec<FuseReply> {
        self.blobs().get(&resource_id).map_or_else(Vec::new, |record| record.reads.clone())
    }

    fn blobs(&self) -> MutexGuard<'_, HashMap<u32, Record>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create(&self, memory: u32, size: u64) -> Result<CreatedBlob, TransportError> {
        self.file.ask("CREATE_BLOB", Call::CreateBlob, &CreateBlob { memory, flags: 0, size })
    }

    fn register(&self, size: u64) -> Result<(u32, Record), TransportError> {
        let vm = &self.file.vm;
        let block = Arc::new(vm.ram.allocate(size, vm.options.pages)?);
        block.zero();
        let registrar = self.registrar()?;
        let created = self.create(body::MEMORY_PAGES, size)?;
        let all = size / PAGE_SIZE;
        let mut reads = Vec::new();
        for first in (0..all).step_by(usize::try_from(READ_PAGES).unwrap_or(1)) {
            let pages = READ_PAGES.min(all - first);
            reads.push(registrar.read(created.offset + first * PAGE_SIZE, &block, first, pages)?);
        }
        let record = Record { memory: block.shared(), reads };
        let timeout = body::MAX_TIMEOUT;
        let mut await_blob = AwaitBlob { blob: created.blob, reserved: 0, timeout };
        loop {
            let waited = match self.file.ask::<Waited, _>("AWAIT_BLOB", Call::AwaitBlob, &await_blob) {
                Err(error) if is_full(&error) => {
                    std::thread::sleep(MOMENT);
                    await_blob.timeout = 0;
                    continue;
                }
                waited => waited?,
            };
            if waited.done != 0 {
                return Ok((created.blob, record));
            }
            if let Some(read) = record.reads.iter().find(|read| read.is_done()) {
                read.wait().map_err(|error| of("READ", error))?;
            }
        }
    }

    fn take_of_aperture(&self, size: u64) -> Result<(u32, Record), TransportError> {
        let created = self.create(body::MEMORY_APERTURE, size)?;
        let aperture = self.file.vm.aperture.as_ref().ok_or(TransportError::NoWindow)?;
        let outside = || TransportError::WindowUnmapped { offset: created.offset, bytes: size };
        let region_offset = usize::try_from(created.offset).map_err(|_| outside())?;
        let piece = Piece { region: Arc::clone(aperture.region()), region_offset, length: size };
        Ok((created.blob, Record { memory: SharedMemory::new(vec![piece], None), reads: Vec::new() }))
    }
}

fn about(file: &FuseFile) -> Result<AboutAndCapset, TransportError> {
    file.ask("CAPSET", Call::Capset, &())
}

impl Transport for FuseContext {
    fn capset(&self) -> Result<Capset, TransportError> {
        Ok(about(&self.file)?.capset)
    }

    fn sees_video_memory(&self) -> bool {
        false
    }

    fn create_blob(&self, memory: BlobMemory, size: u64) -> Result<Blob, TransportError> {
        let limit = u64::MAX - PAGE_SIZE + 1;
        if size == 0 || size > limit {
            return Err(TransportError::Size { what: "a blob", bytes: size, limit });
        }
        if memory == BlobMemory::Vram {
            return Err(TransportError::NoWindow);
        }
        let size = size.next_multiple_of(PAGE_SIZE);
        let (resource_id, record) =
            if self.aperture { self.take_of_aperture(size)? } else { self.register(size)? };
        self.blobs().insert(resource_id, record);
        Ok(Blob { resource_id, size, memory })
    }

    fn map(&self, blob: &Blob) -> Result<SharedMemory, TransportError> {
        let foreign = TransportError::ForeignBlob { resource_id: blob.resource_id };
        self.blobs().get(&blob.resource_id).map(|record| record.memory.clone()).ok_or(foreign)
    }

    fn destroy_blob(&self, blob: Blob) -> Result<(), TransportError> {
        let resource_id = blob.resource_id;
        let record = self.blobs().remove(&resource_id);
        record.ok_or(TransportError::ForeignBlob { resource_id })?;
        let name = BlobName { blob: resource_id, reserved: 0 };
        self.file.call("DESTROY_BLOB", Call::DestroyBlob, name.as_bytes(), 0).map(drop)
    }

    fn submit(&self, frames: &[u8], fence: Option<u8>) -> Result<Submission, TransportError> {
        let limit = u64::from(MAX_CONTROL_BYTES);
        if !(1..=limit).contains(&(frames.len() as u64)) {
            return Err(TransportError::Size { what: "control frames", bytes: frames.len() as u64, limit });
        }
        if let Some(ring_index) = fence.filter(|ring_index| *ring_index >= RINGS) {
            return Err(TransportError::RingIndex { ring_index, limit: RINGS - 1 });
        }
        let mut submit = Submit {
            flags: fence.map_or(0, |_| body::SUBMIT_FENCE),
            ring: u32::from(fence.unwrap_or(0)),
            length: u32::try_from(frames.len()).unwrap_or(u32::MAX),
            reserved: 0,
        };
        let submitted = if frames.len() <= MAX_INLINE {
            let body = [submit.as_bytes(), frames].concat();
            self.file.call("SUBMIT", Call::Submit, &body, size_of::<Submitted>())?
        } else {
            let _staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
            self.file.write(STAGE_BASE, frames)?;
            submit.flags |= body::SUBMIT_STAGED;
            self.file.call("SUBMIT", Call::Submit, submit.as_bytes(), size_of::<Submitted>())?
        };
        let submitted: Submitted = read("SUBMIT", &submitted)?;
        let (file, sequence, done) = (Arc::clone(&self.file), submitted.sequence, AtomicBool::new(false));
        Ok(Submission::new(Arc::new(Waiting { file, sequence, done })))
    }

    fn commands_sent(&self) -> u64 {
        self.file.vm.commands_sent()
    }

    fn is_connected(&self) -> bool {
        self.file.check().is_ok() && self.file.vm.is_connected()
    }
}

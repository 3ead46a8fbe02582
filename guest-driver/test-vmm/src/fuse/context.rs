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
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::place::STAGE_BASE;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use super::file::FuseFile;
use super::file::of;
use super::file::read;
use super::request::FuseReply;
use super::waiting::MOMENT;
use super::waiting::Waiting;
use super::waiting::is_full;
use crate::vm::LoopbackVm;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::Blob;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::transport::shared_memory::Piece;
use campanile_guest_driver::transport::shared_memory::SharedMemory;
use campanile_guest_driver::transport::submission;
use campanile_guest_driver::transport::submission::Submission;

/// Pages of one read: what a ring of 128 descriptors lets the kernel ask for.
const READ_PAGES: u64 = 124;

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
        Ok(Blob::new(resource_id, size, memory))
    }

    fn map(&self, blob: &Blob) -> Result<SharedMemory, TransportError> {
        let foreign = TransportError::ForeignBlob { resource_id: blob.resource_id() };
        self.blobs().get(&blob.resource_id()).map(|record| record.memory.clone()).ok_or(foreign)
    }

    fn destroy_blob(&self, blob: Blob) -> Result<(), TransportError> {
        let resource_id = blob.resource_id();
        let record = self.blobs().remove(&resource_id);
        record.ok_or(TransportError::ForeignBlob { resource_id })?;
        let name = BlobName { blob: resource_id, reserved: 0 };
        self.file.call("DESTROY_BLOB", Call::DestroyBlob, name.as_bytes(), 0).map(drop)
    }

    fn submit(&self, frames: &[u8], fence: Option<u8>) -> Result<Submission, TransportError> {
        let length = submission::check(frames, fence)?;
        let mut submit = Submit::of(length, fence);
        let submitted = if frames.len() <= Submit::MAX_INLINE {
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

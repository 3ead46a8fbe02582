//! One guest process on the file `gpu`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::capset::Capset;
use campanile_protocol::fs::body;
use campanile_protocol::fs::body::BlobName;
use campanile_protocol::fs::body::CreateBlob;
use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::body::Submit;
use campanile_protocol::fs::body::Submitted;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::place::MAX_REGISTERED;
use campanile_protocol::fs::place::STAGE_BASE;
use rustix::io::Errno;

use super::aperture;
use super::aperture::Aperture;
use super::channel::FsChannel;
use super::pages;
use super::pages::Registrar;
use super::wait::Pending;
use crate::transport::Transport;
use crate::transport::blob::Blob;
use crate::transport::blob::BlobMemory;
use crate::transport::error::Refusal;
use crate::transport::error::TransportError;
use crate::transport::shared_memory::Piece;
use crate::transport::shared_memory::SharedMemory;
use crate::transport::submission;
use crate::transport::submission::Submission;

/// How often frames are staged again that a migration lost.
const STAGINGS: u32 = 8;

/// A session of the device. Dropping it closes the file, and the daemon frees what belongs to it.
#[derive(Debug)]
pub struct FsContext {
    channel: Arc<FsChannel>,
    /// Or why there is none for this process.
    aperture: Result<Aperture, String>,
    registrar: OnceLock<Registrar>,
    /// Held while the registrar is opened.
    opening: Mutex<()>,
    /// Held from the first staged byte to the SUBMIT that takes them.
    staging: Mutex<()>,
    /// What this process can map of each.
    blobs: Mutex<HashMap<u32, Option<SharedMemory>>>,
}

impl FsContext {
    /// Opens a session on the file that [`FsChannel::find`] finds.
    ///
    /// # Errors
    /// `NoChannel`.
    pub fn open() -> Result<Self, TransportError> {
        Ok(Self::on(FsChannel::find()?))
    }

    /// Opens a session on this file.
    pub fn on(channel: FsChannel) -> Self {
        let aperture = match channel.aperture_bytes() {
            0 => Err("the daemon has found none".to_owned()),
            bytes => Aperture::find(Path::new(aperture::BUS), bytes),
        };
        Self {
            channel: Arc::new(channel),
            aperture,
            registrar: OnceLock::new(),
            opening: Mutex::default(),
            staging: Mutex::default(),
            blobs: Mutex::default(),
        }
    }

    /// The file's name, and the aperture's, or why this process has none.
    pub fn describe(&self) -> String {
        let path = self.channel.path().display();
        match &self.aperture {
            Ok(aperture) => format!("{path}, aperture {}", aperture.path().display()),
            Err(why) => format!("{path}, no aperture: {why}"),
        }
    }

    fn blobs(&self) -> MutexGuard<'_, HashMap<u32, Option<SharedMemory>>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registrar(&self) -> Result<&Registrar, TransportError> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registrar) = self.registrar.get() {
            return Ok(registrar);
        }
        let registrar = Registrar::open(&self.channel)?;
        Ok(self.registrar.get_or_init(|| registrar))
    }

    fn create(&self, memory: u32, size: u64) -> Result<CreatedBlob, TransportError> {
        let body = CreateBlob { memory, flags: 0, size };
        self.channel.ask("CREATE_BLOB", Call::CreateBlob, &body, &[])
    }

    fn destroy(&self, blob: u32) -> Result<(), TransportError> {
        self.channel.ask("DESTROY_BLOB", Call::DestroyBlob, &BlobName { blob, reserved: 0 }, &[])
    }

    /// A range of the aperture, which the daemon chooses.
    fn in_aperture(&self, size: u64) -> Result<(u32, SharedMemory), TransportError> {
        let aperture = self.aperture.as_ref().map_err(|_| TransportError::NoWindow)?;
        let created =
            full(self.create(body::MEMORY_APERTURE, size), TransportError::OutOfWindow { bytes: size })?;
        let region = aperture.region();
        let whole = region.size() as u64;
        let inside = created.offset.is_multiple_of(PAGE_SIZE)
            && created.offset.checked_add(size).is_some_and(|end| end <= whole);
        match usize::try_from(created.offset) {
            Ok(region_offset) if inside => {
                let piece = Piece { region: Arc::clone(region), region_offset, length: size };
                Ok((created.blob, SharedMemory::new(vec![piece], None)))
            }
            _ => {
                self.destroy(created.blob)?;
                Err(TransportError::WindowUnmapped { offset: created.offset, bytes: size })
            }
        }
    }

    /// Pages of this process, which the daemon gets to know.
    fn in_pages(&self, size: u64) -> Result<(u32, SharedMemory), TransportError> {
        let registrar = self.registrar()?;
        let region = pages::memory(size)?;
        let created =
            full(self.create(body::MEMORY_PAGES, size), TransportError::OutOfGuestRam { bytes: size })?;
        if let Err(error) = registrar.register(&self.channel, created, &region) {
            if let Err(also) = self.destroy(created.blob) {
                log::debug!("giving up blob {}: {also}", created.blob);
            }
            return Err(error);
        }
        let piece = Piece { region, region_offset: 0, length: size };
        Ok((created.blob, SharedMemory::new(vec![piece], None)))
    }

    /// Writes frames that are too long for a SUBMIT.
    fn stage(&self, frames: &[u8]) -> Result<(), TransportError> {
        let mut at = 0;
        while at < frames.len() {
            let rest = frames.get(at..).unwrap_or_default();
            let written = match rustix::io::pwrite(&self.channel.file, rest, STAGE_BASE + at as u64) {
                Err(Errno::INTR) => continue,
                written => self.channel.done("staging frames", written)?,
            };
            if written == 0 {
                return Err(TransportError::BadAnswer { command: "WRITE", why: "it took nothing" });
            }
            at += written;
        }
        Ok(())
    }

    fn submit_staged(&self, frames: &[u8], body: Submit) -> Result<Submitted, TransportError> {
        let _staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let body = Submit { flags: body.flags | body::SUBMIT_STAGED, ..body };
        let mut attempt = 1;
        loop {
            let staged = self.stage(frames);
            match staged.and_then(|()| self.channel.ask("SUBMIT", Call::Submit, &body, &[])) {
                Err(TransportError::System { source, .. })
                    if attempt < STAGINGS && source.downcast_ref() == Some(&Errno::AGAIN) =>
                {
                    attempt += 1;
                }
                submitted => return submitted,
            }
        }
    }
}

/// A daemon that has no more of a kind of memory says so in its words.
fn full(
    created: Result<CreatedBlob, TransportError>,
    full: TransportError,
) -> Result<CreatedBlob, TransportError> {
    match created {
        Err(TransportError::Refused { refusal: Refusal::OutOfMemory, .. }) => Err(full),
        created => created,
    }
}

impl Transport for FsContext {
    fn capset(&self) -> Result<Capset, TransportError> {
        self.channel.capset()
    }

    fn sees_video_memory(&self) -> bool {
        self.aperture.is_ok()
    }

    fn create_blob(&self, memory: BlobMemory, size: u64) -> Result<Blob, TransportError> {
        let limit = match memory {
            BlobMemory::Vram | BlobMemory::Local => u64::MAX - PAGE_SIZE + 1,
            BlobMemory::GuestRam => MAX_REGISTERED,
        };
        if size == 0 || size > limit {
            return Err(TransportError::Size { what: "a blob", bytes: size, limit });
        }
        let size = size.next_multiple_of(PAGE_SIZE);
        let (resource_id, shared) = match memory {
            BlobMemory::Vram => self.in_aperture(size).map(|(blob, shared)| (blob, Some(shared)))?,
            BlobMemory::GuestRam => self.in_pages(size).map(|(blob, shared)| (blob, Some(shared)))?,
            BlobMemory::Local => (self.create(body::MEMORY_VIDEO, size)?.blob, None),
        };
        self.blobs().insert(resource_id, shared);
        Ok(Blob { resource_id, size, memory })
    }

    fn map(&self, blob: &Blob) -> Result<SharedMemory, TransportError> {
        let foreign = TransportError::ForeignBlob { resource_id: blob.resource_id };
        self.blobs().get(&blob.resource_id).ok_or(foreign)?.clone().ok_or(TransportError::NoWindow)
    }

    fn destroy_blob(&self, blob: Blob) -> Result<(), TransportError> {
        let foreign = TransportError::ForeignBlob { resource_id: blob.resource_id };
        self.blobs().remove(&blob.resource_id).ok_or(foreign)?;
        self.destroy(blob.resource_id)
    }

    fn submit(&self, frames: &[u8], fence: Option<u8>) -> Result<Submission, TransportError> {
        let length = submission::check(frames, fence)?;
        let body = Submit::of(length, fence);
        let submitted = if frames.len() <= Submit::MAX_INLINE {
            self.channel.ask("SUBMIT", Call::Submit, &body, frames)?
        } else {
            self.submit_staged(frames, body)?
        };
        Ok(Submission::new(Arc::new(Pending::new(Arc::clone(&self.channel), submitted.sequence))))
    }

    fn commands_sent(&self) -> u64 {
        self.channel.sent()
    }

    fn is_connected(&self) -> bool {
        !self.channel.is_lost()
    }
}

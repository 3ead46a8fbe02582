//! One guest process on a render node.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::capset::CAPSET_ID;
use campanile_protocol::capset::CAPSET_VERSION;
use campanile_protocol::capset::Capset;
use campanile_protocol::virtio_gpu::blob;
use rustix::io::Errno;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;

use super::ioctl;
use super::mapping;
use super::node::RenderNode;
use super::sync_file::SyncFile;
use crate::transport::Transport;
use crate::transport::blob::Blob;
use crate::transport::blob::BlobMemory;
use crate::transport::error::TransportError;
use crate::transport::shared_memory::SharedMemory;
use crate::transport::submission;
use crate::transport::submission::Completion;
use crate::transport::submission::RINGS;
use crate::transport::submission::Submission;

/// How long a daemon that is there may take to answer.
const GREETING: Duration = Duration::from_secs(5);

/// A context of capability set 24. Dropping it closes the node, and the kernel frees what belongs to it.
#[derive(Debug)]
pub struct DrmContext {
    node: RenderNode,
    blobs: Mutex<HashMap<u32, Record>>,
    /// ioctls that made the driver send commands.
    sent: AtomicU64,
    /// The device was unplugged.
    lost: AtomicBool,
}

/// What is kept of a blob.
#[derive(Debug)]
struct Record {
    handle: u32,
    size: u64,
    mapped: Option<SharedMemory>,
}

impl DrmContext {
    /// Opens a context on the node that [`RenderNode::find`] finds.
    pub fn open() -> Result<Self, TransportError> {
        Self::on(RenderNode::find()?)
    }

    /// Opens a context on this node.
    pub fn on(node: RenderNode) -> Result<Self, TransportError> {
        let made = ioctl::init_context(node.file.as_fd(), CAPSET_ID, u64::from(RINGS));
        made.map_err(|errno| TransportError::System { what: "CONTEXT_INIT", source: errno.into() })?;
        let (sent, lost) = (AtomicU64::new(1), AtomicBool::new(false));
        let context = Self { node, blobs: Mutex::default(), sent, lost };
        context.greet()?;
        Ok(context)
    }

    /// Has the device answer to nothing at all. What is asked of a daemon that is gone is never answered, and some of
    /// it the kernel waits for without an end: better to find out here.
    fn greet(&self) -> Result<(), TransportError> {
        let file = self.done("EXECBUFFER", ioctl::execute(self.fd(), &[], Some(0)))?;
        match (SyncFile { file }).wait(Some(GREETING)) {
            Err(TransportError::Timeout { after, .. }) => {
                Err(TransportError::Silent { path: self.path().to_owned(), after })
            }
            greeted => greeted,
        }
    }

    /// The node's name.
    pub fn path(&self) -> &Path {
        self.node.path()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.node.file.as_fd()
    }

    fn blobs(&self) -> MutexGuard<'_, HashMap<u32, Record>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an ioctl came to; `ENODEV` is the end of the device.
    fn done<T>(&self, what: &'static str, result: Result<T, Errno>) -> Result<T, TransportError> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        result.map_err(|errno| {
            if errno == Errno::NODEV {
                self.lost.store(true, Ordering::Relaxed);
                return TransportError::Disconnected;
            }
            TransportError::System { what, source: errno.into() }
        })
    }
}

impl Transport for DrmContext {
    fn capset(&self) -> Result<Capset, TransportError> {
        let mut capset = Capset::new_zeroed();
        let asked = ioctl::capset(self.fd(), CAPSET_ID, CAPSET_VERSION, capset.as_mut_bytes());
        self.done("GET_CAPS", asked)?;
        Ok(capset)
    }

    fn sees_video_memory(&self) -> bool {
        self.node.is_host_visible()
    }

    fn create_blob(&self, memory: BlobMemory, size: u64) -> Result<Blob, TransportError> {
        let limit = u64::MAX - PAGE_SIZE + 1;
        if size == 0 || size > limit {
            return Err(TransportError::Size { what: "a blob", bytes: size, limit });
        }
        let size = size.next_multiple_of(PAGE_SIZE);
        let kind = match memory {
            BlobMemory::Vram | BlobMemory::Local if !self.sees_video_memory() => {
                return Err(TransportError::NoWindow);
            }
            BlobMemory::Vram | BlobMemory::Local => blob::MEM_HOST3D,
            BlobMemory::GuestRam => blob::MEM_GUEST,
        };
        let created = match ioctl::create_blob(self.fd(), kind, blob::FLAG_MAPPABLE, size) {
            Err(Errno::NOSPC) => return Err(TransportError::OutOfWindow { bytes: size }),
            Err(Errno::NOMEM) if memory == BlobMemory::GuestRam => {
                return Err(TransportError::OutOfGuestRam { bytes: size });
            }
            created => self.done("RESOURCE_CREATE_BLOB", created),
        };
        let (handle, resource_id) = created?;
        self.blobs().insert(resource_id, Record { handle, size, mapped: None });
        Ok(Blob { resource_id, size, memory })
    }

    fn map(&self, blob: &Blob) -> Result<SharedMemory, TransportError> {
        let mut blobs = self.blobs();
        let record = blobs
            .get_mut(&blob.resource_id)
            .ok_or(TransportError::ForeignBlob { resource_id: blob.resource_id })?;
        if let Some(shared) = &record.mapped {
            return Ok(shared.clone());
        }
        // These two ioctls send nothing: the driver asked for the blob's place when it was created.
        let offset = ioctl::map_offset(self.fd(), record.handle);
        let offset = offset.map_err(|errno| TransportError::System { what: "MAP", source: errno.into() })?;
        let shared = mapping::map(self.fd(), offset, record.size)?;
        record.mapped = Some(shared.clone());
        Ok(shared)
    }

    fn destroy_blob(&self, blob: Blob) -> Result<(), TransportError> {
        let record = self
            .blobs()
            .remove(&blob.resource_id)
            .ok_or(TransportError::ForeignBlob { resource_id: blob.resource_id })?;
        self.done("GEM_CLOSE", ioctl::close(self.fd(), record.handle))
    }

    fn submit(&self, frames: &[u8], fence: Option<u8>) -> Result<Submission, TransportError> {
        submission::check(frames, fence)?;
        let file = self.done("EXECBUFFER", ioctl::execute(self.fd(), frames, fence))?;
        Ok(Submission::new(Arc::new(SyncFile { file })))
    }

    fn commands_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn is_connected(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }
}

//! One guest process on a render node.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::RwLock;
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
use super::node::NodeIdentity;
use super::node::RenderNode;
use super::sync_file::SyncFile;
use crate::transport::Transport;
use crate::transport::away::Again;
use crate::transport::away::Migrant;
use crate::transport::away::Numbers;
use crate::transport::away::show_file;
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
    /// None while the device is away.
    node: RwLock<Option<Arc<RenderNode>>>,
    /// What was left last.
    left: Mutex<Option<NodeIdentity>>,
    blobs: Mutex<HashMap<u32, Record>>,
    numbers: Mutex<Numbers>,
    /// ioctls that made the driver send commands.
    sent: AtomicU64,
    /// The device was unplugged.
    lost: AtomicBool,
}

/// What is kept of a blob.
#[derive(Debug)]
struct Record {
    handle: u32,
    /// The device's number for it.
    number: u32,
    memory: BlobMemory,
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
        let (sent, lost) = (AtomicU64::new(1), AtomicBool::new(false));
        let context = Self {
            node: RwLock::default(),
            left: Mutex::default(),
            blobs: Mutex::default(),
            numbers: Mutex::default(),
            sent,
            lost,
        };
        context.begin_on(node)?;
        Ok(context)
    }

    fn begin_on(&self, node: RenderNode) -> Result<(), TransportError> {
        let made = ioctl::init_context(node.file.as_fd(), CAPSET_ID, u64::from(RINGS));
        made.map_err(|errno| TransportError::System { what: "CONTEXT_INIT", source: errno.into() })?;
        let node = Arc::new(node);
        self.greet(&node)?;
        *self.node.write().unwrap_or_else(PoisonError::into_inner) = Some(node);
        Ok(())
    }

    /// Has the device answer to nothing at all. What is asked of a daemon that is gone is never answered, and some of
    /// it the kernel waits for without an end: better to find out here.
    fn greet(&self, node: &Arc<RenderNode>) -> Result<(), TransportError> {
        let file = self.done("EXECBUFFER", ioctl::execute(node.file.as_fd(), &[], Some(0)))?;
        match SyncFile::new(file, Arc::clone(node)).wait(Some(GREETING)) {
            Err(TransportError::Timeout { after, .. }) => {
                Err(TransportError::Silent { path: node.path().to_owned(), after })
            }
            greeted => greeted,
        }
    }

    /// The node that it has now.
    fn node(&self) -> Result<Arc<RenderNode>, TransportError> {
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner);
        node.clone().ok_or(TransportError::Disconnected)
    }

    /// The node's name; none while the device is away.
    pub fn path(&self) -> Option<PathBuf> {
        self.node().ok().map(|node| node.path().to_owned())
    }

    /// Creates a blob, by the name that the daemon knows it by, if it does: its handle, and the device's number.
    fn make(&self, memory: BlobMemory, size: u64, name: u64) -> Result<(u32, u32), TransportError> {
        let node = self.node()?;
        let kind = match memory {
            BlobMemory::Vram | BlobMemory::Local if !node.is_host_visible() => {
                return Err(TransportError::NoWindow);
            }
            BlobMemory::Vram | BlobMemory::Local => blob::MEM_HOST3D,
            BlobMemory::GuestRam => blob::MEM_GUEST,
        };
        match ioctl::create_blob(node.file.as_fd(), kind, blob::FLAG_MAPPABLE, size, name) {
            Err(Errno::NOSPC) => Err(TransportError::OutOfWindow { bytes: size }),
            Err(Errno::NOMEM) if memory == BlobMemory::GuestRam => {
                Err(TransportError::OutOfGuestRam { bytes: size })
            }
            created => self.done("RESOURCE_CREATE_BLOB", created),
        }
    }

    /// Where a blob can be mapped from. This ioctl sends nothing: the driver asked for the blob's place when it was created.
    fn place(&self, resource: u32) -> Result<(Arc<RenderNode>, u64, u64), TransportError> {
        let node = self.node()?;
        let blobs = self.blobs();
        let record = blobs.get(&resource).ok_or(TransportError::ForeignBlob { resource_id: resource })?;
        let offset = ioctl::map_offset(node.file.as_fd(), record.handle);
        let offset = offset.map_err(|errno| TransportError::System { what: "MAP", source: errno.into() })?;
        Ok((node, offset, record.size))
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
        let node = self.node()?;
        let asked = ioctl::capset(node.file.as_fd(), CAPSET_ID, CAPSET_VERSION, capset.as_mut_bytes());
        self.done("GET_CAPS", asked)?;
        Ok(capset)
    }

    fn sees_video_memory(&self) -> bool {
        self.node().is_ok_and(|node| node.is_host_visible())
    }

    fn create_blob(&self, memory: BlobMemory, size: u64) -> Result<Blob, TransportError> {
        let limit = u64::MAX - PAGE_SIZE + 1;
        if size == 0 || size > limit {
            return Err(TransportError::Size { what: "a blob", bytes: size, limit });
        }
        let size = size.next_multiple_of(PAGE_SIZE);
        let (handle, number) = self.make(memory, size, 0)?;
        let mut blobs = self.blobs();
        let resource_id = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).name(number, &blobs);
        blobs.insert(resource_id, Record { handle, number, memory, size, mapped: None });
        Ok(Blob { resource_id, size, memory })
    }

    fn map(&self, blob: &Blob) -> Result<SharedMemory, TransportError> {
        let resource_id = blob.resource_id;
        if let Some(Record { mapped: Some(shared), .. }) = self.blobs().get(&resource_id) {
            return Ok(shared.clone());
        }
        let shared = self.alias(resource_id)?;
        let mut blobs = self.blobs();
        let record = blobs.get_mut(&resource_id).ok_or(TransportError::ForeignBlob { resource_id })?;
        Ok(record.mapped.get_or_insert(shared).clone())
    }

    fn destroy_blob(&self, blob: Blob) -> Result<(), TransportError> {
        let record = self
            .blobs()
            .remove(&blob.resource_id)
            .ok_or(TransportError::ForeignBlob { resource_id: blob.resource_id })?;
        self.done("GEM_CLOSE", ioctl::close(self.node()?.file.as_fd(), record.handle))
    }

    fn submit(&self, frames: &[u8], fence: Option<u8>) -> Result<Submission, TransportError> {
        submission::check(frames, fence)?;
        let node = self.node()?;
        let file = self.done("EXECBUFFER", ioctl::execute(node.file.as_fd(), frames, fence))?;
        Ok(Submission::new(Arc::new(SyncFile::new(file, node))))
    }

    fn commands_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn is_connected(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }

    fn number(&self, resource: u32) -> u32 {
        self.blobs().get(&resource).map_or(resource, |record| record.number)
    }

    fn migrant(&self) -> Option<&dyn Migrant> {
        Some(self)
    }
}

impl Migrant for DrmContext {
    fn views(&self) -> Result<Vec<(u32, Option<SharedMemory>)>, TransportError> {
        let blobs = self.blobs();
        Ok(blobs.iter().map(|(resource, record)| (*resource, record.mapped.clone())).collect())
    }

    fn alias(&self, resource: u32) -> Result<SharedMemory, TransportError> {
        let (node, offset, size) = self.place(resource)?;
        mapping::map(node.file.as_fd(), offset, size)
    }

    fn leave(&self) {
        let node = self.node.write().unwrap_or_else(PoisonError::into_inner).take();
        let identity = node.as_deref().and_then(NodeIdentity::of);
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = identity;
    }

    fn has_left(&self) -> bool {
        self.node().is_err()
    }

    fn arrive(&self, patiently: bool) -> Result<bool, TransportError> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(node) = RenderNode::find_other(left.filter(|_| patiently).as_ref()) else {
            return Ok(false);
        };
        match self.begin_on(node) {
            Ok(()) => Ok(true),
            // It is just going, or just coming, or nothing is behind it any more.
            Err(
                TransportError::System { .. } | TransportError::Disconnected | TransportError::Silent { .. },
            ) => {
                self.lost.store(false, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn make_again(&self, resource: u32, name: u64) -> Result<Again, TransportError> {
        let foreign = TransportError::ForeignBlob { resource_id: resource };
        let (memory, size) =
            self.blobs().get(&resource).map(|record| (record.memory, record.size)).ok_or(foreign)?;
        // The driver lets no blob of guest RAM have a name.
        let is_guest = memory == BlobMemory::GuestRam;
        let (handle, number) = self.make(memory, size, if is_guest { 0 } else { name })?;
        if let Some(record) = self.blobs().get_mut(&resource) {
            (record.handle, record.number) = (handle, number);
        }
        Ok(if is_guest { Again::Empty } else { Again::Itself })
    }

    fn show(&self, resource: u32, view: &SharedMemory) -> Result<(), TransportError> {
        let (node, offset, size) = self.place(resource)?;
        show_file(view, node.file.as_fd(), offset, size)
            .map_err(|source| TransportError::System { what: "mapping a blob", source: source.into() })
    }
}

//! How a guest process reaches the device.
//!
//! ```text
//!   device, queue, …                one per guest process        the way to the daemon
//!   ────────────────                ─────────────────────        ─────────────────────
//!   create_blob ─┐                                            ┌─ drm: the stock virtio-gpu driver
//!   map          ├──▶ dyn Transport = one virtio-gpu context ─┼─ fs: the file `gpu` on the stock virtiofs driver
//!   submit       ┘         │                                  └─ of another crate: the test VMM, in this process
//!                          ▼
//!        Blob ── SharedMemory (mapped)      Submission (response or fence of one SUBMIT_3D)
//! ```
//!
//! * Owner: a transport owns its blobs and its context; dropping it ends both, as closing the render node does.
//! * Threads: every method may be called from any thread, at the same time. What blocks says so.
//! * Loss: after the daemon hung up, every call and every wait ends with [`error::TransportError::Disconnected`];
//!   memory that was mapped stays valid memory, only without answers.

pub mod away;
mod bar;
pub mod blob;
pub mod drm;
pub mod error;
mod fault;
pub mod fs;
pub mod shared_memory;
pub mod submission;

use campanile_protocol::capset::Capset;

use away::Migrant;
use blob::Blob;
use blob::BlobMemory;
use error::TransportError;
use shared_memory::SharedMemory;
use submission::Submission;

/// One guest process's way to the device: one opened render node, one virtio-gpu context.
///
/// What an implementation may promise is bounded by what the stock Linux driver can do, so that code written
/// on this trait runs on every transport.
pub trait Transport: Send + Sync + 'static {
    /// Capability set 24, as the device reports it now. Blocks for one answer at most.
    fn capset(&self) -> Result<Capset, TransportError>;

    /// Whether this process can map blobs of video memory: whether the VM has a host-visible window. Without, every
    /// blob that the CPU is to reach has to lie in guest RAM.
    fn sees_video_memory(&self) -> bool;

    /// Creates a blob (mappable, but for [`BlobMemory::Local`]) of at least `size` bytes (rounded up to whole pages), zeroed, and attaches it to
    /// this context. Blocks until the device has answered, where the transport can tell.
    fn create_blob(&self, memory: BlobMemory, size: u64) -> Result<Blob, TransportError>;

    /// Maps a blob for this process's CPU. Mapping it again gives the same memory. Blocks until the device has
    /// put the blob where the mapping shows it.
    fn map(&self, blob: &Blob) -> Result<SharedMemory, TransportError>;

    /// Detaches, unmaps and frees a blob, and blocks until the device has done so, where the transport can tell.
    /// What [`Self::map`] gave out stays valid memory, but no longer is the blob.
    fn destroy_blob(&self, blob: Blob) -> Result<(), TransportError>;

    /// Sends a row of control frames, at most `MAX_CONTROL_BYTES`, as one SUBMIT_3D and returns at once.
    ///
    /// `frames` may be empty where there is a fence. With `fence`, the submission is done when the work of that timeline (ring index, 0 to 63) before it is
    /// done. Without, when the device has read the frames, where the transport can tell, and else at once.
    /// Blocks only while the device has no room for another command.
    fn submit(&self, frames: &[u8], fence: Option<u8>) -> Result<Submission, TransportError>;

    /// Commands that this VM has put on its control queue so far, where the transport can see them, and else
    /// those of this process. User-mode submission must not move it.
    fn commands_sent(&self) -> u64;

    /// Whether the device still answers, as far as is known without asking it. Does not block: a thread that polls
    /// a word in shared memory looks here now and then, and so ends when the daemon is gone.
    fn is_connected(&self) -> bool;

    /// The number by which control messages name a blob now. It changes when the device comes back after it was taken away.
    fn number(&self, resource: u32) -> u32 {
        resource
    }

    /// What it does when its device is taken away; none where a VM's device stays with it.
    fn migrant(&self) -> Option<&dyn Migrant> {
        None
    }
}

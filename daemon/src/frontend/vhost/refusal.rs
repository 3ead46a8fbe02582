//! Why a request of the front-end was refused.

use std::io;

use thiserror::Error;
use vhost::vhost_user::Error as ProtocolError;
use vm_memory::GuestRegionCollectionError;
use vm_memory::mmap::MmapRegionError;

use super::gate::GateError;
use crate::guest_ram::dirty_log::LogError;

/// A request that was not done. The front-end is told (if it asked), and the session ends.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    #[error("queue {index}: there is no such queue; set num_vqs={queues} on the VMM's command line")]
    NoSuchQueue { index: u32, queues: usize },
    #[error("queue {queue}: {size} is no size (a power of two up to {max} is)")]
    QueueSize { queue: u16, size: u32, max: u16 },
    #[error("queue {queue}: address {address:#x} is in no memory region")]
    QueueAddress { queue: u16, address: u64 },
    #[error("queue {0}: a part of it is not aligned")]
    QueueAlignment(u16),
    #[error("queue {queue}: {base} is no ring position")]
    QueueBase { queue: u16, base: u32 },
    #[error("queue {0}: its size and position cannot change while it runs")]
    QueueRuns(u16),
    #[error("queue {0}: a ring without a kick descriptor is not supported")]
    NoKick(u16),
    #[error("queue {queue}: the kick descriptor cannot be waited for")]
    BadKick { queue: u16, source: io::Error },
    #[error("queue {queue}: its {what} descriptor: {source}")]
    NoEventfd { queue: u16, what: &'static str, source: io::Error },
    #[error("feature bits {0:#x} were not offered")]
    Features(u64),
    #[error("protocol feature bits {0:#x} were not offered")]
    ProtocolFeatures(u64),
    #[error("memory region at {address:#x}: its file ends before it does")]
    RegionPastFile { address: u64 },
    #[error("memory region at {address:#x}: cannot be mapped")]
    RegionMap { address: u64, source: MmapRegionError },
    #[error("memory region at {address:#x}: its file cannot be examined")]
    RegionFile { address: u64, source: io::Error },
    #[error("memory region at {address:#x}: not made of whole huge pages of {page} bytes, as its file is")]
    RegionPages { address: u64, page: u64 },
    #[error("memory region at {address:#x}: its addresses overflow")]
    RegionOverflow { address: u64 },
    #[error("memory table")]
    Table(#[from] GuestRegionCollectionError),
    #[error("memory table: more than {0} regions")]
    TooManyRegions(usize),
    #[error("dirty log")]
    Log(#[from] LogError),
    #[error("device")]
    Gate(#[from] GateError),
    #[error("live migration was not negotiated")]
    NoMigration,
    #[error("a state is saved while the device is stopped, and queue {0} runs")]
    StateOfRunning(usize),
    #[error("a state is on its way already")]
    StateTwice,
    #[error("no state is on its way")]
    NoState,
    #[error("the state was not transferred: {0}")]
    State(String),
    #[error("no thread to read the state with")]
    StateThread(#[source] io::Error),
    #[error("the front-end has hung up")]
    HungUp,
    #[error("queue {queue}: {load}, so that the guest's device is not there")]
    NotRestored { queue: u16, load: &'static str },
}

impl From<Refusal> for ProtocolError {
    fn from(refusal: Refusal) -> Self {
        Self::ReqHandlerError(io::Error::other(refusal))
    }
}

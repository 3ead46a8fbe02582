//! Guest processes and what they have.

use serde::Deserialize;
use serde::Serialize;

use super::bytes::Bytes;
use super::memory::SavedKeptBlob;
use super::row::SavedGpuWait;
use super::row::SavedMapping;
use super::row::SavedOpenFence;
use super::row::SavedOperation;
use super::row::SavedProgress;
use super::row::SavedTable;
use super::row::SavedWait;
use crate::ids::GuestProcess;

/// What kernels are compiled from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedSource {
    /// `LANGUAGE_*` of the protocol.
    pub language: u32,
    /// Entry point, where there are several.
    pub entry: Option<String>,
    /// Text or words.
    pub bytes: Bytes,
}

/// A guest process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedProcess {
    /// Its virtio-gpu context.
    pub context: GuestProcess,
    /// Resources that it may name.
    pub attached: Vec<u32>,
    /// Order of its fences.
    pub timelines: Vec<SavedTimeline>,
    /// Ages of resets that its work was the cause of, milliseconds (LM-55).
    pub offences: Vec<u64>,
    /// The report for which it gets no device any more (TDR-21).
    pub blocked: Option<u64>,
    /// Its device.
    pub device: Option<SavedDevice>,
    /// It has parked its device, and is to come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub away: Option<SavedAway>,
}

/// A process that has parked its device (decision 64).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedAway {
    /// What it says when it comes back.
    pub token: u64,
    /// Where the names of its blobs begin.
    pub names: u64,
    /// Whether its context is closed.
    pub is_gone: bool,
    /// Its blobs, which have no number now.
    pub blobs: Vec<SavedKeptBlob>,
}

/// A virtio timeline.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedTimeline {
    /// Its ring index.
    pub ring: u8,
    /// Pieces of work that were ever begun.
    pub next: u64,
    /// Those that have not ended, rising.
    pub open: Vec<u64>,
    /// Fences: the piece of work that each stands behind, and the front's name for it.
    pub fences: Vec<(u64, u64)>,
}

/// A device: objects and address space of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedDevice {
    /// Allocation of its page.
    pub page_allocation: u64,
    /// Where in it the page starts.
    pub page_offset: u64,
    /// Where the address space shows it.
    pub page_va: u64,
    /// `DEVICE_*` (LM-55).
    pub status: u64,
    /// `CLASS_*` (PRE-61).
    pub class: u32,
    /// Mappings, by rising address: those that are, and those that will be.
    pub mappings: Vec<SavedMapping>,
    /// Paging operations begun.
    pub paging_issued: u64,
    /// Of these, applied.
    pub paging_applied: u64,
    /// The others.
    pub paging: Vec<SavedOperation>,
    /// How often it holds allocations resident.
    pub holds: Vec<(u64, u64)>,
    /// Allocation of the save area that its contexts share; none before the first of them. In states of version 1 there
    /// are no save areas.
    pub area: Option<u64>,
    /// Contexts.
    pub contexts: SavedTable<SavedContext>,
    /// Queues.
    pub queues: SavedTable<SavedQueue>,
    /// Doorbells.
    pub doorbells: SavedTable<SavedDoorbell>,
    /// Kernels: each the place of its source.
    pub kernels: SavedTable<u32>,
    /// Native fences that it has open.
    pub fences: SavedTable<SavedOpenFence>,
    /// Waits for progress fences.
    pub waits: Vec<SavedWait>,
    /// Waits of the CPU for native fences; the handle is the process's own.
    pub native_waits: Vec<SavedWait>,
    /// Contexts whose first buffer waits for a native fence.
    pub gpu_waits: Vec<SavedGpuWait>,
}

/// How a context is scheduled, where that was set (PRE-62 to PRE-66).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedScheduling {
    /// Band, 0 to 3.
    pub band: u32,
    /// Realtime level.
    pub level: u8,
    /// In-process priority.
    pub priority: i8,
    /// Quantum, nanoseconds.
    pub quantum: u64,
    /// Grace period against the same priority, nanoseconds.
    pub grace_same: u64,
    /// Grace period against a lower priority, nanoseconds.
    pub grace_lower: u64,
}

/// A context.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedContext {
    /// Place of its engine.
    pub engine: u32,
    /// Whether its guest has suspended it.
    pub is_suspended: bool,
    /// Suspends so far: the suspend fence (UMS-109). None once its engine is gone.
    pub suspends: Option<u64>,
    /// Allocation of its save area; none in states of version 1.
    pub area: Option<u64>,
    /// How it is scheduled.
    pub scheduling: Option<SavedScheduling>,
    /// Its software queue, oldest first.
    pub buffers: Vec<SavedBuffer>,
}

/// A kernel-mode buffer (LM-47).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedBuffer {
    /// The queue.
    pub queue: u64,
    /// GPU virtual address.
    pub va: u64,
    /// Bytes.
    pub length: u32,
    /// Value of the progress fence when it is done.
    pub fence_value: u64,
    /// Whether no timeout holds for it.
    pub is_exempt: bool,
    /// Whether it was with an engine before (PRE-45).
    pub is_resubmitted: bool,
    /// The paging operation that it comes after.
    pub paging: u64,
    /// Its place in the order of its engine.
    pub order: u64,
    /// Timeline.
    pub ring: u8,
    /// Place on it.
    pub item: Option<u64>,
    /// Whether it is half run: then its context's save area says how far (LM-48).
    pub is_saved: bool,
    /// In states of version 1, how far it is.
    #[serde(skip_serializing)]
    pub progress: SavedProgress,
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedQueue {
    /// Its context.
    pub context: u64,
    /// Whether it takes work from its doorbell (UMS-25).
    pub is_user_mode: bool,
    /// Whether no timeout holds for its work (UMS-27).
    pub is_exempt: bool,
    /// Progress fence value of the last buffer taken; of a user-mode queue, what earlier doorbells have reached.
    pub value: u64,
    /// Its doorbell.
    pub doorbell: Option<u64>,
}

/// A doorbell (LM-50): where it is connected is not kept, and it starts with RETRY.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedDoorbell {
    /// Its queue.
    pub queue: u64,
    /// Whether it is dead: ABORT.
    pub is_aborted: bool,
    /// Whether its end waits for what was rung.
    pub is_draining: bool,
    /// Whether it was ever connected.
    pub was_connected: bool,
    /// Whether its guest notifies after each ring.
    pub notify: bool,
    /// Allocation of the ring.
    pub ring: u64,
    /// Allocation of the ring control.
    pub control: u64,
    /// GPU virtual address of the ring.
    pub ring_va: u64,
    /// GPU virtual address of the ring control.
    pub control_va: u64,
    /// Entries of the ring.
    pub entries: u32,
    /// How far its queue is; none once the device is in error, or the engine gone.
    pub place: Option<SavedQueuePlace>,
}

/// How far a user-mode queue is (LM-48, LM-49).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedQueuePlace {
    /// Ring entries consumed, ever.
    pub consumed: u64,
    /// Progress fence value of the last of them.
    pub completed: u64,
    /// Whether the next one is half run: then the save area says how far.
    pub is_saved: bool,
    /// In states of version 1, how far it is.
    #[serde(skip_serializing)]
    pub progress: Option<SavedProgress>,
}

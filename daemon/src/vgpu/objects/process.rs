//! What a guest process has.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::Duration;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::MAX_PLACES;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::ids::ProcessIndex;
use campanile_host_gpu::ids::QueueIndex;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_protocol::control::away::Parked;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;

use super::budget::Charge;
use super::budget::Kind;
use super::budget::OverBudget;
use super::budget::Purse;
use super::class::ProcessClass;
use super::device_page::DevicePage;
use super::doorbell_state::DoorbellState;
use super::holds::Holds;
use super::ids::AllocationId;
use super::kernel_source::KernelSource;
use super::mapping::GpuMapping;
use super::mapping::Mapped;
use super::paging_queue::Paging;
use super::recent::Recent;
use super::save_area::SaveArea;
use super::table::Table;
use super::timeline::Item;
use super::timeline::Timeline;
use super::waits::GpuWait;
use super::waits::NativeWait;
use super::waits::OpenFence;
use super::waits::Wait;
use crate::vgpu::objects::ids::ContextHandle;

/// Contexts of one process (MCDM-06).
pub const MAX_CONTEXTS: u32 = 1024;
/// Kernels of one process (MCDM-06).
pub const MAX_KERNELS: u32 = 4096;
/// Native fences that one process has open (MCDM-06).
pub const MAX_OPEN_FENCES: u32 = 1024;
/// GPU mappings of one process (MCDM-06).
pub const MAX_MAPPINGS: usize = 64 * 1024;
/// Buffers in one software queue (MCDM-05, MCDM-06).
pub const MAX_SOFTWARE_QUEUE: usize = 64 * 1024;
/// Fence waits of one process under way (MCDM-06).
pub const MAX_WAITS: usize = device_page::RESPONSE_SLOTS as usize;

/// Bytes of a process, its device and its timelines.
pub(in crate::vgpu) const PROCESS_BYTES: u64 = 4096;

/// A virtio-gpu context: one guest process that opened the device.
#[derive(Debug)]
pub struct Process {
    /// What it pays with.
    pub purse: Purse,
    /// What was charged for it.
    pub charge: Charge,
    /// Resources that it may name, and what was charged for each.
    pub attached: BTreeMap<u32, Charge>,
    /// What it created first.
    pub device: Option<Device>,
    /// Order of its fences, by ring index.
    pub timelines: BTreeMap<u8, Timeline>,
    /// When its work was the cause of a reset.
    pub offences: Recent,
    /// The report for which it gets no device any more (TDR-21).
    pub blocked: Option<u64>,
    /// It has parked its device, and has not come back yet.
    pub away: Option<Away>,
}

impl Process {
    /// One that has nothing yet.
    ///
    /// # Errors
    /// Its purse is empty.
    pub fn new(purse: Purse) -> Result<Self, OverBudget> {
        let charge = purse.charge(Kind::Processes, PROCESS_BYTES)?;
        Ok(Self {
            purse,
            charge,
            attached: BTreeMap::new(),
            device: None,
            timelines: BTreeMap::new(),
            offences: Recent::default(),
            blocked: None,
            away: None,
        })
    }

    /// Whether it has parked its device.
    pub fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Whether it has, and has closed its context.
    pub(in crate::vgpu) fn is_gone(&self) -> bool {
        self.away.is_some_and(|away| away.is_gone)
    }
}

/// A process that is away, or just going.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away {
    /// What it says when it comes back.
    pub parked: Parked,
    /// Its context is closed.
    pub is_gone: bool,
}

/// How often an allocation is held resident, and what was charged for that.
#[derive(Debug)]
pub struct Hold {
    /// How often.
    pub count: u64,
    /// What was charged.
    pub charge: Charge,
}

/// The device of a guest process: its objects and its address space.
#[derive(Debug)]
pub struct Device {
    /// Its page.
    pub page: DevicePage,
    /// The address space.
    pub root: Root,
    /// What is mapped, by address.
    pub mappings: BTreeMap<u64, Mapped>,
    /// Contexts.
    pub contexts: Table<Context, ContextHandle>,
    /// Queues; the index is also that of the fence, doorbell cell, status and last-queued word.
    pub queues: Table<Queue>,
    /// Doorbells.
    pub doorbells: Table<Doorbell>,
    /// Kernels that are compiled.
    pub kernels: Table<KernelSource>,
    /// The save area that its contexts share; none before the first of them (PRE-31).
    pub area: Option<SaveArea>,
    /// Its entry in each engine's process table, by place.
    pub presence: [Option<ProcessIndex>; MAX_PLACES],
    /// `DEVICE_*`: the truth that the device page has a copy of.
    pub status: u64,
    /// Changes of its address space.
    pub paging: Paging,
    /// How often it holds allocations resident.
    pub holds: BTreeMap<AllocationId, Hold>,
    /// Waits for progress fences under way.
    pub waits: Vec<Wait>,
    /// Native fences that it has open.
    pub fences: Table<OpenFence>,
    /// Waits of the CPU for native fences under way.
    pub native_waits: Vec<NativeWait>,
    /// Waits of parked contexts for native fences.
    pub gpu_waits: Vec<GpuWait>,
    /// Its priority class.
    pub class: ProcessClass,
}

impl Device {
    /// One that has nothing but its page and its address space. Its kernels get generations greater than `kernels`.
    pub fn new(page: DevicePage, root: Root, kernels: u32) -> Self {
        Self {
            page,
            root,
            mappings: BTreeMap::new(),
            contexts: Table::new(MAX_CONTEXTS),
            queues: Table::new(device_page::MAX_QUEUES),
            doorbells: Table::new(device_page::MAX_QUEUES),
            kernels: Table::after(MAX_KERNELS, kernels),
            area: None,
            presence: [None; MAX_PLACES],
            status: device_page::DEVICE_ACTIVE,
            paging: Paging::default(),
            holds: BTreeMap::new(),
            waits: Vec::new(),
            fences: Table::new(MAX_OPEN_FENCES),
            native_waits: Vec::new(),
            gpu_waits: Vec::new(),
            class: ProcessClass::default(),
        }
    }

    /// Whether it still works.
    pub fn is_active(&self) -> bool {
        self.status == device_page::DEVICE_ACTIVE
    }

    /// An engine is gone with all that it knew: the next process of it has never heard of this device.
    pub fn forget_engine(&mut self, at: EngineAddress) {
        self.presence[at.index()] = None;
        let of_it = self.contexts.iter_mut().filter(|(_, context)| context.at == at);
        of_it.for_each(|(_, context)| context.entry = None);
    }

    /// The mapping that holds all of `va .. va + size`, and how far into its allocation that is.
    pub fn find_mapping(&self, va: u64, size: u64) -> Option<(&GpuMapping, u64)> {
        let (&start, Mapped { mapping, .. }) = self.mappings.range(..=va).next_back()?;
        let within = va - start;
        let fits = within.checked_add(size).is_some_and(|end| end <= mapping.size);
        fits.then_some((mapping, mapping.offset + within))
    }

    /// Whether a range of its address space is taken, counting what will be mapped there.
    pub fn is_taken(&self, va: u64, size: u64) -> bool {
        let end = va.saturating_add(size);
        // Most go behind all others, and take no search.
        let very_last = self.mappings.last_key_value().filter(|(at, _)| **at < end);
        let last = very_last.or_else(|| self.mappings.range(..end).next_back());
        last.is_some_and(|(at, mapping)| at.saturating_add(mapping.size) > va)
            || self
                .fences
                .iter()
                .any(|(_, fence)| fence.va < end && va < fence.va + campanile_protocol::PAGE_SIZE)
    }
}

/// One software queue for one node of one physical adapter (MCDM-04, TDR-09).
#[derive(Debug)]
pub struct Context {
    /// The engine.
    pub at: EngineAddress,
    /// Kernel-mode buffers not yet with the engine.
    pub software_queue: VecDeque<Buffer>,
    /// Whether the run list of its engine names it, or something else will see to that.
    pub listed: bool,
    /// Whether its first buffer waits for a native fence.
    pub is_parked: bool,
    /// Its entry in the engine's context table; none once that engine is gone.
    pub entry: Option<ContextIndex>,
    /// Its save area (PRE-31).
    pub area: SaveArea,
    /// Why it is suspended; not at all, if for no reason.
    pub held: Holds,
    /// Queues that it has.
    pub queues: u32,
    /// How it is scheduled, where that was ever set; else as its process's class says.
    pub scheduling: Option<Parameters>,
}

impl Context {
    /// Whether its first buffer is there, and all paging operations before it.
    pub fn has_ready(&self, paging: &Paging) -> bool {
        self.software_queue.front().is_some_and(|buffer| paging.allows(buffer.paging))
    }
}

/// A kernel-mode buffer on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// The queue that it was submitted to.
    pub queue: Handle,
    /// The queue's context.
    pub context: ContextHandle,
    /// Whether it is half run: then its context's save area says how far.
    pub is_saved: bool,
    /// GPU virtual address.
    pub va: u64,
    /// Bytes.
    pub length: u32,
    /// Value of the progress fence when it is done.
    pub fence_value: u64,
    /// Whether no timeout holds for it (UMS-27).
    pub is_exempt: bool,
    /// Whether it was with the engine before (PRE-45).
    pub is_resubmitted: bool,
    /// The paging operation that it comes after, and before the next.
    pub paging: u64,
    /// Counts the buffers of its engine: those of a context run in this order, and what is saved of one has this name.
    pub order: u64,
    /// When it was submitted, or came here, since the session's begin.
    pub submitted: Duration,
    /// Timeline and place on it.
    pub ring: u8,
    /// Place on that timeline.
    pub item: Option<Item>,
}

/// How a queue takes work, for good (UMS-04, UMS-25).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// By SUBMIT.
    Ordinary {
        /// Progress fence value of the last buffer taken.
        issued: u64,
    },
    /// By its doorbell.
    UserMode {
        /// Its doorbell.
        doorbell: Option<Handle>,
        /// Progress fence value that earlier doorbells of it have reached: the next goes on from there (UMS-84).
        completed: u64,
    },
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    /// Its context.
    pub context: ContextHandle,
    /// The context's engine.
    pub at: EngineAddress,
    /// How it takes work.
    pub kind: QueueKind,
    /// Whether no timeout holds for its work (UMS-27).
    pub is_exempt: bool,
}

/// A doorbell (UMS-31).
#[derive(Debug)]
pub struct Doorbell {
    /// Its queue.
    pub queue: Handle,
    /// The queue's engine.
    pub at: EngineAddress,
    /// Where it stands.
    pub state: DoorbellState,
    /// Whether its end waits for what was rung (UMS-126): it is no longer connected.
    pub is_draining: bool,
    /// Whether it was ever connected: before that, what is in its ring is not seen (UMS-34).
    pub was_connected: bool,
    /// Whether its guest wants to notify after each ring (UMS-51).
    pub notify: bool,
    /// Entry in the engine's queue table; none once the device is in error, or that engine gone.
    pub hw_queue: Option<QueueIndex>,
    /// The ring's allocation; one reference (UMS-82).
    pub ring: AllocationId,
    /// The ring control's allocation; one reference (UMS-82).
    pub control: AllocationId,
    /// Where the engine finds them.
    pub shape: RingShape,
}

/// Where the ring of a doorbell lies, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingShape {
    /// GPU virtual address of the ring.
    pub ring_va: u64,
    /// GPU virtual address of the ring control.
    pub control_va: u64,
    /// Entries.
    pub entries: u32,
}

//! What goes over the engine channel.

use campanile_protocol::named_profile::GpuProfile;
use campanile_protocol::profile::Profile;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

use crate::dirty::method::Method;
use crate::kernel::name::KernelName;
use crate::memory::local::LocalMemory;
use crate::memory::local::Passport;

/// Which node an engine process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKind {
    /// Kernels, copies, fills (node 0).
    Compute,
    /// Copies and fills (node 1).
    Copy,
}

/// First message to an engine; the second one to a process that opens its driver ahead. Descriptors, in order: shared block, VRAM, page tables, event eventfd, grant
/// eventfd, wake eventfd, fence values; the log of compiled code, where it has one; the planes of what it writes, where it keeps
/// those; and local memory and what is evicted, where local memory is the device's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The node.
    pub node: NodeKind,
    /// Bytes of VRAM.
    pub vram_bytes: u64,
    /// Bytes of the page-table file.
    pub table_bytes: u64,
    /// Microseconds without work before the engine asks for F1.
    pub spin_microseconds: u64,
    /// Microseconds that a slice of a dispatch is to take; 0 where dispatches run in one piece.
    pub slice_microseconds: u64,
    /// Whether to drop privileges; false only where the kernel has no means for it.
    pub sandbox: bool,
    /// Name of the policy that says which context runs next.
    pub policy: String,
    /// Part of the name of the Vulkan device to use, or none for the best.
    pub vulkan_device: Option<String>,
    /// What kernels may use of that device.
    pub profile: GpuProfile,
    /// How it is found out what it writes.
    pub tracking: Method,
    /// Where local memory lies.
    pub local: Local,
    /// MiB of the log of compiled code; 0 for none.
    pub code_mib: u32,
    /// Whether contexts may be in the realtime band: then its device's queues are to have a high global priority.
    pub is_realtime: bool,
    /// Whether the driver is to be opened ahead: without descriptors, and as far as that depends on nothing else. Answers
    /// [`Response::Opened`], and waits for another one of these, which opens the same.
    pub is_ahead: bool,
}

impl Start {
    /// Whether a process that has opened what `ahead` says can go on as this one.
    pub fn opens_as(&self, ahead: &Self) -> bool {
        let opened = |of: &Self| {
            let is_local = matches!(of.local, Local::Device(_));
            let device = (of.vulkan_device.clone(), of.profile);
            (of.node, of.sandbox, device, of.slice_microseconds == 0, is_local, of.is_realtime)
        };
        let Self { tracking, code_mib, .. } = ahead;
        let is_noted = |method: Method| method == Method::WriteProtect;
        opened(self) == opened(ahead)
            && is_noted(self.tracking) == is_noted(*tracking)
            && (self.code_mib > 0) == (*code_mib > 0)
    }
}

/// Where local memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Local {
    /// In the file of the video memory.
    #[default]
    Host,
    /// In a device's own memory, which comes along.
    Device(LocalMemory),
    /// Nowhere yet: this process is no engine, but allocates so many bytes of a device's own memory, zeroes and exports them,
    /// answers [`Response::Allocated`], and ends.
    Allocate(u64),
}

impl Local {
    /// Descriptors that come with it.
    pub const fn descriptors(&self) -> usize {
        match self {
            Self::Device(_) => 2,
            Self::Host | Self::Allocate(_) => 0,
        }
    }
}

/// One side of a [`Request::Move`], and where in it, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveSide {
    /// Nothing but zeroes.
    Zero,
    /// Local memory, by the offset in the video memory.
    Local(u64),
    /// The head of the video memory, which the CPU sees.
    Visible(u64),
    /// What is evicted.
    Evicted(u64),
}

impl MoveSide {
    /// The place so many bytes behind this one.
    #[must_use]
    pub const fn advanced(self, by: u64) -> Self {
        match self {
            Self::Zero => Self::Zero,
            Self::Local(offset) => Self::Local(offset + by),
            Self::Visible(offset) => Self::Visible(offset + by),
            Self::Evicted(offset) => Self::Evicted(offset + by),
        }
    }
}

/// How long a slice of a dispatch takes where no option says: overhead of 1 to 3 % on a CPU driver.
pub const SLICE_MICROSECONDS: u64 = 2000;

/// Descriptors of every [`Start`].
pub const START_DESCRIPTORS: usize = 7;

/// One run of a segment, in the list file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RunRecord {
    /// Which of the files, from zero.
    pub file: u64,
    /// Byte offset in it.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Most runs of one segment: each is a mapping of its own in the engine and in the daemon.
pub const MAX_RUNS: u64 = 16 * 1024;

/// From the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "`segment` and `kernel` are the numbers and names that the variant speaks of"
)]
pub enum Request {
    /// It may touch what is shared: its writes are tracked, and no engine is there any more whose place it takes. Answers
    /// [`Response::Started`]. It runs nothing before it has carried out the requests that add or remove segments up to this
    /// serial: page tables and work of the engine before it may name them.
    Begin {
        /// Serial of the last of them, or 0.
        segments: u64,
    },
    /// Maps runs of files as one segment. Descriptors: a file with the list of [`RunRecord`]s, then the files
    /// that they name.
    AddSegment {
        /// Its number, which an earlier segment may have had.
        segment: u16,
        /// Counts what this process is told of segments, from one on: greater than that of every request before it.
        serial: u64,
        /// Records in the list.
        runs: u64,
    },
    /// Forgets a segment; sent after the page-table acknowledgement.
    RemoveSegment {
        segment: u16,
        /// See [`Request::AddSegment`].
        serial: u64,
    },
    /// Compiles a kernel; the source is behind the message.
    CreateKernel {
        kernel: KernelName,
        /// `LANGUAGE_*` of the protocol.
        language: u32,
        /// Entry point, where there are several.
        entry: Option<String>,
        /// Nothing is compiled beside it: should the process end, it was this kernel.
        alone: bool,
    },
    /// Forgets a kernel.
    DestroyKernel { kernel: KernelName },
    /// Has the device copy, beside the work of guests, to memory that no guest reaches meanwhile.
    Move {
        /// Counts these requests.
        serial: u64,
        /// Where it is copied from.
        from: MoveSide,
        /// Where it is copied to.
        to: MoveSide,
        /// Bytes, whole pages.
        bytes: u64,
    },
}

/// From an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "`segment` and `kernel` are the numbers and names that the variant speaks of"
)]
pub enum Response {
    /// Up and running.
    Started {
        /// What it runs on, in words.
        device: String,
        /// Whether all that it stores goes through its own mappings: so not on a GPU.
        is_cpu: bool,
        /// Where it has video memory mapped.
        vram: u64,
        /// What kernels may use, where the node runs any.
        profile: Option<Box<Profile>>,
    },
    /// Cannot run; the process ends.
    Refused {
        /// Why, and what helps.
        reason: String,
    },
    /// The segment is mapped. Buffers reach it once the acknowledgement in the shared block
    /// ([`campanile_protocol::engine::block::SEGMENT_ACK`]) has come to this serial, too.
    SegmentAdded {
        segment: u16,
        /// That of the request: the number may belong to another segment by now.
        serial: u64,
        /// Where it is mapped, if what is stored there is noted.
        address: Option<u64>,
    },
    /// The segment could not be mapped.
    SegmentRefused {
        segment: u16,
        /// What the kernel of this machine said, for the log.
        reason: String,
    },
    /// The kernel is compiled and warm.
    KernelCreated {
        kernel: KernelName,
        /// Threads of a group.
        workgroup: [u32; 3],
        /// Buffers that a dispatch must bind.
        binding_count: u32,
        /// Constant bytes that a dispatch must carry.
        constant_bytes: u32,
    },
    /// The kernel was refused.
    KernelRefused {
        kernel: KernelName,
        /// Why, for the guest programmer.
        reason: String,
    },
    /// The kernel is gone: whatever is rung from now on and names it faults.
    KernelDestroyed { kernel: KernelName },
    /// It is copied.
    Moved {
        /// That of the request.
        serial: u64,
    },
    /// It could not be copied: the device has failed.
    MoveRefused {
        /// That of the request.
        serial: u64,
        /// What the device said, for the log.
        reason: String,
    },
    /// Local memory is allocated, and zero; its descriptor comes along. The process ends.
    Allocated {
        /// How it is imported.
        passport: Passport,
    },
    /// The driver is open: it waits for what it is to work on. Before [`Response::Started`], where that was asked.
    Opened,
}

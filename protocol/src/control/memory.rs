//! Bodies of control messages on memory: lists of mappings, residency, priorities, budgets.
//!
//! What is mapped is resident, and brought back when a queue comes to it, unless a process says otherwise: it may hold
//! allocations where engines reach them, and have others moved out of the way.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// [`List`], then so many [`super::message::MapMemory`] → [`super::reply::Paging`]. All of it, or nothing.
pub const MAP_LIST: u32 = 32;
/// [`List`], then so many [`super::message::UnmapMemory`] → [`super::reply::Paging`]. All of it, or nothing.
pub const UNMAP_LIST: u32 = 33;
/// [`List`], then the number of a resource each, 32 bits → [`super::reply::Paging`], once all of them are resident; a
/// list of an odd length is followed by 32 zero bits. Each is held until [`EVICT`] is said as often as this.
pub const MAKE_RESIDENT: u32 = 34;
/// [`List`], then resources as in [`MAKE_RESIDENT`] → [`super::reply::Paging`].
pub const EVICT: u32 = 35;
/// [`List`] with the priority as its argument, then resources as in [`MAKE_RESIDENT`] (PRE-41).
pub const SET_PRIORITY: u32 = 36;
/// No body → [`MemoryInfo`].
pub const QUERY_MEMORY: u32 = 37;

/// Entries of one list.
pub const MAX_LIST: u32 = 1024;

/// Begins a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct List {
    /// Entries that follow, 1 to [`MAX_LIST`].
    pub count: u32,
    /// Flags of the message, or what it says.
    pub argument: u32,
}

/// Flag of [`MAKE_RESIDENT`]: where there is no room, and none can be made by evicting what is not held, the message
/// is refused with OUT_OF_RESOURCES. Without it the message waits until others let go.
pub const RESIDENT_OR_FAIL: u32 = 1;
/// Flag of [`EVICT`]: what is no longer held is moved out at once, and not only when room is needed.
pub const EVICT_NOW: u32 = 1;

/// The least of priorities.
pub const PRIORITY_MINIMUM: u32 = 0x2800_0000;
/// Evicted before others.
pub const PRIORITY_LOW: u32 = 0x5000_0000;
/// What an allocation begins with.
pub const PRIORITY_NORMAL: u32 = 0x7800_0000;
/// Evicted after others.
pub const PRIORITY_HIGH: u32 = 0xa000_0000;
/// The highest.
pub const PRIORITY_MAXIMUM: u32 = 0xc800_0000;

/// How a vGPU's memory stands, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryInfo {
    /// What the VM can always have.
    pub guaranteed: u64,
    /// What it can have at the most.
    pub limit: u64,
    /// What it has allocated.
    pub committed: u64,
    /// What it could allocate besides, as things are: its budget is this and `committed`.
    pub available: u64,
    /// Of the segment that the CPU does not see: all of it.
    pub local: u64,
    /// And what is free there.
    pub local_free: u64,
    /// The longest piece of that.
    pub local_longest: u64,
    /// Of the segment that the CPU sees: all of it.
    pub visible: u64,
    /// And what is free there.
    pub visible_free: u64,
    /// Allocated, and in host memory for the time being.
    pub evicted: u64,
    /// Allocated, and held where it is by residency requests.
    pub held: u64,
    /// Evictions so far.
    pub evictions: u64,
    /// How often something was brought back.
    pub restores: u64,
    /// Faults by which queues asked for that.
    pub residency_faults: u64,
}

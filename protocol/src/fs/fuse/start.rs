//! INIT, and INTERRUPT.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// `FUSE_KERNEL_VERSION`.
pub const MAJOR: u32 = 7;
/// What is answered, and least that is asked for: Linux 5.2.
pub const MINOR: u32 = 31;

/// `FUSE_ASYNC_READ`: several reads of a file at once.
pub const ASYNC_READ: u32 = 1 << 0;
/// `FUSE_BIG_WRITES`.
pub const BIG_WRITES: u32 = 1 << 5;
/// `FUSE_ASYNC_DIO`: a thread that starts a direct read asynchronously is not held by it.
pub const ASYNC_DIO: u32 = 1 << 15;
/// `FUSE_PARALLEL_DIROPS`.
pub const PARALLEL_DIROPS: u32 = 1 << 18;
/// `FUSE_MAX_PAGES`: [`InitOut::max_pages`] counts.
pub const MAX_PAGES: u32 = 1 << 22;

/// What the device asks for of what the kernel has.
pub const WANTED: u32 = ASYNC_READ | BIG_WRITES | ASYNC_DIO | PARALLEL_DIROPS | MAX_PAGES;

/// The part of `struct fuse_init_in` that every kernel sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitIn {
    /// [`MAJOR`], or another: then it sends INIT again, or gives up.
    pub major: u32,
    /// What the kernel has.
    pub minor: u32,
    /// Bytes.
    pub max_readahead: u32,
    /// What it can do.
    pub flags: u32,
}

/// `struct fuse_init_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitOut {
    /// [`MAJOR`].
    pub major: u32,
    /// [`MINOR`].
    pub minor: u32,
    /// Bytes.
    pub max_readahead: u32,
    /// Those of the kernel's that are to be used.
    pub flags: u32,
    /// Asynchronous requests at once: parked reads are such, and others wait when there are more.
    pub max_background: u16,
    /// When the kernel calls it congested.
    pub congestion_threshold: u16,
    /// Bytes of the largest WRITE.
    pub max_write: u32,
    /// Nanoseconds of a tick of the clock.
    pub time_granularity: u32,
    /// Pages of the largest request.
    pub max_pages: u16,
    /// For mappings, of which there are none.
    pub map_alignment: u16,
    /// Zero.
    pub unused: [u32; 8],
}

/// `struct fuse_interrupt_in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InterruptIn {
    /// [`super::InHeader::unique`] of the request that is not waited for any more.
    pub unique: u64,
}

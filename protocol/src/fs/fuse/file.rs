//! Open files.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// `FOPEN_DIRECT_IO`, in [`OpenOut::flags`]: reads and writes go past the page cache, to and from the caller's pages.
pub const DIRECT_IO: u32 = 1 << 0;
/// `FOPEN_NOFLUSH`.
pub const NO_FLUSH: u32 = 1 << 5;
/// `FOPEN_PARALLEL_DIRECT_WRITES`.
pub const PARALLEL_WRITES: u32 = 1 << 6;

/// `struct fuse_open_in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenIn {
    /// `O_*`.
    pub flags: u32,
    /// Zero.
    pub open_flags: u32,
}

/// `struct fuse_open_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenOut {
    /// The device's name for the open file.
    pub handle: u64,
    /// [`DIRECT_IO`] and the like.
    pub flags: u32,
    /// Zero.
    pub padding: u32,
}

/// `struct fuse_read_in`, also of READDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadIn {
    /// The open file.
    pub handle: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u32,
    /// Of no interest.
    pub read_flags: u32,
    /// Of no interest.
    pub lock_owner: u64,
    /// `O_*`.
    pub flags: u32,
    /// Zero.
    pub padding: u32,
}

/// `struct fuse_write_in`; the bytes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteIn {
    /// The open file.
    pub handle: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u32,
    /// Of no interest.
    pub write_flags: u32,
    /// Of no interest.
    pub lock_owner: u64,
    /// `O_*`.
    pub flags: u32,
    /// Zero.
    pub padding: u32,
}

/// `struct fuse_write_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteOut {
    /// Bytes taken.
    pub size: u32,
    /// Zero.
    pub padding: u32,
}

/// `struct fuse_release_in`, also of RELEASEDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReleaseIn {
    /// The open file.
    pub handle: u64,
    /// `O_*`.
    pub flags: u32,
    /// Of no interest.
    pub release_flags: u32,
    /// Of no interest.
    pub lock_owner: u64,
}

/// `struct fuse_flush_in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlushIn {
    /// The open file.
    pub handle: u64,
    /// Zero.
    pub unused: u32,
    /// Zero.
    pub padding: u32,
    /// Of no interest.
    pub lock_owner: u64,
}

/// `struct fuse_ioctl_in`; `in_size` bytes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlIn {
    /// The open file.
    pub handle: u64,
    /// `FUSE_IOCTL_*`.
    pub flags: u32,
    /// The ioctl's number.
    pub number: u32,
    /// The caller's address; never looked at.
    pub argument: u64,
    /// Bytes that the caller gives.
    pub in_size: u32,
    /// Bytes that he takes.
    pub out_size: u32,
}

/// `struct fuse_ioctl_out`; the bytes for the caller follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlOut {
    /// What ioctl returns.
    pub result: i32,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub in_vectors: u32,
    /// Zero.
    pub out_vectors: u32,
}

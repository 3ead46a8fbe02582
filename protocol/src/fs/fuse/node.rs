//! Nodes: the root directory, and its file.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// `S_IFDIR`, in [`Attributes::mode`].
pub const MODE_DIRECTORY: u32 = 0o040_000;
/// `S_IFREG`.
pub const MODE_FILE: u32 = 0o100_000;
/// `DT_DIR`, in [`DirectoryEntry::kind`].
pub const KIND_DIRECTORY: u32 = 4;
/// `DT_REG`.
pub const KIND_FILE: u32 = 8;

/// `struct fuse_attr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attributes {
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks that it takes.
    pub blocks: u64,
    /// Last access, change and status change: seconds.
    pub times: [u64; 3],
    /// And nanoseconds.
    pub nanoseconds: [u32; 3],
    /// Kind and permissions.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Device number.
    pub device: u32,
    /// Best size of a transfer.
    pub block_bytes: u32,
    /// Zero.
    pub flags: u32,
}

/// `struct fuse_entry_out`: answer of LOOKUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntryOut {
    /// Node id.
    pub node: u64,
    /// Zero: node ids mean the same for ever.
    pub generation: u64,
    /// Seconds that the name holds.
    pub entry_valid: u64,
    /// Seconds that the attributes hold.
    pub attributes_valid: u64,
    /// And nanoseconds of both.
    pub nanoseconds: [u32; 2],
    /// The attributes.
    pub attributes: Attributes,
}

/// `struct fuse_getattr_in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetAttributesIn {
    /// Of no interest.
    pub flags: u32,
    /// Zero.
    pub dummy: u32,
    /// Of no interest.
    pub handle: u64,
}

/// `struct fuse_attr_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttributesOut {
    /// Seconds that they hold.
    pub valid: u64,
    /// And nanoseconds.
    pub nanoseconds: u32,
    /// Zero.
    pub dummy: u32,
    /// The attributes.
    pub attributes: Attributes,
}

/// `struct fuse_statfs_out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatOut {
    /// Blocks: all, free, and free for everyone.
    pub blocks: [u64; 3],
    /// Files: all, and free.
    pub files: [u64; 2],
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Longest name.
    pub name_bytes: u32,
    /// Bytes of a fragment.
    pub fragment_bytes: u32,
    /// Zero.
    pub unused: [u32; 7],
}

/// `struct fuse_access_in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AccessIn {
    /// What is wanted.
    pub mask: u32,
    /// Zero.
    pub padding: u32,
}

/// `struct fuse_forget_in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ForgetIn {
    /// Look-ups to forget.
    pub lookups: u64,
}

/// `struct fuse_batch_forget_in`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BatchForgetIn {
    /// Nodes and look-ups that follow.
    pub count: u32,
    /// Zero.
    pub dummy: u32,
}

/// `struct fuse_dirent`; the name follows, filled up to 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DirectoryEntry {
    /// Inode number.
    pub inode: u64,
    /// Offset of the next entry.
    pub next: u64,
    /// Bytes of the name.
    pub name_bytes: u32,
    /// `KIND_*`.
    pub kind: u32,
}

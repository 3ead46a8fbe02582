//! `enum fuse_opcode`: those that mean something here.

/// `FUSE_LOOKUP`: a name, with a zero byte.
pub const LOOKUP: u32 = 1;
/// `FUSE_FORGET`; no answer.
pub const FORGET: u32 = 2;
/// `FUSE_GETATTR`.
pub const GETATTR: u32 = 3;
/// `FUSE_SETATTR`.
pub const SETATTR: u32 = 4;
/// `FUSE_SYMLINK`.
pub const SYMLINK: u32 = 6;
/// `FUSE_MKNOD`.
pub const MKNOD: u32 = 8;
/// `FUSE_MKDIR`.
pub const MKDIR: u32 = 9;
/// `FUSE_UNLINK`.
pub const UNLINK: u32 = 10;
/// `FUSE_RMDIR`.
pub const RMDIR: u32 = 11;
/// `FUSE_RENAME`.
pub const RENAME: u32 = 12;
/// `FUSE_LINK`.
pub const LINK: u32 = 13;
/// `FUSE_OPEN`.
pub const OPEN: u32 = 14;
/// `FUSE_READ`.
pub const READ: u32 = 15;
/// `FUSE_WRITE`.
pub const WRITE: u32 = 16;
/// `FUSE_STATFS`.
pub const STATFS: u32 = 17;
/// `FUSE_RELEASE`.
pub const RELEASE: u32 = 18;
/// `FUSE_FLUSH`.
pub const FLUSH: u32 = 25;
/// `FUSE_INIT`.
pub const INIT: u32 = 26;
/// `FUSE_OPENDIR`.
pub const OPENDIR: u32 = 27;
/// `FUSE_READDIR`.
pub const READDIR: u32 = 28;
/// `FUSE_RELEASEDIR`.
pub const RELEASEDIR: u32 = 29;
/// `FUSE_ACCESS`.
pub const ACCESS: u32 = 34;
/// `FUSE_CREATE`.
pub const CREATE: u32 = 35;
/// `FUSE_INTERRUPT`.
pub const INTERRUPT: u32 = 36;
/// `FUSE_DESTROY`.
pub const DESTROY: u32 = 38;
/// `FUSE_IOCTL`.
pub const IOCTL: u32 = 39;
/// `FUSE_BATCH_FORGET`; no answer.
pub const BATCH_FORGET: u32 = 42;
/// `FUSE_RENAME2`.
pub const RENAME2: u32 = 45;

//! Linux error numbers that the device answers with; negated in [`super::fuse::OutHeader`].

/// Not permitted.
pub const EPERM: i32 = 1;
/// No such name, or node.
pub const ENOENT: i32 = 2;
/// The request was interrupted; nothing is parked any more.
pub const EINTR: i32 = 4;
/// The request makes no sense.
pub const EIO: i32 = 5;
/// As much is parked or staged as may be; or what was staged is gone: stage it again.
pub const EAGAIN: i32 = 11;
/// A documented bound is reached.
pub const ENOMEM: i32 = 12;
/// There already.
pub const EEXIST: i32 = 17;
/// The session that this file was of is gone: open it again.
pub const ENODEV: i32 = 19;
/// A file, where only a directory will do.
pub const ENOTDIR: i32 = 20;
/// A directory.
pub const EISDIR: i32 = 21;
/// A field breaks a rule.
pub const EINVAL: i32 = 22;
/// Too many open files.
pub const ENFILE: i32 = 23;
/// No such call.
pub const ENOTTY: i32 = 25;
/// Nothing can be made or removed here.
pub const EROFS: i32 = 30;
/// No such request. The kernel does without.
pub const ENOSYS: i32 = 38;
/// Another version.
pub const EPROTO: i32 = 71;

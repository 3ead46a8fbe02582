//! The fs front: a virtio-fs device (virtio 1.3, 5.11) whose only file, `gpu`, is the command channel.
//!
//! ```text
//!   guest process          guest kernel (stock virtiofs)                  daemon
//!   open gpu ───────────── OPEN ───────────────────────────────────────▶ a file; the first call makes it a session:
//!   ioctl(_IOWR('C', n)) ─ IOCTL [RequestHeader | body] ───────────────▶ one virtio-gpu context
//!                                [ReplyHeader | body]   ◀─────────────── now, or parked
//!   pwrite at STAGE_BASE ─ WRITE [frames] ─────────────────────────────▶ frames that are longer than an ioctl
//!   close ──────────────── RELEASE ────────────────────────────────────▶ the context ends, with everything of it
//!
//!   open gpu again ─────── OPEN ───────────────────────────────────────▶ a second file
//!   ioctl JOIN(key) ────── IOCTL ──────────────────────────────────────▶ it registers pages for that session
//!   pread of own pages ─── READ (direct: descriptors name the pages) ──▶ parked: the pages are the blob's
//!                                                        ◀────────────── answered when they are no longer used
//! ```
//!
//! * [`fuse`]: what the guest's kernel says (FUSE 7.31, of `linux/fuse.h`).
//! * [`call`], [`body`]: what the guest's process says, inside FUSE_IOCTL.
//! * [`place`]: offsets of the file that mean something.
//!
//! Control frames and the answers to them are the same bytes as on the gpu front.
//!
//! # Why two files
//! A read that the daemon holds cannot be interrupted, and keeps its file open. So pages are registered through a file of
//! their own, by no thread that must be able to die (io_uring, or a process that is there for that). The session's file
//! is closed with its process: that ends the session, and then the reads are answered.

pub mod body;
pub mod call;
pub mod errno;
pub mod fuse;
pub mod place;

/// Device id of virtio-fs (virtio 1.3, 5.11.1).
pub const DEVICE_ID: u32 = 26;
/// Queue 0, which the driver sends FORGET through (virtio 1.3, 5.11.2).
pub const HIPRIO_QUEUE: u16 = 0;
/// The first request queue.
pub const REQUEST_QUEUE: u16 = 1;
/// Bytes of the mount tag in the configuration (virtio 1.3, 5.11.4).
pub const TAG_BYTES: usize = 36;

/// Node id, and inode number, of the root.
pub const ROOT: u64 = 1;
/// Node id, and inode number, of the file.
pub const GPU: u64 = 2;
/// The file's name.
pub const NAME: &[u8] = b"gpu";
/// Bytes that the file says it has: reads past the end of a file never leave the guest's kernel.
pub const SIZE: u64 = 1 << 62;

/// Largest WRITE, and largest READ of one request: 256 pages.
pub const MAX_TRANSFER: u32 = 1 << 20;

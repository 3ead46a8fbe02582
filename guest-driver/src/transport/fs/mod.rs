//! A guest process in a VM: the stock virtiofs driver of Linux, through the file `gpu`.
//!
//! ```text
//!   channel   mounts ─▶ open gpu ─▶ ioctl: one call, one answer (wire: campanile_protocol::fs)
//!   context   create_blob   a range of the aperture (BAR of an ivshmem device), or pages of this process:
//!                           a second file joins the session, and io_uring reads into the pages, without an answer
//!             submit        SUBMIT; what is longer than an ioctl is written before
//!             wait          WAIT, some tenths of a second at a time: the thread cannot be killed meanwhile
//!             destroy_blob  DESTROY_BLOB; the daemon answers the reads when the pages are no longer used
//! ```
//!
//! * No privilege is needed; the aperture's file has to be this user's, and without it pages do.
//! * A process that is killed ends at once. Its session ends with it, and then the daemon answers its reads.
//! * Memory of a blob is shared with a child after fork, as a render node's is.
//! * A daemon that ends is not seen by the guest's kernel: what waits for it, waits, and cannot be killed.
//! * `ioctl.rs`, `parked.rs` and `reader_process.rs` hold all unsafe code.

mod aperture;
pub mod channel;
pub mod context;
mod ioctl;
mod mounts;
mod pages;
mod parked;
mod reader_process;
mod wait;

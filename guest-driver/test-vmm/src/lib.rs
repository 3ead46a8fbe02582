//! A guest without a VM: VMM and guest kernel in the calling process.
//!
//! ```text
//!   LoopbackContext (a guest process) ─┐                       ┌── vm ── reset, hang-up, raw access for tests
//!   LoopbackContext ───────────────────┤                       │
//!                                      ▼                       ▼
//!      command ─▶ virt_queue ─▶ split_ring ═══ guest_ram (memfd) ═══▶ the daemon's mapping
//!                  │ waiters ◀─ interrupt ◀────── call eventfd ────── the daemon
//!                  └─ kick eventfd ─────────────────────────────────▶ the daemon
//!      run_state, memory_table ─▶ front_end ◀──── vhost-user socket ─▶ the daemon
//!      window ◀───────────────── back_channel ◀── its own socket ──── the daemon (SHMEM_MAP)
//! ```
//!
//! | thread | does | ends |
//! |---|---|---|
//! | callers | put commands on the ring; one waiter leads and sleeps on the call eventfd | |
//! | `loopback-watch` | sleeps on the socket's hang-up and the deadline of a message | with the connection |
//! | `loopback-back` | serves the device's requests; in QEMU's way it changes the memory table, too | with the connection |
//!
//! On a virtio-fs device a guest process is a [`fuse::context::FuseContext`], and all else is the same.
//!
//! Locks, in this order: life cycle of the VM, front end, window, queue, pages. No lock of a queue or of pages is held
//! while anything blocks; the front end's lock is held over one message and its answer.

mod alarm;
mod back_channel;
mod blob_record;
mod channel;
mod command;
mod connection;
pub mod context;
mod dirty_log;
mod front_end;
pub mod fuse;
mod guest_ram;
mod interrupt;
mod memory_table;
mod memory_updates;
pub mod migration;
mod numbers;
pub mod options;
pub mod order;
mod page_space;
pub mod pause;
mod pending;
pub mod raw;
mod remap;
mod request;
mod ring_events;
mod rings;
mod run_state;
mod split_ring;
mod threads;
mod virt_queue;
pub mod vm;
mod waiters;
mod watch;
mod window;

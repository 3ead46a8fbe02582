//! The vhost-user back-end of one vGPU socket. It knows virtio rings and the vhost-user protocol, and nothing
//! of GPUs: what a command means is up to the [`device::Device`] behind it.
//!
//! ```text
//!   VMM (front-end)          connection thread              queue worker             window thread
//!   ───────────────          ─────────────────              ────────────             ─────────────
//!   connect ───────────────▶ socket: accept
//!                            factory ─▶ Device ─ moved ───▶ owns Device, alone
//!   SET_*, GET_* ──────────▶ session: hooks   ◀── gate ── mail is read, device is frozen
//!                             │  ring[i] (mutex) ◀────────▶ pop, answer, interrupt
//!                             └─ mailbox + bell ──────────▶ reset, memory, log, freeze, save, load, window, rings, exit
//!   kick eventfd ──────────────────────────────────────────▶ epoll (edge-triggered, never read)
//!   call eventfd ◀────────────────────────────────────────── once per callback and queue, if the guest asks
//!   SHMEM_MAP (backend channel) ◀──────────────────────────────────────────────────── sends, waits
//!        └─ reply ─────────────────────────────────────────────────────────────────▶ mailbox
//!   hang-up ───────────────▶ exit to the worker, join       drops Device
//! ```
//!
//! A ring is *live* while it is started (SET_VRING_KICK … GET_VRING_BASE), enabled, wholly in guest memory and
//! not broken by its guest. Only a live ring is read, and only to a live ring is anything written:
//!
//! ```text
//!            SET_VRING_KICK          ENABLE 1
//!   stopped ───────────────▶ started ────────▶ live ──▶ broken (index jumped, memory gone)
//!      ▲                        ▲  ◀──────────  │            │
//!      │                        │    ENABLE 0   │            │
//!      └──── GET_VRING_BASE ────┴───────────────┴────────────┘    answers given meanwhile are held
//! ```
//!
//! **Barrier.** GET_VRING_BASE takes the ring's mutex; an answer takes it too. So nothing is written after the
//! reply. A command whose answer comes later (or is held) keeps its [`ticket::Ticket`]: the ring can be started
//! again with the same base, and the answer goes out then. Before it, and at the ENABLE 0 that leaves no ring live, the
//! device freezes, and the connection thread waits for it: `migration.rs` has the states.
//!
//! **Log.** Guest RAM is written through [`memory::GuestRam`], which marks each write in the connection's
//! [`log::DirtyLog`], or by a device that calls [`log::DirtyLog::mark`] itself. A memory table has no log of its own, so
//! that none can be lost with it.
//!
//! **State.** DEVICE_STATE carries what `saved.rs` says: the shell's part, with the commands in flight, around the
//! device's.
//!
//! **Epoch.** RESET_DEVICE begins a new epoch, and so does the cloud-hypervisor way to say it (every ring
//! stopped, then SET_FEATURES and SET_VRING_BASE 0). Tickets of an older epoch are void. The worker reads a ring
//! only when it has reset the device for the ring's epoch, so no command overtakes the reset.
//!
//! **Locks.** A ring's mutex, the mailbox's, the gate's, the log's, and the session's; each is a leaf but the session's,
//! which only the connection thread takes and which comes first, and a ring's, under which its writes are marked. None is held across a request to the front-end: the worker
//! sends none at all, since the front-end may be waiting for the connection thread (`SET_MEM_TABLE` follows
//! `SHMEM_MAP`).
//!
//! **Window.** The aperture is mapped whole, once per epoch (the front-end drops its mappings when the guest resets the
//! device), from a thread of its own.

use std::time::Duration;

pub mod answers;
pub mod counters;
pub mod device;
pub mod handed;
pub mod malformed;
pub mod parking;
pub mod saved;
pub mod socket;
pub mod stepped;
pub mod ticket;
pub mod window;

mod advice;
mod call;
mod checkpoints;
mod connection;
mod features;
mod gate;
mod handover;
mod mailbox;
mod memory_table;
mod migration;
mod motion;
mod refusal;
mod requests;
mod ring;
mod session;
mod state_transfer;
mod worker;
mod writable;

/// How long a device may take to freeze. A device that takes longer is lost, with its session.
pub const FREEZE_BOUND: Duration = Duration::from_secs(5);

/// Largest ring that a guest may ask for.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Largest request: a page list of 8 MiB and a command around it.
pub const MAX_REQUEST: usize = (8 << 20) + (192 << 10);

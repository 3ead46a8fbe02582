//! The shared block of one engine: what the daemon and an engine process tell each other without a syscall.
//!
//! ```text
//!   daemon                                         engine
//!   ──────                                         ──────
//!   process table ─┐
//!   queue table  ──┼─ watch sequence ────────────▶ what to watch
//!   doorbell slots ┘  ◀──────────── watch ack ──── has been looked at
//!   HW queue slots ── submitted ─────────────────▶ kernel-mode buffers
//!                     ◀──────────── completed ──── done, with result
//!   page-table generation ───────────────────────▶ drop what was resolved
//!                     ◀─── page-table ack ──────── holds nothing older
//!   power, grant ◀───────────── handshakes ──────▶ (see `handshake`)
//! ```
//!
//! Every word has one writer but the handshake words, which change by compare-and-swap. An eventfd each way
//! wakes the sleeping side. The engine is not trusted: the daemon bounds and checks all that it reads here.

pub mod block;
pub mod fences;
pub mod hw_queue;
pub mod message;
pub mod progress;
pub mod residency;
pub mod save_area;
pub mod saved;
pub mod scheduling;
pub mod slot;
pub mod suspension;
pub mod written;

//! The engine process: one node of one vGPU, in a process of its own.
//!
//! ```text
//!   daemon                         engine process (`campanile engine`)
//!   ──────                         ───────────────────────────────────
//!   channel (socket) ────────────▶ control thread: segments, kernels ──┐ commands
//!                                  twins thread: kernels once more ────┤
//!   shared block ────────────────▶ execution thread ◀──────────────────┘
//!     doorbell slots, tables         watch ▶ collect rings ▶ fetch ▶ run buffer ▶ fence
//!     HW queue                       idle ▶ spin ▶ F1 or nap on the wake eventfd
//!   event eventfd ◀───────────────   results, faults, waiters, F1 wish, acknowledgements
//!   grant eventfd (supervisor) ◀──   wants, or gives back, the node
//! ```
//!
//! The execution thread makes no system call while it has work. It owns all state; the others only
//! send it commands.

pub mod address;
pub mod answers;
pub mod channel;
mod codec;
pub mod commands;
pub mod control;
pub mod execution;
#[cfg(test)]
mod held;
pub mod idle;
pub mod kernel_queue;
pub mod log;
pub mod machine;
pub mod message;
pub mod progress;
pub mod properties;
pub mod rescan;
pub mod residency;
mod retirement;
pub mod run_list;
pub mod sandbox;
pub mod save_area;
pub mod signals;
pub mod start;
mod steps;
pub mod suspension;
pub mod twins;
pub mod user_queue;
mod waiting;
pub mod watch;
pub mod wire;

//! The daemon's side of an engine: the adapter that the scheduler and the object layer drive.
//!
//! ```text
//!   STARTING ──Started──▶ RUNNING ──process gone, reset──▶ LOST ──next process──▶ STARTING
//!       └──────Refused──▶ LOST (with the reason)
//! ```
//!
//! One [`process::EngineProcess`] a (vGPU, node), owned by the vGPU's thread in the daemon. What an engine says
//! is checked here: it may be hostile (design §8).
//!
//! ```text
//!   ddi ◀── operations ──▶ process ──▶ parts: tables suspends hw_queue scheduling segments native_fences residency power
//!                             │                  └──────────▶ shared
//!                             └──▶ launcher ◀── program ──▶ child, containment
//!                                      ▲
//!                                      ├─────── ahead ──▶ program
//!                                      └─────── stand_in, fake
//! ```

pub mod ahead;
mod child;
pub mod code_log;
pub mod compile_process;
pub mod containment;
mod conversation;
pub mod copy_process;
mod ddi;
pub mod debug_info;
pub mod error;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod hw_queue;
pub mod indices;
pub mod launcher;
mod lone;
pub mod native_fences;
mod operations;
pub mod power;
pub mod process;
pub mod program;
pub mod remnant;
pub mod residency;
pub mod scheduling;
pub mod segments;
mod shared;
mod spare;
pub mod stand_in;
pub mod stderr;
mod successor;
pub mod suspends;
pub mod tables;
pub mod tracking;

pub use ddi::Adapter;

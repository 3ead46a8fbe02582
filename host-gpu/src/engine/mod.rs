//! The engine process: one node of one vGPU, in a process of its own.
//!
//! ```text
//!   daemon                         engine process (`campanile engine`)
//!   ──────                         ───────────────────────────────────
//!   channel (socket) ────────────▶ control thread: segments, moves ────┐ commands
//!                                     └─▶ compiler threads: kernels ───┤
//!                                  secondary pipelines' thread ────────┤
//!   shared block ────────────────▶ execution thread ◀──────────────────┘
//!     doorbell slots, tables         watch ▶ collect rings ▶ fetch ▶ run buffer ▶ fence
//!     HW queue                       idle ▶ spin ▶ F1 or nap on the wake eventfd
//!   event eventfd ◀───────────────   results, faults, waiters, F1 wish, acknowledgements
//!   grant eventfd (supervisor) ◀──   wants, or gives back, the node
//! ```
//!
//! The execution thread makes no system call while it has work. It owns all state; the others only
//! send it commands.
//!
//! # Order
//!
//! The daemon stores what work needs, then the work; the execution thread sees the work, then what it needs. Each line is a
//! release by the daemon (or by a guest that the daemon has answered) and the acquire that it pairs with.
//!
//! | stored first | then | seen first | then |
//! |---|---|---|---|
//! | a segment, by a command | its acknowledgement, then page tables that name it | an address, by page tables | the segment: it is there, whatever is drained |
//! | page tables | the answer to MAP_MEMORY, a ring or submission | the ring or submission | page tables, which are read anew for each packet |
//! | page tables, without what is unmapped or moves | `PAGE_TABLE_GENERATION` | that, between two turns | all that was resolved is dropped, then acknowledged, then memory is used anew |
//! | tables, scheduling properties, slots, LOOK bits, suspends | `WATCH_SEQUENCE` | that, between two turns | LOOK bits, then slots and tables, then the acknowledgement, then numbers are used anew |
//! | a kernel, by a command | the answer to CREATE_KERNEL, work that names it | the work | `pending`, and then the commands |
//! | submissions | `PREEMPT_REQUEST` | that, between two turns | all submissions are put back, their results before the report |
//!
//! So a round is: look at all of that ([`execution`]: `catch_up`), collect rings, see what has work, and *look again whether
//! anything has changed before the first of it runs*: what has work may have been seen after what it needs was looked for. A
//! change that comes later than that ends the turn at its first boundary, since the turn compares with what was acted on, and
//! not with what it finds when it begins. Where a number is given to another queue, the turn and the wait of the one before go.
//! `held` is where tests hold the thread between these points.

pub mod address;
pub mod answers;
pub mod channel;
mod code_start;
mod codec;
pub mod commands;
pub mod compiling;
pub mod control;
pub mod events;
pub mod execution;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod held;
pub mod idle;
pub mod kernel_queue;
mod local_start;
pub mod log;
pub mod machine;
pub mod message;
mod mover;
mod opening;
pub mod orders;
pub mod process;
pub mod progress;
pub mod properties;
pub mod rescan;
pub mod residency;
mod retirement;
pub mod run_list;
pub mod sandbox;
pub mod save_area;
pub mod secondary_pipelines;
pub mod signals;
pub mod start;
pub mod start_error;
mod steps;
pub mod suspension;
pub mod user_queue;
mod waiting;
pub mod watch;
pub mod wire;
pub mod words;

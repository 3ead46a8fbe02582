//! Submission: contexts, their hardware queues, and the buffers that run in them.
//!
//! ```text
//!   SUBMIT ─▶ buffers ─▶ run_list of the context's node ─▶ hardware queue ─▶ engine
//!                ▲                                                              │
//!                └── completed, or handed_back (preempted, suspended) ◀─────────┘
//! ```

pub mod buffers;
pub mod contexts;
pub mod handed_back;
pub mod queues;
pub mod reports;
pub mod run_list;
pub mod scheduling;
pub mod suspends;
pub mod waits;

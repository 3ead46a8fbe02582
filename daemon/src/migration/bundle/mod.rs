//! What a target holds of a vGPU that is on its way.
//!
//! ```text
//!   HELLO ──▶ Stage: zero-filled memfds of the vGPU's shape ── records ──▶ sealed by COMPLETE ──▶ claimed by one LOAD
//!                └────────── any failure, a time-out, REVOKE: all of it is freed ──────────┘
//! ```
//!
//! No session has anything to do with a stage before it has claimed it, so that nothing is ever half applied (LM-39). A
//! stage takes no more memory of the host than the vGPU may.

pub mod stage;

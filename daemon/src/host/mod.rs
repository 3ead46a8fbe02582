//! One daemon: its vGPUs, and what they share.
//!
//! ```text
//!   Host ─┬─ supervisor (one thread)
//!         ├─ probe: can this machine compute?
//!         └─ vGPU a, b, …: a socket each ─▶ connection thread, queue worker ─▶ session ─▶ engines
//! ```

pub mod probe;
pub mod start;

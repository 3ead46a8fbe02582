//! One daemon: its vGPUs, and what they share.
//!
//! ```text
//!   Host ─┬─ supervisor (one thread)
//!         ├─ probe: can this machine compute, on the device of each linked adapter, and note what engines write?
//!         └─ premises: vGPU a, b, …, which come, change and go: a socket each ─▶ connection thread, queue worker ─▶ session ─▶ engines
//! ```

pub mod accounts;
mod ahead;
mod builder;
mod changes;
pub mod check;
pub mod doors;
mod drain;
mod endpoints;
pub mod engines;
pub mod error;
mod findings;
mod ground;
pub(crate) mod heartbeat;
pub mod holding;
pub mod keeper;
mod left_local;
mod linked;
pub mod local_choice;
mod local_memory;
pub mod options;
mod predecessor;
pub mod premises;
pub mod probe;
mod recovery;
pub mod schedule;
pub mod source;
pub mod start;
mod tenants;
pub mod tracking;
pub mod upgrade;
pub mod vgpu;

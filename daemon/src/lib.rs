//! The daemon of Campanile: what an operating system is to a GPU.
//!
//! ```text
//!   VMM ──vhost-user──▶ frontend::vhost ──commands──▶ frontend::{gpu,fs} ──▶ vgpu ──▶ engines (host-gpu)
//!                                                                              │ └── sched: turns between vGPUs
//!   operator ──control socket──▶ operator ──orders─────────────────────────────┘
//!   another daemon ──▶ migration ──state, pages──▶ vgpu::state
//! ```
//!
//! The executable is the package `campanile` (`daemon/campanile`); what measures the daemon is `campanile-bench` (`daemon/bench`).

pub mod caller;
pub mod cli;
pub mod config;
pub mod confine;
pub mod fd_store;
pub mod file_lock;
pub mod frontend;
pub mod guest_ram;
pub mod host;
pub mod ids;
pub mod intake;
pub mod latencies;
pub mod ledger;
pub mod listener;
pub mod migration;
pub mod open_sockets;
pub mod operator;
pub mod poller;
pub mod sched;
mod sd_notify;
pub mod service_manager;
pub mod vgpu;
pub mod workers;

//! The daemon of Campanile: what an operating system is to a GPU.
//!
//! ```text
//!   VMM ──vhost-user──▶ vhost ──commands──▶ front::gpu ──▶ session ──▶ engines (host-gpu)
//!                                                            │ ▲
//!                                          doorbell, vidmm ◀─┘ │ └── supervisor: turns between vGPUs
//!   operator ──control socket──▶ operator ──orders─────────────┘
//!   simulate: the scheduling policies without any of this
//! ```

pub mod cli;
pub mod confine;
pub mod doorbell;
pub mod front;
pub mod host;
pub mod measure;
pub mod migration;
pub mod operator;
pub mod orders;
pub mod recovery;
pub mod session;
pub mod simulate;
pub mod supervisor;
pub mod vhost;
pub mod vidmm;

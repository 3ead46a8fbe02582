//! The GPU of Campanile: what a guest's work runs on.
//!
//! ```text
//!   daemon ──▶ adapter ──spawn, shared block, channel──▶ engine (process)
//!                                                          │ rings, HW queue
//!                                                          ▼
//!                                                         node ──▶ kernel (naga, shader) ──▶ vulkan
//!                                                          │
//!                                                          ▼
//!                                                        memory (page tables, segments)
//! ```

pub mod adapter;
pub mod clock;
pub mod code_cache;
pub mod cpu_slice;
pub mod descriptors;
pub mod dirty;
pub mod engine;
pub mod essential_thread;
pub mod event;
pub mod ids;
pub mod kernel;
pub mod log_limit;
pub mod memory;
pub mod node;
pub mod outside;
pub mod sched;
pub mod shader;
pub mod vulkan;

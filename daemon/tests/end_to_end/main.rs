//! A real daemon, its real socket, a guest without a VM.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod compute_node;
mod copy_node;
mod kernel_waits;
mod native_fences;
mod processes;
mod raw;
mod raw_queue;
mod ring_shapes;
mod spy;
mod support;
mod tdr;
mod ums_connections;
mod ums_doorbells;
mod ums_endings;
mod ums_fences;
mod ums_power;
mod ums_queues;
mod ums_submission;

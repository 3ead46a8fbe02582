//! What an operator has of the daemon: files of configuration, and what is asked of one that serves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod api;
mod callers;
mod check_gpu;
mod checkpoints;
mod config;
mod drain;
mod kept_code;
mod killed;
mod local_memory;
mod manager;
mod metrics;
mod places;
mod preemptions;
mod random_kills;
mod reload;
mod schema;
mod served;
mod shared_schedule;
mod spans;
mod storage;
mod top;
mod trace;
mod upgrade;
mod upgrade_refused;
mod vgpus;
mod waiting;
mod web;
mod work;
mod worker_moves;
mod workers;

use campanile_test_vmm::pause::allocator::VcpuAllocator;

/// Virtual CPUs stop anywhere, but not with the allocator's lock.
#[global_allocator]
static ALLOCATOR: VcpuAllocator = VcpuAllocator;

//! The fs front: a real daemon, its real socket, and a virtiofs driver without a VM.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../vhost/bench.rs"]
#[allow(dead_code, reason = "the shell's tests need more")]
mod bench;
#[path = "../vhost/device.rs"]
#[allow(dead_code, reason = "the shell's tests need more")]
mod device;
#[path = "../vhost/dirty_log.rs"]
#[allow(dead_code, reason = "the shell's tests need more")]
mod dirty_log;
#[path = "../vhost/guest.rs"]
#[allow(dead_code, reason = "the shell's tests need more")]
mod guest;
mod hostile;
mod machine;
mod moving;
#[path = "../end_to_end/raw.rs"]
#[allow(dead_code, reason = "the gpu front's tests say more")]
mod raw;
mod registration;
mod sequences;
mod sessions;
#[path = "../end_to_end/support.rs"]
#[allow(dead_code, reason = "the gpu front's tests need more")]
mod support;
#[path = "../vhost/vmm.rs"]
#[allow(dead_code, reason = "the shell's tests need more")]
mod vmm;
mod waits;

use campanile_test_vmm::pause::allocator::VcpuAllocator;

/// Virtual CPUs stop anywhere, but not with the allocator's lock.
#[global_allocator]
static ALLOCATOR: VcpuAllocator = VcpuAllocator;

//! A real daemon, its real socket, a guest without a VM.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod address_spaces;
mod announcements;
#[path = "../../../host-gpu/src/shader/tests/assembly.rs"]
mod assembly;
mod awake;
mod away;
#[path = "../fuzz/targets/change.rs"]
mod change;
mod code_cache;
mod compute_node;
mod compute_only;
mod copy_node;
mod dirty;
mod dirty_costly;
mod dirty_passes;
mod dirty_resets;
mod driver_faults;
mod engine_settings;
#[path = "../../../host-gpu/src/shader/tests/frame.rs"]
mod frame;
mod gpu_profiles;
mod inside;
mod kernel_compiles;
mod kernel_floods;
mod kernel_names;
mod kernel_waits;
mod linked;
mod linked_devices;
mod linked_resets;
mod lm_aborted;
mod lm_brownout;
mod lm_bytes;
mod lm_freeze;
mod lm_hostile;
mod lm_kernels;
mod lm_pauses;
mod lm_peers;
mod lm_returns;
mod lm_state;
mod local_memory;
mod local_moves;
mod mcdm;
mod memory_shortage;
mod migration;
mod moving;
mod native_fence_waiters;
mod native_fences;
mod operator;
mod paging;
mod pipelines;
mod preemption;
mod processes;
mod protocol_page;
mod raw;
mod raw_queue;
mod residency;
mod ring_shapes;
mod save_area_ends;
mod save_areas;
mod scheduling_requests;
mod signals;
mod slices;
mod spy;
mod support;
mod tdr;
mod tdr_causes;
mod tdr_fences;
mod tdr_limits;
mod tdr_reports;
mod tdr_resilience;
mod tdr_support;
mod texels;
mod timeline;
mod ums_connections;
mod ums_device_power;
mod ums_doorbell_ends;
mod ums_doorbells;
mod ums_drains;
mod ums_endings;
mod ums_fences;
mod ums_fights;
mod ums_global_rings;
mod ums_models;
mod ums_notify;
mod ums_power;
mod ums_queues;
mod ums_states;
mod ums_submission;
mod ums_suspend;
mod unmaps;

use campanile_test_vmm::pause::allocator::VcpuAllocator;

use support::until;

/// Virtual CPUs stop anywhere, but not with the allocator's lock.
#[global_allocator]
static ALLOCATOR: VcpuAllocator = VcpuAllocator;

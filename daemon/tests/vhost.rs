//! The vhost-user shell, driven by a real front-end and a hand-written guest ring.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test stops here")]

#[path = "vhost/bench.rs"]
mod bench;
#[path = "vhost/chains.rs"]
mod chains;
#[path = "vhost/descriptors.rs"]
mod descriptors;
#[path = "vhost/device.rs"]
mod device;
#[path = "vhost/dirty_log.rs"]
mod dirty_log;
#[path = "vhost/guest.rs"]
mod guest;
#[path = "vhost/latency.rs"]
mod latency;
#[path = "vhost/live.rs"]
mod live;
#[path = "vhost/memory_files.rs"]
mod memory_files;
#[path = "vhost/migrant.rs"]
mod migrant;
#[path = "vhost/migration_failures.rs"]
mod migration_failures;
#[path = "vhost/migration_logs.rs"]
mod migration_logs;
#[path = "vhost/migration_sequences.rs"]
mod migration_sequences;
#[path = "vhost/migration_state.rs"]
mod migration_state;
#[path = "vhost/negotiation.rs"]
mod negotiation;
#[path = "vhost/resets.rs"]
mod resets;
#[path = "vhost/rings.rs"]
mod rings;
#[path = "vhost/sessions.rs"]
mod sessions;
#[path = "vhost/sockets.rs"]
mod sockets;
#[path = "vhost/vmm.rs"]
mod vmm;
#[path = "vhost/windows.rs"]
mod windows;

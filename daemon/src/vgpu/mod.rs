//! The session layer: everything that one VM has of one vGPU, whatever front it came through. `docs/architecture.md` says which
//! rooms it has.
//!
//! ```text
//!   front (gpu) ── blobs, SUBMIT_3D ──▶ Session
//!                                         ├─ objects: process ▶ device ▶ contexts ▶ queues ▶ doorbells
//!                                         ├─ memory: blobs, save areas, allocations (vidmm), page tables
//!                                         ├─ engines: one process a node and physical adapter,
//!                                         │  started when first used
//!                                         └─ pending: what waits for an engine to let go
//!   front ◀── tokens that are due ────────┘
//! ```
//!
//! What a guest can have more of is charged to the VM's budget (`budget.rs`). One thread owns all of it: the vGPU's queue worker. Nothing in it blocks; what takes time is parked and
//! comes back as an event of the session's epoll descriptor. What a guest says is checked here, once, on a
//! copy; a bad message gets a status and changes nothing.
//!
//! # Numbers that are used again
//!
//! An answer may be under way while what it is for ends, and something else gets its number:
//!
//! | number | what tells an answer that is late |
//! |---|---|
//! | handles of contexts, queues, doorbells, kernels, fences | a generation in the handle; kernels of a later device have later ones (`kernel_generation`) |
//! | places in an engine's tables | free once the engine has acknowledged the watch sequence that took them away |
//! | segments with engines | a serial in each request and its answer; free once nothing refers to it and no announcement of it is awaited |
//! | address spaces | free behind the barrier of their device's end, and all that names one comes before that ([`barrier::Reached`]) |
//! | virtio contexts | the address space of the device, and numbers of work that no earlier context had (`last_item`) |
//! | blobs | the allocation behind the name, whose number is never used again |
//! | engines with the supervisor, tokens of fronts, bundles of migrations | never used again; the last are random |

pub mod config;
pub mod control;
pub mod counters;
mod dispatch;
pub mod doorbells;
pub mod engines;
#[cfg(test)]
mod faked;
pub mod fences;
#[cfg(test)]
mod flooding_guest;
#[cfg(test)]
mod floods;
pub mod hotplug;
pub mod journal;
pub mod measures;
pub mod memory;
pub mod objects;
mod orders;
pub mod power;
pub mod recorder;
pub mod session;
pub mod state;
pub mod submission;
pub mod tdr;
#[cfg(test)]
pub(crate) mod testing;
pub mod timer;
pub mod vm;
pub mod vulkan_devices;

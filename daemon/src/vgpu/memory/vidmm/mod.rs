//! Video memory of one vGPU: which allocation has which bytes.
//!
//! ```text
//!   VRAM memfd   [ aperture: offsets chosen by the guest (MAP_BLOB) │ local: offsets chosen by us │ save areas ]
//!   store memfd  [ what is evicted ]          the daemon's own
//!
//!   allocation   unplaced ──first GPU mapping──▶ local ◀──move──▶ aperture
//!                    └───────────────MAP_BLOB──────│───────────────▲
//!                                                  ▼               │
//!                                               evicted ───────────┘
//! ```
//!
//! Local memory is part of the memfd, or a device's own ([`device_local`], [`in_device`]): then the daemon sees none of it, and the device copies.
//!
//! An allocation has no place until it can be looked at. Nothing moves while the guest's CPU has it mapped
//! (design §10.4); else an allocation may also move within local memory, so that another finds room in one piece. Every byte that is handed out reads zero first.
//! Save areas have a region of their own, and compete for it with each other alone: a guest can neither take nor hold it. Owned by the vGPU's thread, but for [`quota`], which all
//! share.

pub mod allocations;
mod area_allocations;
mod area_region;
pub mod compaction;
pub mod device_local;
pub mod device_memory;
pub mod device_places;
pub mod eviction;
pub mod in_device;
pub mod local_port;
pub mod local_reader;
mod movable;
mod moves;
pub mod quota;
pub mod ranges;
pub mod store;
#[cfg(test)]
mod tests;
pub mod vram;

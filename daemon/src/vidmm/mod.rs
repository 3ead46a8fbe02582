//! Video memory of one vGPU: who has which bytes.
//!
//! ```text
//!   VRAM memfd   [ aperture: offsets chosen by the guest (MAP_BLOB) │ local: offsets chosen by us ]
//!   allocation   unplaced ──first GPU mapping──▶ local ◀──move──▶ aperture
//!                    └───────────────MAP_BLOB────────────────────────▲
//! ```
//!
//! An allocation has no place until somebody can look at it. Nothing moves while the guest's CPU has it mapped
//! (design §10.4). Every byte that is handed out reads zero first. Owned by the vGPU's thread.

pub mod allocations;
pub mod eviction;
pub mod quota;
pub mod ranges;
pub mod store;
pub mod vram;

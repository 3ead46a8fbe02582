//! The sending side (LM-11).
//!
//! ```text
//!   Idle ── prepare ──▶ Brownout ── SAVE ──▶ Finishing ── STORED ──▶ Held (ownership::holder)
//!    ▲                     │                     │                      │
//!    └──── called off, or any failure ───────────┴──── the rings run again, or never will
//! ```
//!
//! A [`departure::Departure`] is of one vGPU and outlives its sessions. The brownout has a thread of the least weight; the last
//! pass runs on the thread that saves, at full weight, since the VM waits for it; then one thread keeps the line, and answers
//! which asks whether the guest may run.

mod brownout;
pub mod departing;
pub mod departure;
mod finish;
pub mod handover;
pub mod hold;
pub mod kernels;
pub mod phase;
pub mod progress;
pub mod sinks;
pub mod snapshot;

//! What a hang leads to, and for which device. Decisions only; sessions carry them out.
//!
//! ```text
//!   engine hangs, dies ─▶ engine reset (6) ──impossible, or too often──▶ adapter reset (9) ──too often──▶ quarantine
//!            │                  │                                          all devices                 no device at all,
//!            │                  └─ whose work it ran: device lost          of the vGPU lost            until allowed again
//!            └─ ignored, held for a debugger, or fatal: by level and debug mode
//! ```
//!
//! The *adapter* is the vGPU: the engines of another guest are other processes over other memory, so that no hang of one
//! guest is a reason to reset another (TDR-70). A guest process is counted too: past its limit it gets no device any
//! more, while the rest of its VM does (TDR-21).
//!
//! [`standing::Standing`] outlives sessions: a guest that reboots has the past that it had.

pub mod adapter_reset;
pub mod device_removed;
pub mod engine_reset;
pub mod fences;
pub mod group;
pub mod liveness;
pub mod liveness_checks;
pub mod policy;
pub mod reason;
pub mod recovery;
pub mod reports;
pub mod reset_record;
pub mod standing;
pub mod timeouts;
#[cfg(test)]
mod without_engine;

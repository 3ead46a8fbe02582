//! The supervisor thread: which engine has the turn on each node of each physical adapter.
//!
//! ```text
//!   engine ── its own eventfd ──▶ supervisor ── turns (pure) ──▶ GRANTED / REVOKING ──▶ wake eventfd ──▶ engine
//!      grant word ── checked against the record ──┤
//!                                    ├── no yield in time, or a breach ──▶ alarm ──▶ the vGPU's thread resets the engine
//!      progress word ── watchdog (pure) ──┘
//!      realtime word ── awake ──▶ no CPU sleeps while realtime work comes
//! ```
//!
//! One thread owns every decision between vGPUs; what goes on inside a vGPU (which context, which queue) is
//! its own thread's, so that a vGPU alone on a node never waits for a decision (design §10.2).

pub mod alarm;
pub mod awake;
mod entities;
pub mod meter;
pub mod share;
pub mod signal_budget;
pub mod suspends;
pub mod thread;
pub mod turns;
mod user_submissions;
pub mod wake_sources;
pub mod watchdog;

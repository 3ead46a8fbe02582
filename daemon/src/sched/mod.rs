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
//! Daemons that share a GPU leave this to one of another process, the broker of the host ([`broker`]): what a session has of either
//! is a [`schedule::Schedule`].
//!
//! One thread owns every decision between vGPUs; what goes on inside a vGPU (which context, which queue) is
//! its own thread's, so that a vGPU alone on a node never waits for a decision (design §10.2).

pub mod alarm;
pub mod awake;
pub mod broker;
mod entities;
pub mod measures;
pub mod meter;
pub mod record;
pub mod schedule;
pub mod share;
pub mod signal_budget;
pub mod suspends;
#[cfg(test)]
mod testing;
pub mod thread;
pub mod turns;
mod user_submissions;
pub mod wake_sources;
pub mod watchdog;

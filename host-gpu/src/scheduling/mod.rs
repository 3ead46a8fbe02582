//! Who runs next: policies over anything that has work for one engine.
//!
//! ```text
//!   wake, sleep, charge, change ──▶ Policy (pure: state and time in) ──▶ Decision { next, until }
//!
//!   used twice:  supervisor   entities are vGPUs, groups too       band: the most urgent that has work
//!                engine, and  entities are contexts,               band, level, in-process priority
//!                vGPU thread  groups are guest processes
//! ```
//!
//! A policy has no clock and does no I/O. Whoever runs it says what time it is, who has work, and how long each
//! entity had the engine; time on the engine is what is shared.

pub mod choice;
pub mod fair;
pub mod parameters;
pub mod policy;
pub mod rota;
pub mod strict_priority;

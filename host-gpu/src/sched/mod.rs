//! Scheduling policies: which of the entities that have work for an engine runs next.
//!
//! ```text
//!   wake, sleep, charge, change ──▶ Policy (pure: state and time in) ──▶ Decision { next, until }
//!
//!   used twice:  supervisor   entities are vGPUs, groups too       band: the most urgent that has work
//!                engine, and  entities are contexts,               band, level, in-process priority
//!                vGPU thread  groups are guest processes
//! ```
//!
//! A policy has no clock and does no I/O. Its caller says what time it is, which entities have work, and how long each
//! had the engine; engine time is what is shared.

pub mod choice;
pub mod fair;
pub mod parameters;
pub mod policy;
pub mod runqueue;
pub mod strict_priority;

//! What measures and shows the daemon, and is no part of it: demo, benchmarks, the simulation of many guests.
//!
//! ```text
//!   cli ─┬─▶ measure    a daemon as a child process, a guest of the test VMM in this one
//!        └─▶ simulate   the scheduling policies by a virtual clock, without a GPU
//! ```
//!
//! The binary `campanile` has it with the feature `bench`, which a packaged daemon is built without.

pub mod cli;
pub mod measure;
pub mod simulate;

//! Engines without a process and without a thread: each does its work when a test steps it.
//!
//! ```text
//!   session ──launch──▶ Fakes ──one a launch──▶ Fake: shared block, events, channel
//!                         └── step ───────────▶ requests answered, tables acknowledged, suspends reported,
//!                                               hardware queue run, preempt commands reported, event signalled
//! ```
//!
//! A fake keeps the words of the shared block and says the messages of an engine, in the order in which an engine does. It asks
//! for no node, executes no packets and stores to no guest memory: a buffer that it runs is noted, and completes.

mod conduct;
mod engine;
mod fakes;

pub use conduct::Conduct;
pub use conduct::Ran;
pub use fakes::Fakes;

#[cfg(test)]
mod tests;

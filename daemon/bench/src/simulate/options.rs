//! What is simulated.

use std::time::Duration;

use campanile_host_gpu::sched::choice::Choice;

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Guests, each with a vGPU.
    pub guests: usize,
    /// Contexts of each.
    pub queues: usize,
    /// Virtual time.
    pub time: Duration,
    /// The policy, on both levels.
    pub policy: Choice,
    /// The same seed gives the same run.
    pub seed: u64,
    /// Longest slice of a dispatch.
    pub slice: Duration,
    /// Slices that are with the engine at a time: they run to their end.
    pub in_flight: u32,
}

impl Options {
    /// Longest that an entity which may preempt waits for what cannot be stopped (PRE-05).
    pub fn bound(&self) -> Duration {
        self.slice.saturating_mul(self.in_flight)
    }
}

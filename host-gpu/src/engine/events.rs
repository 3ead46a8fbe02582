//! The eventfds of an engine.

use crate::event::Event;

/// The eventfds of an engine, each named by what waits for it.
#[derive(Debug)]
pub struct Events {
    /// Engine → its vGPU's thread.
    pub event: Event,
    /// Engine → supervisor.
    pub grant: Event,
    /// Any side → engine.
    pub wake: Event,
}

//! Which device to open and how to wait on it.

use std::time::Duration;

use crate::vulkan::info::Kind;

/// What the operator wants of the device. The driver library itself is chosen by `VK_DRIVER_FILES`, which
/// the process that starts this one sets.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only a device whose name contains this, any case.
    pub name: Option<String>,
    /// The kind to take where there is one. Others follow in the order discrete, integrated, virtual, CPU.
    pub prefer: Option<Kind>,
    /// How long to look at the completion counter before sleeping on it. A wake-up costs 20 to 100 µs; a spin
    /// takes a core from a CPU driver.
    pub spin: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { name: None, prefer: None, spin: Duration::from_micros(50) }
    }
}

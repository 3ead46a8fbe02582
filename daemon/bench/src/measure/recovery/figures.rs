//! All figures of `campanile bench tdr`.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::loss;
use super::loss::Loss;
use super::stalls;
use super::stalls::Stalls;
use crate::measure::daemon::DaemonProcess;

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Hangs whose loss is timed.
    pub hangs: usize,
    /// Hangs, and runs of other work, beside each innocent.
    pub stalls: usize,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recovery {
    /// TDR timeout, milliseconds.
    pub timeout_ms: u64,
    /// Hang after hang.
    #[serde(flatten)]
    pub loss: Loss,
    /// Beside innocents at work.
    pub stalls: Stalls,
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "timeout                    {} ms", self.timeout_ms)?;
        write!(f, "{}{}", self.loss, self.stalls)
    }
}

/// Starts a daemon with two vGPUs and these settings, the timeout among them, and hangs the compute node of the first;
/// and one with the settings `without_spares`, where other work is done.
pub fn measure(
    settings: &[OsString],
    without_spares: &[OsString],
    timeout_ms: u64,
    effort: Effort,
) -> anyhow::Result<Recovery> {
    let daemon = DaemonProcess::with_vgpus(&["", ""], settings)?;
    let loss = loss::measure(&daemon.socket(), effort.hangs)?;
    let without_spares = DaemonProcess::start(without_spares)?;
    let stalls = stalls::measure(&daemon, &without_spares, Duration::from_millis(timeout_ms), effort.stalls)?;
    Ok(Recovery { timeout_ms, loss, stalls })
}

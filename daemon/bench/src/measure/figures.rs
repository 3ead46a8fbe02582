//! What is measured, and how it is printed.

use std::fmt;

use campanile_guest::percentiles::Percentiles;
use campanile_guest::percentiles::ratio;
use serde::Serialize;

use super::wake_ups::WakeUps;

/// All figures of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Two processes, one cache line, both polling.
    pub pingpong_ns: Percentiles,
    /// Doorbell to progress fence of an empty buffer, through the engine process.
    pub um_rtt_ns: Percentiles,
    /// The same buffer through virtqueue, daemon and scheduler.
    pub km_rtt_ns: Percentiles,
    /// Two processes, two eventfds, both blocking.
    pub eventfd_rtt_ns: Percentiles,
    /// On whatever CPUs the kernel chooses.
    #[serde(flatten)]
    pub wake_ups: WakeUps,
    /// Empty buffers a second through one user-mode queue, pipelined.
    pub um_per_s: u64,
    /// User-mode submissions for the next two figures.
    pub um_submissions: u64,
    /// Control-queue commands during them, other than reconnects.
    pub control_messages_during_um: u64,
    /// Reconnects during them: the engine slept because the guest paused.
    pub reconnects_during_um: u64,
    /// One dispatch of one workgroup through a user-mode queue; absent without a compute node.
    pub um_dispatch_ns: Option<Percentiles>,
    /// CPU use of the daemon and all its engines from one second after the last work, percent of one core;
    /// absent in a quick run.
    pub idle_cpu_percent: Option<f64>,
    /// What computes.
    pub compute: String,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "compute node               {}", self.compute)?;
        writeln!(f, "cache-line ping-pong       {}", self.pingpong_ns)?;
        let um = ratio(self.um_rtt_ns.p50, self.pingpong_ns.p50);
        writeln!(f, "user-mode round trip       {}   {um:.1} x ping-pong", self.um_rtt_ns)?;
        writeln!(f, "eventfd round trip         {}", self.eventfd_rtt_ns)?;
        let km = ratio(self.km_rtt_ns.p50, self.eventfd_rtt_ns.p50);
        writeln!(f, "kernel-mode round trip     {}   {km:.1} x eventfd", self.km_rtt_ns)?;
        let faster = ratio(self.km_rtt_ns.p50, self.um_rtt_ns.p50);
        writeln!(f, "user mode is faster by     {faster:.0} x")?;
        write!(f, "{}", self.wake_ups)?;
        if let Some(dispatch) = self.um_dispatch_ns {
            writeln!(f, "smallest dispatch          {dispatch}")?;
        }
        writeln!(f, "user-mode submissions      {} per second, pipelined", self.um_per_s)?;
        writeln!(
            f,
            "control messages           {} during {} submissions (and {} reconnects)",
            self.control_messages_during_um, self.um_submissions, self.reconnects_during_um
        )?;
        if let Some(percent) = self.idle_cpu_percent {
            writeln!(f, "idle daemon and engines    {percent:.2} % of a core")?;
        }
        Ok(())
    }
}

//! What is told of it.

use std::fmt;

use campanile_guest::percentiles::Percentiles;
use serde::Serialize;

use super::moves::Move;
use super::moves::MoveFigures;
use super::work::Sizes;
use super::work::Work;

/// All of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuFigures {
    /// Device, driver and version.
    pub device: String,
    /// How much is run.
    pub sizes: Sizes,
    /// Each kind of work.
    pub works: Vec<WorkFigures>,
    /// The smallest dispatch, polled.
    pub launch_ns: Percentiles,
    /// The same by the bare driver.
    pub native_launch_ns: Percentiles,
    /// Median of the rounds' quotients of the two.
    pub launch_ratio: f64,
    /// Local memory that is the device's own, moved.
    pub moves: Vec<MoveFigures>,
}

/// One kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkFigures {
    /// Which.
    pub work: Work,
    /// Through Campanile, in video memory.
    pub campanile_ns: Percentiles,
    /// By the bare driver, in memory of the device's own.
    pub native_ns: Percentiles,
    /// By the bare driver, in imported host memory.
    pub native_host_ns: Percentiles,
    /// Throughput through Campanile over that of the bare driver in the device's memory: median of the rounds.
    pub ratio: f64,
    /// The same over that in imported host memory.
    pub host_ratio: f64,
    /// GB/s, or GFLOP/s of a matmul, through Campanile.
    pub campanile_rate: f64,
    /// The same by the bare driver in the device's memory.
    pub native_rate: f64,
}

impl fmt::Display for GpuFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sizes { vector_bytes, side } = self.sizes;
        writeln!(f, "{}", self.device)?;
        writeln!(f, "vectors of {} MiB, matrices of {side} by {side}", vector_bytes >> 20)?;
        for figures in &self.works {
            let name = format!("{:?}", figures.work).to_lowercase();
            let unit = if figures.work == Work::Matmul { "GFLOP/s" } else { "GB/s" };
            writeln!(f, "{name:<7} campanile          {}", figures.campanile_ns)?;
            writeln!(f, "        native, device     {}", figures.native_ns)?;
            writeln!(f, "        native, host       {}", figures.native_host_ns)?;
            let WorkFigures { ratio, host_ratio, campanile_rate, native_rate, .. } = figures;
            writeln!(
                f,
                "        {campanile_rate:.1} of {native_rate:.1} {unit}: {ratio:.3} x native in device memory, \
                 {host_ratio:.3} x in host memory"
            )?;
        }
        writeln!(f, "launch  campanile          {}", self.launch_ns)?;
        writeln!(f, "        native             {}   {:.2} x", self.native_launch_ns, self.launch_ratio)?;
        self.moves.iter().try_for_each(|figures| write!(f, "{figures}"))
    }
}

impl fmt::Display for MoveFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, campanile_ns, native_ns, ratio, campanile_rate, native_rate, .. } = self;
        let (name, native) = match what {
            Move::Evict => ("evict", "device to host and zeroed"),
            Move::Restore => ("restore", "host to device"),
            Move::ReadBack => ("read-back", "device to host"),
        };
        writeln!(f, "{name}, memory of the device's own, {} MiB", self.bytes >> 20)?;
        writeln!(f, "        campanile          {campanile_ns}")?;
        writeln!(f, "        native copy        {native_ns}")?;
        writeln!(f, "        {campanile_rate:.1} of {native_rate:.1} GB/s, {native}: {ratio:.3} x native")
    }
}

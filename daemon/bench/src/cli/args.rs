//! What can be said of measuring: `campanile demo` and `campanile bench`.

use std::path::PathBuf;

use clap::Args;
use clap::ValueEnum;

use campanile_daemon::cli::engines::EngineArguments;

/// `campanile demo` and `campanile bench`.
#[derive(Debug, Args)]
pub struct MeasureArguments {
    /// Print figures as JSON.
    #[arg(long)]
    pub json: bool,
    /// Measure shorter, for a first look.
    #[arg(long)]
    pub quick: bool,
    /// Where the picture goes (demo).
    #[arg(long, value_name = "FILE", default_value = "mandelbrot.png")]
    pub picture: PathBuf,
    /// Have two guests and a realtime context compete, and draw which context had the engines into this file (demo).
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// Common settings.
    #[command(flatten)]
    pub engine: EngineArguments,
}

/// What `campanile bench` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Figure {
    /// Round trips, through the doorbell and through the daemon.
    RoundTrips,
    /// How long an innocent process waits when another hangs the GPU.
    Tdr,
    /// Mapping, eviction, overcommit and fragmentation of video memory.
    Mem,
    /// What it costs that dispatches are cut into slices, in each profile.
    Slicing,
    /// Shares of two vGPUs, and how long urgent work waits.
    Sched,
    /// What dirty tracking costs, and how long its queries take.
    Dirty,
    /// A SAXPY, a product of matrices and a copy, through Campanile and by the bare Vulkan driver on the same device.
    Gpu,
    /// Moves of a guest between two daemons: rates, pauses, and what others notice.
    Migrate,
    /// What guests wait for when their daemon is replaced, and when it is killed.
    Continuity,
}

/// `campanile bench`.
#[derive(Debug, Args)]
pub struct BenchArguments {
    /// What to measure.
    #[arg(value_enum, default_value = "round-trips")]
    pub figure: Figure,
    /// How.
    #[command(flatten)]
    pub measure: MeasureArguments,
}

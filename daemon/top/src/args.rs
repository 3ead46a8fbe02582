//! What can be said on the command line.

use std::path::PathBuf;

use clap::Args;

/// Show what the vGPUs of a daemon do, on a terminal.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// The daemon's socket, as in `campanile serve --control PATH` or `--status PATH`.
    #[arg(long, value_name = "PATH", env = "CAMPANILE_CONTROL")]
    pub control: PathBuf,
    /// Milliseconds between two looks.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    pub interval: u64,
    /// Look twice, print what was between, and end.
    #[arg(long)]
    pub once: bool,
    /// Print that as JSON.
    #[arg(long, requires = "once")]
    pub json: bool,
}

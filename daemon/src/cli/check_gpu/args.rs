//! What can be said to `campanile check-gpu`.

use std::path::PathBuf;

use clap::Args;

/// `campanile check-gpu`.
#[derive(Debug, Args)]
pub struct CheckGpuArguments {
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
    /// Vulkan driver manifest (JSON) to use instead of the system's.
    #[arg(long, value_name = "FILE", env = "CAMPANILE_VULKAN_DRIVER")]
    pub vulkan_driver: Option<PathBuf>,
    /// Look only at devices whose name contains this; TEXT#2 is the second of those.
    #[arg(long, value_name = "TEXT")]
    pub vulkan_device: Option<String>,
    /// Measure nothing, and leave out the self-test.
    #[arg(long)]
    pub no_measure: bool,
}

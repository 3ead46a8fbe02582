//! Which processes serve, on the command line.

use std::path::PathBuf;

use clap::Args;

/// Whether the process that is started serves itself.
#[derive(Debug, Clone, Args)]
pub struct ProcessArguments {
    /// Be a small process that starts the daemon, keeps what its VMs need of it, and starts another that goes on with them when it is
    /// killed. Under systemd FileDescriptorStoreMax= and Restart= do that.
    #[arg(long)]
    pub respawn: bool,
    /// Serve each vGPU by a process of its own, started by this one, which answers the operator for all of them: a guest that breaks one is
    /// alone in there. They meet in this folder, which is made for this user alone.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["vram_total", "migrate_listen", "engine_cpus"])]
    pub workers: Option<PathBuf>,
    /// Be the process of this vGPU.
    #[arg(long, value_name = "NAME", hide = true)]
    pub worker: Option<String>,
}

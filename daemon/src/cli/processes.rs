//! Which processes serve, on the command line.

use std::path::PathBuf;

use clap::Args;

use crate::workers::folder::Folder;

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

impl ProcessArguments {
    /// Where a worker finds what those before it have found of the machine.
    pub fn findings(&self) -> Option<PathBuf> {
        Some(self.folder()?.findings())
    }

    /// The file that what has started this worker has locked.
    pub fn starter(&self) -> Option<PathBuf> {
        Some(self.folder()?.starter())
    }

    /// The folder of a worker.
    fn folder(&self) -> Option<Folder> {
        let (folder, _) = self.workers.as_ref().zip(self.worker.as_ref())?;
        Some(Folder::new(folder))
    }
}

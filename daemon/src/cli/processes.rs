//! Which processes serve, on the command line.

use std::path::PathBuf;

use clap::Args;

use crate::config::size::parse_size;
use crate::workers::folder::Folder;

/// Bytes that a worker may have: some times what one has that looks after thousands of guest processes.
const WORKER_MEMORY: u64 = 1 << 30;

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
    /// Memory that each of these processes may have for itself, without that of its VM and its engines; 0 for no limit. One that asks for more
    /// ends, and the next one goes on with its VM.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value_t = WORKER_MEMORY, requires = "workers")]
    pub worker_memory: u64,
    /// Be the process of this vGPU.
    #[arg(long, value_name = "NAME", hide = true)]
    pub worker: Option<String>,
}

impl ProcessArguments {
    /// Bytes that a worker may have for itself.
    pub fn memory(&self) -> Option<u64> {
        self.worker.as_ref().map(|_| self.worker_memory).filter(|bytes| *bytes > 0)
    }

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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::ProcessArguments;
    use super::WORKER_MEMORY;

    #[test]
    fn a_worker_alone_has_a_limit_of_memory_and_none_where_that_is_0() {
        let memory = |worker: Option<&str>, worker_memory| {
            let (worker, workers) = (worker.map(str::to_owned), Some(PathBuf::from("/run/w")));
            ProcessArguments { respawn: false, workers, worker_memory, worker }.memory()
        };
        assert_eq!(memory(None, WORKER_MEMORY), None, "it starts workers");
        assert_eq!(memory(Some("a"), WORKER_MEMORY), Some(1 << 30));
        assert_eq!(memory(Some("a"), 0), None);
    }
}

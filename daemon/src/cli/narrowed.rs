//! What is left of the options of `campanile serve` in a worker.

use anyhow::Context;

use super::args::ServeArguments;
use crate::file_lock::FileLock;
use crate::operator::http::address::Address;
use crate::workers::folder::Folder;

/// Narrows the options of a daemon to those of one worker: its sockets for the operator are in the folder of workers, and its keeper is
/// this program.
pub(super) fn narrow(arguments: &mut ServeArguments) {
    let (Some(vgpu), Some(folder)) = (&arguments.processes.worker, &arguments.processes.workers) else {
        return;
    };
    let folder = Folder::new(folder);
    arguments.processes.respawn = true;
    arguments.schedule.get_or_insert_with(|| folder.schedule());
    arguments.control = Some(folder.control(vgpu));
    arguments.control_user = Vec::new();
    (arguments.status, arguments.web) = (None, None);
    if arguments.metrics.is_some() {
        arguments.metrics = Some(Address::Unix(folder.metrics(vgpu)));
    }
    // Reports are numbered by folder.
    if let Some(state_dir) = &mut arguments.engine.state_dir {
        state_dir.push(folder.name(vgpu));
    }
}

/// The lock of a worker's keeper.
///
/// # Errors
/// There is another one.
pub(super) fn lock(arguments: &ServeArguments) -> anyhow::Result<Option<FileLock>> {
    let (Some(vgpu), Some(folder)) = (&arguments.processes.worker, &arguments.processes.workers) else {
        return Ok(None);
    };
    let locked = FileLock::take(&Folder::new(folder).keeper(vgpu));
    Ok(Some(locked.with_context(|| format!("the worker of vGPU {vgpu}"))?))
}

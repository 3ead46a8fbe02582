//! Bringing up the process that starts workers.

use std::fs;
use std::io;
use std::mem;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use campanile_host_gpu::outside;

use super::board::Board;
use super::desk::Desk;
use super::folder::Folder;
use super::orders;
use super::plan::Plan;
use super::supervisor::Ended;
use super::supervisor::Spec;
use super::supervisor::Supervisor;
use super::switchboard::AllMetrics;
use super::switchboard::Known;
use super::switchboard::Switchboard;
use super::switchboard::Wiring;
use crate::confine::Confinement;
use crate::confine::confiner::Confiner;
use crate::confine::roles::Peering;
use crate::confine::roles::Reach;
use crate::confine::roles::Setting;
use crate::fd_store;
use crate::file_lock::FileLock;
use crate::host::doors::Doors;
use crate::host::error::HostError;
use crate::host::options::HostOptions;
use crate::host::source::Source;
use crate::operator::console::Console;
use crate::operator::metrics::scrapes::Scrapes;
use crate::service_manager;

/// Why workers cannot be started, or not be looked after.
#[derive(Debug, thiserror::Error)]
pub enum WorkersError {
    /// The folder cannot be used, or another process uses it.
    #[error("--workers {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// One does not serve.
    #[error("starting workers")]
    Start(#[source] io::Error),
    /// What asks for them cannot be let in.
    #[error(transparent)]
    Doors(#[from] HostError),
    /// They go on, and this process does not.
    #[error("looking after workers")]
    Run(#[source] io::Error),
}

/// Starts a worker for each vGPU of these options and for those that the operator has made, and looks after them until all have
/// ended, or another program is to do so.
///
/// # Errors
/// They cannot be started, or the operator cannot be let in.
pub fn serve(plan: Plan, options: &HostOptions, source: Arc<dyn Source>) -> Result<Ended, WorkersError> {
    let folder = plan.folder.clone();
    let failed = |source| WorkersError::Folder { path: folder.path().to_owned(), source };
    folder.make(plan.user).map_err(failed)?;
    let _lock = FileLock::take(&folder.starter()).map_err(failed)?;
    let (known, specs) = known(&folder, options, &*source).map_err(failed)?;
    let kept = folder.kept().map_err(failed)?;
    if kept.is_empty() {
        // The machine is asked anew where no worker is there to know it.
        forget(&folder.findings()).map_err(failed)?;
    }
    let board = Arc::new(Board::default());
    let (orders, inbox) = orders::pair().map_err(WorkersError::Run)?;
    let confiner = Arc::new(Confiner::new(options.confinement));
    if options.confinement == Confinement::On {
        outside::start().map_err(WorkersError::Run)?;
    }
    let wiring = Wiring {
        folder: folder.clone(),
        board: Arc::clone(&board),
        desk: Desk::start().map_err(WorkersError::Run)?,
        orders,
        source,
        confiner: Arc::clone(&confiner),
        program: plan.program.clone(),
    };
    let count = known.len();
    let supervisor = Supervisor::start(plan, (specs, kept), board, inbox).map_err(WorkersError::Start)?;
    for name in fd_store::drop_others() {
        log::warn!("descriptor store: {name}: of no worker; closed");
    }
    let switchboard = Arc::new(Switchboard::new(wiring, options.clone(), known));
    let console: Arc<dyn Console> = Arc::clone(&switchboard) as _;
    // The desk asks for them, and nothing else reaches out.
    let reach = |role| Reach::of(role, Setting { state_dir: None, peering: Peering::None });
    let doors = Doors::open(options, &console, Scrapes::new(AllMetrics(switchboard)), &confiner, reach);
    let doors = match doors {
        Ok(doors) => doors,
        Err(error) => {
            supervisor.abandon().map_err(WorkersError::Run)?;
            return Err(error.into());
        }
    };
    log::info!("{}: serving {count} vGPUs, each by a worker", folder.path().display());
    service_manager::say_ready();
    let ended = supervisor.run().map_err(WorkersError::Run);
    match ended {
        // Clients that wait for a worker are not waited for: the system closes all when the program is executed.
        Ok(Ended::Replaced(_)) => mem::forget(doors),
        _ => drop(doors),
    }
    ended
}

fn forget(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// All vGPUs: those of the configuration, and those that the operator has made since.
fn known(folder: &Folder, options: &HostOptions, source: &dyn Source) -> io::Result<(Vec<Known>, Vec<Spec>)> {
    let mut known: Vec<Known> =
        options.vgpus.iter().map(|vgpu| Known { options: vgpu.clone(), is_made: false }).collect();
    let mut specs: Vec<Spec> = options.vgpus.iter().map(|vgpu| (vgpu.name.clone(), None)).collect();
    for spec in folder.made()? {
        match source.parse(&spec) {
            Ok(vgpu) if specs.iter().any(|(name, _)| *name == vgpu.name) => folder.forget(&vgpu.name),
            Ok(vgpu) => {
                specs.push((vgpu.name.clone(), Some(spec)));
                known.push(Known { options: vgpu, is_made: true });
            }
            Err(why) => log::error!("a vGPU that was made at run time: {why}"),
        }
    }
    Ok((known, specs))
}

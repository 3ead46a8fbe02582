//! Bringing up the process that starts workers.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use campanile_host_gpu::outside;

use super::board::Board;
use super::desk::Desk;
use super::folder::Folder;
use super::orders;
use super::supervisor::Ended;
use super::supervisor::Plan;
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
    let _lock = folder.lock().map_err(failed)?;
    let (known, specs) = known(&folder, options, &*source).map_err(failed)?;
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
    let supervisor = Supervisor::start(plan, specs, board, inbox).map_err(WorkersError::Start)?;
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
    service_manager::say_ready();
    let ended = supervisor.run().map_err(WorkersError::Run);
    drop(doors);
    ended
}

/// A vGPU, and the words in which the operator has made it, if he has.
type Spec = (String, Option<String>);

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

//! The ways of vGPUs to other daemons, and from them.

use std::sync::Arc;

use super::error::HostError;
use super::options::HostOptions;
use super::options::VgpuOptions;
use crate::confine::confiner::Confiner;
use crate::confine::roles::Reach;
use crate::confine::roles::Role;
use crate::confine::starter::Starter;
use crate::intake::Intake;
use crate::migration::channel::connect::Door;
use crate::migration::endpoint::Endpoint;
use crate::migration::error::MigrationError;
use crate::migration::file::side::SideFiles;
use crate::migration::source::departure::Departure;
use crate::migration::target::arrivals::Arrivals;
use crate::migration::target::arriving::Arriving;
use crate::vgpu::config::Config;

/// One vGPU's ways in and out.
pub(super) fn make_endpoint(
    options: &HostOptions,
    vgpu: &VgpuOptions,
    config: &Arc<Config>,
    starter: Option<&Starter>,
) -> Result<Endpoint, MigrationError> {
    let arriving = Arriving::of(config, vgpu.migrate_from.clone(), starter);
    let settings = &options.migration;
    let folder = settings.side_files.as_deref();
    let side_files = folder.map(|folder| SideFiles::open(folder, settings.keep_side_files)).transpose()?;
    let departure = Arc::new(Departure::new(vgpu.name.clone(), settings.clone())?);
    let listens = options.listening.of(vgpu).is_some();
    Ok(Endpoint::new(departure, Arc::new(arriving), side_files, vgpu.restore.clone(), listens))
}

/// Lets others bring their vGPUs, where the operator says so.
pub(super) fn open_door(
    options: &HostOptions,
    vgpus: Vec<Arc<Arriving>>,
    intake: &Arc<Intake>,
    confiner: &Confiner,
    reach: &Reach,
) -> Result<Option<Arc<Arrivals>>, HostError> {
    let Some(at) = options.listens() else { return Ok(None) };
    let door = Door::open(at, options.migration.identity.as_ref())?;
    let serve = || Arrivals::serve(door, vgpus, options.migration.timeouts, Arc::clone(intake));
    let arrivals = Arc::new(confiner.within(Role::Arrivals, reach, serve)??);
    if let Some(address) = arrivals.address() {
        log::info!("migrations to here: {address}");
    }
    Ok(Some(arrivals))
}

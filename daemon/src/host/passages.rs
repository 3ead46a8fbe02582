//! The ways of vGPUs to other daemons, and from them.

use std::sync::Arc;

use super::error::HostError;
use super::options::HostOptions;
use super::options::VgpuOptions;
use crate::migration::bundle::stage::Shape;
use crate::migration::channel::connect::Door;
use crate::migration::error::MigrationError;
use crate::migration::file::side::SideFiles;
use crate::migration::passage::Passage;
use crate::migration::source::departure::Departure;
use crate::migration::target::arrivals::Arrivals;
use crate::migration::target::arriving::Arriving;
use crate::session::config::Config;
use crate::session::save::snapshot::immutable_of;
use crate::session::saved::immutable::Immutable;
use crate::vidmm::vram::VideoMemory;

/// One vGPU's ways in and out.
pub(super) fn make_passage(
    options: &HostOptions,
    vgpu: &VgpuOptions,
    config: &Arc<Config>,
) -> Result<Passage, MigrationError> {
    let quota = vgpu.quota().max;
    let video = VideoMemory::file_bytes_of(vgpu.vram_bytes);
    let evicted = VideoMemory::store_bytes(vgpu.vram_bytes, quota);
    // What was evicted once may still lie where it lay, at the head of it.
    let most = quota.saturating_add(256 << 20).min(evicted);
    let here = immutable_of(config);
    let arriving = Arriving {
        name: vgpu.name.clone(),
        shape: Shape { lengths: [video, evicted], limits: [video, most] },
        check: Box::new(move |bytes| {
            let saved: Immutable = ciborium::from_reader(bytes)
                .map_err(|error| format!("its immutable data cannot be read: {error}"))?;
            here.check(&saved).map_err(|mismatch| mismatch.to_string())
        }),
    };
    let settings = &options.migration;
    let folder = settings.side_files.as_deref();
    let side_files = folder.map(|folder| SideFiles::open(folder, settings.keep_side_files)).transpose()?;
    let departure = Arc::new(Departure::new(vgpu.name.clone(), settings.clone())?);
    let listens = options.migrate_listen.is_some();
    Ok(Passage::new(departure, Arc::new(arriving), side_files, vgpu.restore.clone(), listens))
}

/// Lets others bring their vGPUs, where the operator says so.
pub(super) fn open_door(
    options: &HostOptions,
    passages: &[Arc<Passage>],
) -> Result<Option<Arc<Arrivals>>, HostError> {
    let Some(at) = &options.migrate_listen else { return Ok(None) };
    let door = Door::open(at, options.migration.identity.as_ref())?;
    let vgpus = passages.iter().map(|passage| Arc::clone(&passage.arriving)).collect();
    let arrivals = Arc::new(Arrivals::serve(door, vgpus, options.migration.patience)?);
    if let Some(address) = arrivals.address() {
        log::info!("migrations to here: {address}");
    }
    for passage in passages {
        passage.open(Arc::clone(&arrivals));
    }
    Ok(Some(arrivals))
}

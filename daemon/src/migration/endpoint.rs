//! Where one vGPU comes and goes: what its front end of the daemon needs of all this.

use std::os::fd::AsFd;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::OnceLock;

use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::outside;

use super::error::MigrationError;
use super::file::read;
use super::file::side::SideFiles;
use super::handed::Becomes;
use super::handed::HandedDevice;
use super::handed::Interrupted;
use super::id::BundleId;
use super::local_fill::Contents;
use super::local_fill::fill;
use super::local_fill::lift_pages;
use super::lock::locked;
use super::pages::PAGE;
use super::pages::PageSet;
use super::quiesce::Quiesce;
use super::source::departing::Departing;
use super::source::departure::Departure;
use super::stage::Staged;
use super::state;
use super::state::State;
use super::target::arrivals::Arrivals;
use super::target::arrivals::Claim;
use super::target::arriving::Arriving;
use super::tracked::TrackedMemory;
use crate::ledger::log::Key;
use crate::ledger::read::EVICTED;
use crate::ledger::read::LOCAL;
use crate::ledger::read::VRAM;
use crate::ledger::read::code_of;
use crate::vgpu::config::Config;
use crate::vgpu::engines::kept_code::KeptFile;
use crate::vgpu::memory::vidmm::device_places::were_in_use;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::session::Session;
use crate::vgpu::state::restore::install;
use crate::vgpu::state::restore::install::drop_claims;
use crate::vgpu::state::restore::install::kept_code;
use crate::vgpu::state::saved::SavedSession;

/// The right to run with memories that came from elsewhere.
#[derive(Debug)]
#[must_use]
pub enum Right {
    /// Of a bundle that a source sent here.
    Claim(Claim),
    /// Of a side file.
    SideFile(SideFiles, BundleId),
    /// Of the file of a device that was taken away.
    File(Arc<Endpoint>, PathBuf),
}

impl Right {
    /// What was compiled for it before it was here. The calling thread waits until the process that did is gone.
    pub fn take_code(&self) -> Vec<KeptFile> {
        let Self::Claim(claim) = self else { return Vec::new() };
        // For the first of the compute engines: linked ones compile anew.
        let engine = EngineAddress::new(0, NodeKind::Compute).index();
        let engine = u32::try_from(engine).unwrap_or_default();
        claim.take_code().map(|file| KeptFile { engine, file }).into_iter().collect()
    }

    /// The guest's rings begin: takes the right.
    ///
    /// # Errors
    /// The source runs again, or that cannot be known: it must not run here.
    pub fn start(self) -> Result<(), MigrationError> {
        match self {
            Self::Claim(claim) => claim.start(),
            Self::SideFile(files, bundle) => files.take(bundle),
            // The one that removes it has the device: no other begins as it.
            Self::File(endpoint, file) => {
                let named = file.clone();
                let removed = outside::run(move || std::fs::remove_file(named)).and_then(|removed| removed);
                removed.map_err(|why| MigrationError::State(format!("{}: {why}", file.display())))?;
                endpoint.forget_beginning();
                Ok(())
            }
        }
    }
}

/// What a session begins as.
#[derive(Debug, Clone)]
struct Beginning {
    file: PathBuf,
    /// It is what one device was before it was taken away from its VM: no other is to begin as it.
    is_detached: bool,
}

/// How a session begins that begins as a snapshot.
#[derive(Debug)]
pub enum Begins {
    /// It runs at once.
    Running,
    /// Frozen, until the rings run that a daemon before this one has served.
    Frozen,
    /// As a device that was taken away, in this file, which is to be removed when it is the device again.
    Detached(PathBuf),
}

/// A snapshot that was read, or a device that another daemon had: its memories, and its state.
#[derive(Debug)]
pub struct Snapshot {
    /// The memories.
    pub memories: [Staged; 2],
    /// The state.
    pub state: Becomes<State>,
    /// How its session begins.
    pub begins: Begins,
    /// What drivers have compiled for it.
    pub code: Vec<KeptFile>,
    /// Where its daemon was killed, what of the state does not hold.
    pub interrupted: Interrupted,
}

/// One vGPU's ways in and out; outlives its sessions.
#[derive(Debug)]
pub struct Endpoint {
    /// The way out.
    pub departure: Arc<Departure>,
    /// For snapshots.
    pub quiesce: Quiesce,
    /// What it can take.
    pub arriving: Arc<Arriving>,
    arrivals: OnceLock<Arc<Arrivals>>,
    side_files: Option<SideFiles>,
    restore: Mutex<Option<Beginning>>,
    handed: Mutex<Option<HandedDevice>>,
    listens: bool,
}

impl Endpoint {
    /// Of a vGPU that is like `arriving`; where `restore`, its first session begins as that snapshot. `listens`: others
    /// can reach this daemon, soon if not now.
    pub fn new(
        departure: Arc<Departure>,
        arriving: Arc<Arriving>,
        side_files: Option<SideFiles>,
        restore: Option<PathBuf>,
        listens: bool,
    ) -> Self {
        let restore = restore.map(|file| Beginning { file, is_detached: false });
        let (arrivals, restore) = (OnceLock::new(), Mutex::new(restore));
        let (quiesce, handed) = (Quiesce::default(), Mutex::default());
        Self { departure, quiesce, arriving, arrivals, side_files, restore, handed, listens }
    }

    /// Others can reach this daemon.
    pub fn open(&self, arrivals: Arc<Arrivals>) {
        let _twice = self.arrivals.set(arrivals);
    }

    /// Whether there is any way in or out.
    pub fn moves(&self) -> bool {
        self.side_files.is_some() || self.listens || self.departure.has_peer()
    }

    /// A session begins, or has become another: from here on this is what moves.
    ///
    /// # Errors
    /// Its immutable data cannot be written.
    pub fn attach(&self, session: &Session) -> Result<(), MigrationError> {
        let mut immutable = Vec::new();
        ciborium::into_writer(&session.immutable(), &mut immutable).map_err(std::io::Error::other)?;
        let memories = session.memory().trackers().map(|tracker| Arc::new(TrackedMemory::new(tracker)) as _);
        let video = session.video_memory();
        let files = [video.file().try_clone()?, video.evicted_file().try_clone()?];
        let code = kept_code(session)?;
        let ledger = &session.config().ledger;
        ledger.keep(VRAM, files[0].as_fd());
        ledger.keep(EVICTED, files[1].as_fd());
        for kept in &code {
            ledger.keep(&code_of(kept.engine), kept.file.as_fd());
        }
        if let Some(local) = &session.config().local {
            ledger.keep(LOCAL, local.descriptor());
            ledger.put(Key::Local, &local.passport);
        }
        let local = video.device().map(|device| Arc::clone(device.reader()));
        let kernels = install::kernels(session);
        self.departure.attach(Departing { immutable, memories, files: Some(files), code, kernels, local });
        Ok(())
    }

    /// Takes the memories that a state names: what a source has sent here, or a side file.
    ///
    /// # Errors
    /// There are none, or they do not fit.
    pub fn take(&self, bundle: BundleId) -> Result<([Staged; 2], Right), MigrationError> {
        if let Some(arrivals) = self.arrivals.get() {
            match arrivals.claim(&self.arriving.name, bundle) {
                Ok(mut claim) => {
                    let memories = claim.take_memories();
                    let none = || MigrationError::State("its memories were taken".to_owned());
                    return Ok((memories.ok_or_else(none)?, Right::Claim(claim)));
                }
                Err(error) if self.side_files.is_none() => return Err(error),
                Err(_) => {}
            }
        }
        let nowhere = || MigrationError::State(format!("nothing of bundle {bundle} has come here"));
        let files = self.side_files.clone().ok_or_else(nowhere)?;
        let path = files.path(bundle);
        if !path.exists() {
            return Err(nowhere());
        }
        let (_, stage) = read::load(&path, &self.arriving, Some(bundle))?;
        Ok((stage.memories()?, Right::SideFile(files, bundle)))
    }

    /// The next session begins as the device that was taken away, in this file.
    ///
    /// # Errors
    /// There is no such file, or it does not fit this vGPU.
    pub fn begin_as(&self, file: &Path) -> Result<(), MigrationError> {
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(MigrationError::State(format!("{}: there is no such file", file.display())));
        }
        read::examine(file, &self.arriving)
            .map_err(|why| MigrationError::State(format!("{}: {why}", file.display())))?;
        *locked(&self.restore) = Some(Beginning { file: file.to_owned(), is_detached: true });
        Ok(())
    }

    /// The next session begins as none. Whether it would have begun as a device that was taken away.
    pub fn forget_beginning(&self) -> bool {
        locked(&self.restore).take_if(|beginning| beginning.is_detached).is_some()
    }

    /// The next session begins as the device that the daemon before this one had.
    pub fn begin_as_handed(&self, device: HandedDevice) {
        *locked(&self.handed) = Some(device);
    }

    /// The snapshot that the next session begins as: once, or, as a device that was taken away, until a guest speaks to it.
    ///
    /// # Errors
    /// It cannot be read, or does not fit.
    pub fn take_snapshot(&self) -> Result<Option<Snapshot>, MigrationError> {
        if let Some(mut device) = locked(&self.handed).take() {
            let code = std::mem::take(&mut device.code);
            let interrupted = std::mem::take(&mut device.interrupted);
            let (memories, state) = device.open(&self.arriving)?;
            return Ok(Some(Snapshot { memories, state, begins: Begins::Frozen, code, interrupted }));
        }
        let mut restore = locked(&self.restore);
        let Some(Beginning { file, is_detached }) = restore.clone() else { return Ok(None) };
        if !is_detached {
            *restore = None;
        }
        drop(restore);
        let (contents, stage) = read::load(&file, &self.arriving, None)?;
        let none = || MigrationError::State(format!("{}: there is no state in it", file.display()));
        let state = state::decode(&contents.state.ok_or_else(none)?);
        let state = state.map_err(|error| MigrationError::State(error.to_string()))?;
        let begins = if is_detached { Begins::Detached(file) } else { Begins::Running };
        Ok(Some(Snapshot {
            memories: stage.memories()?,
            state: Becomes::Whole(state),
            begins,
            code: Vec::new(),
            interrupted: Interrupted::default(),
        }))
    }
}

/// Makes received memories a session's own, which is about to become that of `state`; all that came counts as written (DIRTY-54).
///
/// # Errors
/// They cannot be mapped, the session is in use, or a device whose own its local memory is does not take what has come for that.
pub fn adopt(
    session: &mut Session,
    config: &Config,
    memories: [Staged; 2],
    contents: Contents,
    state: &mut SavedSession,
) -> Result<(), MigrationError> {
    let [vram, evicted] = memories;
    let limit = config.account.quota().max;
    let mut memory = VideoMemory::filled(vram.file, evicted.file, config.vram_bytes, limit, config.tracking)?;
    for run in vram.received.runs() {
        were_in_use(&mut memory, run.start * PAGE, (run.end - run.start) * PAGE);
    }
    mark(memory.tracker(), &vram.received);
    mark(memory.evicted_tracker(), &evicted.received);
    session.adopt_memory(memory).map_err(|error| MigrationError::State(error.to_string()))?;
    if contents == Contents::InFile {
        lift_pages(session, state)?;
    }
    let filled = fill(session, contents, &vram.received, state);
    if filled.is_err() {
        drop_claims(session);
    }
    filled
}

fn mark(tracker: &Tracker, received: &PageSet) {
    for run in received.runs() {
        tracker.mark(run.start * PAGE, (run.end - run.start) * PAGE);
    }
}

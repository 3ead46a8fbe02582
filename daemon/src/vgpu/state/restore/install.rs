//! A session takes the data of another one for its own.

use super::builder::Builder;
use super::builder::Built;
use super::invalid::ages;
use crate::ids::GuestProcess;
use crate::vgpu::config::Config;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::engines::kept_code::KeptFile;
use crate::vgpu::engines::kernels::kernels_of;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::memory::save_areas::Areas;
use crate::vgpu::memory::segments::Segments;
use crate::vgpu::memory::vidmm::allocations::TakeOverError;
use crate::vgpu::memory::vidmm::device_memory;
use crate::vgpu::memory::vidmm::in_device::Claimed;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::memory::window::Window;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::kernel_board::KernelBoard;
use crate::vgpu::power::d3::State;
use crate::vgpu::power::freeze::Freeze;
use crate::vgpu::session::Session;
use crate::vgpu::state::save::snapshot::immutable_of;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::immutable::Immutable;
use crate::vgpu::state::saved::immutable::Mismatch;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::vm::Vm;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::memory::page_table::writer::PageTables;
use log::Level;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Why state does not become that of a session. Nothing of it was applied.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Something was asked of the session already (LM-31).
    #[error("the vGPU is in use")]
    InUse,
    /// The state is that of another kind of vGPU (LM-33).
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// It cannot be: what, and why.
    #[error("the state cannot be: {0}")]
    Invalid(String),
    /// Its memory cannot be had here.
    #[error(transparent)]
    Memory(#[from] TakeOverError),
    /// Memory or descriptors of this host could not be had.
    #[error("taking over the state")]
    System(#[from] io::Error),
}

/// Characters of a reason that are kept.
const MAX_REASON: usize = 1000;

/// Whether state of a vGPU like `saved` fits that of this configuration; says in the log what does not (LM-33).
///
/// # Errors
/// The check that failed.
pub fn check_immutable(config: &Config, saved: &Immutable) -> Result<(), Mismatch> {
    let checked = immutable_of(config).check(saved);
    if let Err(mismatch) = &checked {
        log::error!("{}: {mismatch}", config.name);
    }
    checked
}

/// Logs what is wrong, for the operator of this host.
fn refuse(config: &Config, error: RestoreError) -> RestoreError {
    log::error!("{}: {error}", config.name);
    error
}

/// Takes a place in local memory of a device's own for contents that come: see [`Allocations::claim_local`](crate::vgpu::memory::vidmm::allocations::Allocations::claim_local).
pub fn claim_local(session: &mut Session, offset: u64, length: u64) -> Option<Claimed> {
    session.vm.memory.allocations.claim_local(offset, length)
}

/// The kernels of the session, as they come and go, for a thread that moves it.
pub fn kernels(session: &Session) -> Arc<KernelBoard> {
    Arc::clone(&session.vm.objects.kernel_board)
}

/// What drivers have compiled for the session, for another daemon.
///
/// # Errors
/// No descriptor could be had.
pub fn kept_code(session: &Session) -> io::Result<Vec<KeptFile>> {
    let engines = &session.vm.engines;
    let logs = (0..).zip(engines.addresses()).filter_map(|(engine, at)| {
        let log = engines[at.index()].kept.as_ref()?.log();
        Some((engine, log))
    });
    logs.map(|(engine, log)| Ok(KeptFile { engine, file: log.file().try_clone()? })).collect()
}

/// Goes on with what drivers have compiled for the same VM under a daemon before this one, before any engine begins. What is none is
/// left: its engine compiles anew.
pub fn adopt_code(session: &mut Session, code: Vec<KeptFile>) {
    let vm = &mut session.vm;
    for KeptFile { engine, file } in code {
        let at = vm.engines.addresses().nth(usize::try_from(engine).unwrap_or(usize::MAX));
        let Some(own) = at.and_then(|at| vm.engines[at.index()].kept.as_mut()) else { continue };
        if let Err(error) = own.adopt(file) {
            log::warn!("{}: what engine {engine} has compiled is lost: {error}", vm.config.name);
        }
    }
}

/// What was taken for contents that come is not needed: no state takes it.
pub fn drop_claims(session: &mut Session) {
    device_memory::drop_claims(&mut session.vm.memory.allocations);
}

impl Session {
    /// Whether nothing was ever asked of it.
    pub fn is_fresh(&self) -> bool {
        self.vm.is_fresh
    }

    /// Takes memory that was filled elsewhere for its own, before its state is restored. What was shown the memory
    /// before sees what it was.
    ///
    /// # Errors
    /// The session is in use, or the memory has another size.
    pub fn adopt_memory(&mut self, memory: VideoMemory) -> Result<(), RestoreError> {
        if !self.vm.is_fresh || !self.vm.memory.allocations.is_empty() {
            return Err(RestoreError::InUse);
        }
        if memory.length() != self.vm.config.vram_bytes {
            let text =
                format!("{} bytes of video memory, not {}", memory.length(), self.vm.config.vram_bytes);
            return Err(RestoreError::Invalid(text));
        }
        // What was to be zeroed still is.
        Lifecycle::of(&mut self.vm).abandon_moves();
        self.vm.memory.allocations.adopt(memory);
        Ok(())
    }

    /// Becomes the session whose data this is, standing still until [`Self::thaw`] (LM-31, LM-32). Its memory is there
    /// already. Guest memory may be shown before or after.
    ///
    /// # Errors
    /// What is wrong with the data, or why it cannot be had here; the session is as it was.
    pub fn restore(&mut self, saved: &SavedSession) -> Result<(), RestoreError> {
        let restored = self.try_restore(saved);
        if restored.is_err() {
            drop_claims(self);
        }
        restored
    }

    fn try_restore(&mut self, saved: &SavedSession) -> Result<(), RestoreError> {
        if !self.vm.is_fresh || !self.vm.memory.allocations.is_empty() {
            return Err(RestoreError::InUse);
        }
        let mut tables = PageTables::new().map_err(io::Error::other)?;
        let areas = Areas::new(&mut tables).map_err(io::Error::other)?;
        let mut builder = Builder::new(self, saved, tables, areas);
        builder.build().map_err(|invalid| refuse(&self.vm.config, RestoreError::Invalid(invalid)))?;
        let fences = builder.fences()?;
        let fences = fences.ok_or_else(|| {
            refuse(
                &self.vm.config,
                RestoreError::Invalid("a native fence has no name that it could have".to_owned()),
            )
        })?;
        let built = builder.finish(fences);
        self.install(built, saved).map_err(|error| refuse(&self.vm.config, error))
    }

    /// All that can fail has not.
    fn install(&mut self, built: Built, saved: &SavedSession) -> Result<(), RestoreError> {
        // The one step that can: whole, or not at all.
        let (memory, waits) = (built.memory, built.waits);
        let allocations = memory.allocations.into_iter().map(|(id, moved)| (AllocationId(id), moved));
        self.vm.memory.allocations.take_over(allocations.collect())?;
        let now = clock::now();
        self.vm.is_fresh = false;
        self.vm.freeze = Freeze::Frozen { is_restored: true };
        // Also where the operator had sent it to D3 before it had anything (LM-56).
        self.power.state = State::D0;
        self.vm.memory.blobs = memory.blobs;
        self.vm.memory.segments = Segments::with_unknown(memory.segments, memory.segment_charges);
        self.vm.fences = built.fences;
        self.vm.memory.tables = memory.tables;
        self.vm.memory.areas = memory.areas;
        self.vm.memory.residency.shown = memory.shown;
        self.vm.objects.kernel_bytes = built.kernel_bytes;
        self.vm.objects.processes = built.processes;
        for (name, source) in kernels_of(&self.vm.objects) {
            self.vm.objects.kernel_board.put(name, source.clone());
        }
        self.vm.doorbells.drains = waits.drains;
        self.vm.objects.due = waits.due;
        self.vm.memory.retired = waits.retired;
        (self.away.kept, self.away.contexts) = (memory.kept, built.names);
        for (slot, engine) in self.vm.engines.iter_mut().zip(built.engines) {
            engine.put_into(slot, now);
        }
        for waiter in waits.residents {
            self.vm.memory.residency.add_waiter(waiter);
        }
        let paging = self
            .vm
            .objects
            .processes
            .iter()
            .filter_map(|(of, process)| Some((*of, process.device.as_ref()?)));
        let paging = paging.filter(|(_, device)| device.paging.waiting().len() > 0);
        self.vm.memory.residency.paging = paging.map(|(of, _)| of).collect();
        match &mut self.vm.memory.window {
            Window::Awaited(waiting) => waiting.extend(waits.maps),
            Window::Open | Window::Never => self.vm.memory.residency.deferred.extend(waits.maps),
        }
        let why: Option<String> = saved.quarantine.as_ref().map(|why| why.chars().take(MAX_REASON).collect());
        self.vm.config.standing.take_over(&ages(&saved.adapter_resets), why.as_deref(), now);
        fill_new_areas(&mut self.vm, memory.new_areas);
        introduce_contexts(&mut self.vm);
        Devices::of(&mut self.vm).find_guest_pages();
        self.vm.journal.line(
            Level::Info,
            format_args!("took over the state of {} guest processes", self.vm.objects.processes.len()),
        );
        Ok(())
    }
}

/// Initialises save areas that the state did not have. Where there is no room for one, which the store for what is
/// evicted sees to, a buffer that needs it ends with a fault.
fn fill_new_areas(vm: &mut Vm, areas: BTreeMap<AllocationId, Vec<(u64, u64)>>) {
    for (id, words) in areas {
        match vm.memory.allocations.initialise(id, vm.memory.residency.epoch, &words) {
            Ok(()) => vm.memory.remap(id, &mut vm.journal),
            Err(error) => vm.journal.line(Level::Error, format_args!("a new save area: {error}")),
        }
    }
}

/// Tells the engines' places how each context is scheduled.
fn introduce_contexts(vm: &mut Vm) {
    let mut all: Vec<(EngineAddress, ContextIndex, (GuestProcess, ContextHandle))> = Vec::new();
    for (of, process) in &vm.objects.processes {
        let contexts = process.device.iter().flat_map(|device| device.contexts.iter());
        all.extend(contexts.filter_map(|(handle, it)| Some((it.at, it.entry?, (*of, handle)))));
    }
    for (at, entry, owner) in all {
        Submission::of(vm).introduce_context(at, entry, owner);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use super::KeptFile;
    use super::adopt_code;
    use super::kept_code;
    use super::kernels;
    use crate::vgpu::config::Config;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::session;

    /// Each engine that keeps code, and which file has it.
    fn files(session: &Session) -> Vec<(u32, u64)> {
        let kept = kept_code(session).unwrap();
        kept.iter().map(|kept| (kept.engine, kept.file.metadata().unwrap().ino())).collect()
    }

    #[test]
    fn what_was_compiled_goes_over_to_the_engine_in_the_same_place() {
        let config = Arc::new(Config { code_mib: 3, engines: 2, ..config() });
        let [before, mut after] = [session(&config), session(&config)];
        let kept = files(&before);
        assert_eq!(kept.len(), 2, "one for each compute engine");
        assert_ne!(files(&after), kept);
        adopt_code(&mut after, kept_code(&before).unwrap());
        assert_eq!(files(&after), kept);
        let unknown = KeptFile { engine: 99, ..kept_code(&before).unwrap().remove(0) };
        adopt_code(&mut after, vec![unknown]);
        assert_eq!(files(&after), kept, "there is no such engine");
    }

    #[test]
    fn the_kernels_that_are_moved_are_those_of_the_session() {
        let session = session(&Arc::new(config()));
        assert!(Arc::ptr_eq(&kernels(&session), &session.vm.objects.kernel_board));
    }
}

//! A session takes the data of another one for its own.

use super::builder::Builder;
use super::builder::Built;
use super::invalid::ages;
use crate::vgpu::memory::save_areas::Areas;
use crate::vgpu::memory::segments::Segments;
use crate::vgpu::memory::vidmm::allocations::TakeOverError;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::memory::window::Window;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::power::d3::Power;
use crate::vgpu::power::freeze::Freeze;
use crate::vgpu::session::Session;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::immutable::Immutable;
use crate::vgpu::state::saved::immutable::Mismatch;
use crate::vgpu::submission::buffers::Submission;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_protocol::handle::Handle;
use log::Level;
use std::collections::BTreeMap;
use std::io;

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

impl Session {
    /// Whether state of a vGPU like `saved` fits this one; says in the log what does not (LM-33).
    ///
    /// # Errors
    /// The check that failed.
    pub fn check_immutable(&self, saved: &Immutable) -> Result<(), Mismatch> {
        let checked = self.immutable().check(saved);
        if let Err(mismatch) = &checked {
            log::error!("{}: {mismatch}", self.rooms.config.name);
        }
        checked
    }

    /// Whether nothing was ever asked of it.
    pub fn is_fresh(&self) -> bool {
        self.rooms.is_fresh
    }

    /// Takes memory that was filled elsewhere for its own, before its state is restored. What was shown the memory
    /// before sees what it was.
    ///
    /// # Errors
    /// The session is in use, or the memory has another size.
    pub fn adopt_memory(&mut self, memory: VideoMemory) -> Result<(), RestoreError> {
        if !self.rooms.is_fresh || !self.rooms.memory.allocations.is_empty() {
            return Err(RestoreError::InUse);
        }
        if memory.length() != self.rooms.config.vram_bytes {
            let text =
                format!("{} bytes of video memory, not {}", memory.length(), self.rooms.config.vram_bytes);
            return Err(RestoreError::Invalid(text));
        }
        self.rooms.memory.allocations.adopt(memory);
        Ok(())
    }

    /// Becomes the session whose data this is, standing still until [`Self::thaw`] (LM-31, LM-32). Its memory is there
    /// already. Guest memory may be shown before or after.
    ///
    /// # Errors
    /// What is wrong with the data, or why it cannot be had here; the session is as it was.
    pub fn restore(&mut self, saved: &SavedSession) -> Result<(), RestoreError> {
        if !self.rooms.is_fresh || !self.rooms.memory.allocations.is_empty() {
            return Err(RestoreError::InUse);
        }
        let mut tables = PageTables::new().map_err(io::Error::other)?;
        let areas = Areas::new(&mut tables).map_err(io::Error::other)?;
        let mut builder = Builder::new(self, saved, tables, areas);
        builder.build().map_err(|invalid| self.refuse(RestoreError::Invalid(invalid)))?;
        let fences = builder.fences()?;
        let fences = fences.ok_or_else(|| {
            self.refuse(RestoreError::Invalid("a native fence has no name that it could have".to_owned()))
        })?;
        let built = builder.finish(fences);
        self.install(built, saved).map_err(|error| self.refuse(error))
    }

    /// Logs what is wrong, for the operator of this host.
    fn refuse(&self, error: RestoreError) -> RestoreError {
        log::error!("{}: {error}", self.rooms.config.name);
        error
    }

    /// All that can fail has not.
    fn install(&mut self, built: Built, saved: &SavedSession) -> Result<(), RestoreError> {
        // The one step that can: whole, or not at all.
        let (memory, waits) = (built.memory, built.waits);
        let allocations = memory.allocations.into_iter().map(|(id, moved)| (AllocationId(id), moved));
        self.rooms.memory.allocations.take_over(allocations.collect())?;
        let now = clock::now();
        self.rooms.is_fresh = false;
        self.rooms.freeze = Freeze::Frozen { is_restored: true };
        // Also where the operator had sent it to D3 before it had anything (LM-56).
        self.power = Power::D0;
        self.rooms.memory.blobs = memory.blobs;
        self.rooms.memory.segments = Segments::with_unknown(memory.segments, memory.segment_charges);
        self.rooms.fences = built.fences;
        self.rooms.memory.tables = memory.tables;
        self.rooms.memory.areas = memory.areas;
        self.rooms.memory.residency.shown = memory.shown;
        self.rooms.objects.kernel_bytes = built.kernel_bytes;
        self.rooms.objects.processes = built.processes;
        self.rooms.doorbells.drains = waits.drains;
        self.rooms.objects.due = waits.due;
        self.rooms.memory.retired = waits.retired;
        (self.away.kept, self.away.contexts) = (memory.kept, built.names);
        for (slot, engine) in self.rooms.engines.iter_mut().zip(built.engines) {
            engine.put_into(slot, now);
        }
        for waiter in waits.residents {
            self.rooms.memory.residency.add_waiter(waiter);
        }
        let paging = self
            .rooms
            .objects
            .processes
            .iter()
            .filter_map(|(of, process)| Some((*of, process.device.as_ref()?)));
        let paging = paging.filter(|(_, device)| device.paging.waiting().len() > 0);
        self.rooms.memory.residency.paging = paging.map(|(of, _)| of).collect();
        match &mut self.rooms.memory.window {
            Window::Awaited(waiting) => waiting.extend(waits.maps),
            Window::Open | Window::Never => self.rooms.memory.residency.deferred.extend(waits.maps),
        }
        let why: Option<String> = saved.quarantine.as_ref().map(|why| why.chars().take(MAX_REASON).collect());
        self.rooms.config.standing.take_over(&ages(&saved.adapter_resets), why.as_deref(), now);
        self.fill_new_areas(memory.new_areas);
        self.introduce_contexts();
        self.find_guest_pages();
        self.rooms.journal.line(
            Level::Info,
            format_args!("took over the state of {} guest processes", self.rooms.objects.processes.len()),
        );
        Ok(())
    }

    /// Initialises save areas that the state did not have. Where there is no room for one, which the store for what is
    /// evicted sees to, a buffer that needs it ends with a fault.
    fn fill_new_areas(&mut self, areas: BTreeMap<AllocationId, Vec<(u64, u64)>>) {
        for (id, words) in areas {
            match self.rooms.memory.allocations.initialise(id, self.rooms.memory.residency.epoch, &words) {
                Ok(()) => self.rooms.memory.remap(id, &mut self.rooms.journal),
                Err(error) => self.rooms.journal.line(Level::Error, format_args!("a new save area: {error}")),
            }
        }
    }

    /// Tells the engines' places how each context is scheduled.
    fn introduce_contexts(&mut self) {
        let mut all: Vec<(EngineAddress, u32, (u32, Handle))> = Vec::new();
        for (of, process) in &self.rooms.objects.processes {
            let contexts = process.device.iter().flat_map(|device| device.contexts.iter());
            all.extend(contexts.filter_map(|(handle, it)| Some((it.at, it.entry?, (*of, handle)))));
        }
        for (at, entry, owner) in all {
            Submission::of(&mut self.rooms).introduce_context(at, entry, owner);
        }
    }
}

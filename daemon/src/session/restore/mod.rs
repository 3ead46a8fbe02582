//! A session out of the data of another one (LM-31 to LM-34, LM-37, LM-40, LM-45 to LM-57).
//!
//! ```text
//!   SavedSession ─▶ checked, and built beside the session ─▶ memory taken ─▶ put in place, all at once ─▶ FROZEN
//!        │ anything wrong                                        │ no room                                 │
//!        └────────────▶ refused: which check; nothing is applied ┘      guest memory known: pages found ───┤
//!                                                                                                          ▼
//!                                                     thaw: pages looked for a last time, engines started, RUNNING
//! ```
//!
//! Nothing in the data is believed. What it says about memory holds within the memory of this session alone, and what it
//! says about guest RAM is looked up in the memory that the front-end shows; so the worst that it can do is what the
//! guest whose state it is could do by itself.

mod check;
mod device;
mod engines;
mod pages;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::handle::Handle;
use log::Level;

use super::blobs::Blob;
use super::drains::Drain;
use super::fence_table::FenceTable;
use super::freeze::Freeze;
use super::objects::GpuMapping;
use super::objects::Process;
use super::save::REFUSALS;
use super::saved::SavedSession;
use super::saved::immutable::Immutable;
use super::saved::immutable::Mismatch;
use super::segments::Segments;
use super::state::Refusal;
use super::state::Session;
use super::state::Window;
use super::timeline::Token;
use super::wants::Waiter;
use crate::vidmm::allocations::AllocationId;
use crate::vidmm::allocations::MovedAllocation;
use crate::vidmm::allocations::TakeOverError;
use crate::vidmm::vram::VideoMemory;

use engines::RestoredEngine;

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

/// What is wrong with a piece of state.
pub(super) type Invalid = String;

/// Everything that is built beside the session, before any of it is put in place.
pub(super) struct Builder<'a> {
    session: &'a Session,
    saved: &'a SavedSession,
    allocations: BTreeMap<u64, MovedAllocation>,
    blobs: BTreeMap<u32, Blob>,
    segments: BTreeMap<u16, Vec<(u64, u64)>>,
    /// Openers of each native fence.
    openers: BTreeMap<u32, u32>,
    tables: PageTables,
    shown: BTreeMap<AllocationId, Vec<(Root, u64, GpuMapping)>>,
    processes: BTreeMap<u32, Process>,
    kernel_bytes: usize,
    engines: Vec<RestoredEngine>,
    drains: Vec<Drain>,
    residents: Vec<Waiter>,
    maps: Vec<(u32, u64, Token)>,
    due: Vec<(Token, Result<(), Refusal>)>,
    tokens: BTreeSet<u64>,
    /// Open work on timelines that nobody has said yet that he waits for: guest process, timeline, place.
    unclaimed: BTreeSet<(u32, u8, u64)>,
}

pub(super) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Invalid> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Ages that cannot be are those of events that are too old to count.
pub(super) fn ages(milliseconds: &[u64]) -> Vec<Duration> {
    /// More than any policy counts.
    const KEPT: usize = 64;
    let newest = milliseconds.len().saturating_sub(KEPT);
    milliseconds[newest..].iter().map(|age| Duration::from_millis(*age)).collect()
}

impl Session {
    /// Whether state of a vGPU like `saved` fits this one; says in the log what does not (LM-33).
    ///
    /// # Errors
    /// The check that failed.
    pub fn check_immutable(&self, saved: &Immutable) -> Result<(), Mismatch> {
        let checked = self.immutable().check(saved);
        if let Err(mismatch) = &checked {
            log::error!("{}: {mismatch}", self.config.name);
        }
        checked
    }

    /// Whether nothing was ever asked of it.
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Takes memory that was filled elsewhere for its own, before its state is restored. Whoever has been shown the
    /// memory before sees what it was.
    ///
    /// # Errors
    /// The session is in use, or the memory has another size.
    pub fn adopt_memory(&mut self, memory: VideoMemory) -> Result<(), RestoreError> {
        if !self.is_fresh || !self.allocations.is_empty() {
            return Err(RestoreError::InUse);
        }
        if memory.length() != self.config.vram_bytes {
            let text = format!("{} bytes of video memory, not {}", memory.length(), self.config.vram_bytes);
            return Err(RestoreError::Invalid(text));
        }
        self.allocations.adopt(memory);
        Ok(())
    }

    /// Becomes the session whose data this is, standing still until [`Self::thaw`] (LM-31, LM-32). Its memory is there
    /// already. Guest memory may be shown before or after.
    ///
    /// # Errors
    /// What is wrong with the data, or why it cannot be had here; the session is as it was.
    pub fn restore(&mut self, saved: &SavedSession) -> Result<(), RestoreError> {
        if !self.is_fresh || !self.allocations.is_empty() {
            return Err(RestoreError::InUse);
        }
        let tables = PageTables::new().map_err(io::Error::other)?;
        let mut builder = Builder::new(self, saved, tables);
        builder.build().map_err(|invalid| self.refuse(RestoreError::Invalid(invalid)))?;
        let fences = builder.fences()?;
        let fences = fences.ok_or_else(|| {
            self.refuse(RestoreError::Invalid("a native fence has no name that it could have".to_owned()))
        })?;
        let built = builder.finish(fences)?;
        self.install(built, saved).map_err(|error| self.refuse(error))
    }

    /// Says what is wrong, for whoever looks for the reason on this host.
    fn refuse(&self, error: RestoreError) -> RestoreError {
        log::error!("{}: {error}", self.config.name);
        error
    }

    /// All that can fail has not.
    fn install(&mut self, built: Built, saved: &SavedSession) -> Result<(), RestoreError> {
        // The one step that can: whole, or not at all.
        self.allocations.take_over(built.allocations)?;
        let now = Instant::now();
        self.is_fresh = false;
        self.freeze = Freeze::Frozen { is_restored: true };
        self.blobs = built.blobs;
        self.segments = Segments::with_unknown(built.segments);
        self.fences = built.fences;
        self.tables = built.tables;
        self.residency.shown = built.shown;
        self.kernel_bytes = built.kernel_bytes;
        self.processes = built.processes;
        self.drains = built.drains;
        self.due = built.due;
        for (slot, engine) in self.engines.iter_mut().zip(built.engines) {
            engine.put_into(slot, now);
        }
        for waiter in built.residents {
            self.residency.add_waiter(waiter);
        }
        let waits = self.processes.iter().filter_map(|(of, process)| Some((*of, process.device.as_ref()?)));
        let waits = waits.filter(|(_, device)| !device.paging.waiting.is_empty());
        self.residency.paging = waits.map(|(of, _)| of).collect();
        match &mut self.window {
            Window::Awaited(waiting) => waiting.extend(built.maps),
            Window::Open | Window::Never => self.residency.deferred.extend(built.maps),
        }
        let why: Option<String> = saved.quarantine.as_ref().map(|why| why.chars().take(MAX_REASON).collect());
        self.config.standing.take_over(&ages(&saved.adapter_resets), why.as_deref(), now);
        self.introduce_contexts();
        self.find_guest_pages();
        self.journal.line(
            Level::Info,
            format_args!("took over the state of {} guest processes", self.processes.len()),
        );
        Ok(())
    }

    /// Tells the engines' places how each context is scheduled.
    fn introduce_contexts(&mut self) {
        let mut all: Vec<(EngineAddress, u32, (u32, Handle))> = Vec::new();
        for (of, process) in &self.processes {
            let contexts = process.device.iter().flat_map(|device| device.contexts.iter());
            all.extend(contexts.filter_map(|(handle, it)| Some((it.at, it.entry?, (*of, handle)))));
        }
        for (at, entry, owner) in all {
            self.introduce_context(at, entry, owner);
        }
    }
}

/// What [`Builder`] has come to.
pub(super) struct Built {
    allocations: Vec<(AllocationId, MovedAllocation)>,
    blobs: BTreeMap<u32, Blob>,
    segments: BTreeMap<u16, Vec<(u64, u64)>>,
    fences: FenceTable,
    tables: PageTables,
    shown: BTreeMap<AllocationId, Vec<(Root, u64, GpuMapping)>>,
    processes: BTreeMap<u32, Process>,
    kernel_bytes: usize,
    engines: Vec<RestoredEngine>,
    drains: Vec<Drain>,
    residents: Vec<Waiter>,
    maps: Vec<(u32, u64, Token)>,
    due: Vec<(Token, Result<(), Refusal>)>,
}

impl<'a> Builder<'a> {
    fn new(session: &'a Session, saved: &'a SavedSession, tables: PageTables) -> Self {
        Self {
            session,
            saved,
            allocations: BTreeMap::new(),
            blobs: BTreeMap::new(),
            segments: BTreeMap::new(),
            openers: BTreeMap::new(),
            tables,
            shown: BTreeMap::new(),
            processes: BTreeMap::new(),
            kernel_bytes: 0,
            engines: Vec::new(),
            drains: Vec::new(),
            residents: Vec::new(),
            maps: Vec::new(),
            due: Vec::new(),
            tokens: BTreeSet::new(),
            unclaimed: BTreeSet::new(),
        }
    }

    /// Builds everything, memory first, then who refers to it.
    fn build(&mut self) -> Result<(), Invalid> {
        self.build_memory()?;
        self.build_engines()?;
        self.build_processes()?;
        self.build_messages()?;
        self.build_tokens()?;
        if let Some((context, ring, item)) = self.unclaimed.first() {
            return Err(format!("process {context}: nothing ends work {item} of timeline {ring}"));
        }
        let unopened = self.saved.fences.iter().find(|fence| !self.openers.contains_key(&fence.0));
        ensure(unopened.is_none(), || "a native fence that nobody has open".to_owned())
    }

    fn build_tokens(&mut self) -> Result<(), Invalid> {
        for &(token, number) in &self.saved.due {
            let outcome = match usize::try_from(number).ok().and_then(|number| number.checked_sub(1)) {
                None => Ok(()),
                Some(place) => {
                    let refusal = REFUSALS.get(place).copied();
                    Err(refusal.ok_or_else(|| format!("refusal {number} of a command"))?)
                }
            };
            let token = self.token(token)?;
            self.due.push((token, outcome));
        }
        Ok(())
    }

    /// A front's name for something that waits: each stands for one thing.
    pub(super) fn token(&mut self, token: u64) -> Result<Token, Invalid> {
        ensure(self.tokens.insert(token), || format!("command {token} waits for two things"))?;
        Ok(Token(token))
    }

    fn fences(&self) -> io::Result<Option<FenceTable>> {
        let fence = |fence: &super::saved::row::SavedFence| {
            let openers = self.openers.get(&fence.0).copied().unwrap_or(0);
            (fence.0, Handle(fence.1), fence.2, fence.3, openers)
        };
        FenceTable::of(&self.saved.fences.iter().map(fence).collect::<Vec<_>>())
    }

    fn finish(self, fences: FenceTable) -> io::Result<Built> {
        let allocations = self.allocations.into_iter().map(|(id, moved)| (AllocationId(id), moved));
        for engine in &self.engines {
            engine.announce_fences(&fences);
        }
        Ok(Built {
            allocations: allocations.collect(),
            blobs: self.blobs,
            segments: self.segments,
            fences,
            tables: self.tables,
            shown: self.shown,
            processes: self.processes,
            kernel_bytes: self.kernel_bytes,
            engines: self.engines,
            drains: self.drains,
            residents: self.residents,
            maps: self.maps,
            due: self.due,
        })
    }
}

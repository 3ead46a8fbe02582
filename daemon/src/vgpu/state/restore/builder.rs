//! What a session will have, built beside it; every piece is checked against those before it.

use super::engines::RestoredEngine;
use crate::vgpu::doorbells::drains::Drain;
use crate::vgpu::fences::table::FenceTable;
use crate::vgpu::hotplug::detached::KeptBlob;
use crate::vgpu::memory::blobs::Blob;
use crate::vgpu::memory::residency_faults::Waiter;
use crate::vgpu::memory::save_areas::Areas;
use crate::vgpu::memory::shown::Shown;
use crate::vgpu::memory::vidmm::allocations::MovedAllocation;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::budget::Purse;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;
use crate::vgpu::session::Session;
use crate::vgpu::state::save::snapshot::REFUSALS;
use crate::vgpu::state::saved::SavedSession;
use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_protocol::control::native_fence::NATIVE_FENCE_DEFAULT;
use campanile_protocol::control::native_fence::NATIVE_FENCE_INTRA_GPU;
use campanile_protocol::handle::Handle;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// What is wrong with a piece of state.
pub(super) type Invalid = String;

/// Everything that is built beside the session, before any of it is put in place.
pub(super) struct Builder<'a> {
    pub(super) session: &'a Session,
    pub(super) saved: &'a SavedSession,
    pub(super) allocations: BTreeMap<u64, MovedAllocation>,
    pub(super) blobs: BTreeMap<u32, Blob>,
    pub(super) segments: BTreeMap<u16, Vec<(u64, u64)>>,
    /// Openers of each native fence.
    pub(super) openers: BTreeMap<u32, u32>,
    pub(super) tables: PageTables,
    pub(super) areas: Areas,
    /// Words by which areas are initialised that the state does not have: version 1.
    pub(super) new_areas: BTreeMap<AllocationId, Vec<(u64, u64)>>,
    pub(super) shown: Shown,
    /// What was charged for segments.
    pub(super) segment_charges: BTreeMap<u16, Charge>,
    /// Work that was paid for with what it ends.
    pub(super) ends: BTreeSet<(u32, u8, u64)>,
    /// What the process pays with that is being built.
    pub(super) purse: Option<Purse>,
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) kernel_bytes: usize,
    pub(super) engines: Vec<RestoredEngine>,
    pub(super) drains: Vec<Drain>,
    pub(super) residents: Vec<Waiter>,
    pub(super) maps: Vec<(u32, u64, Token)>,
    pub(super) due: Vec<(Token, Result<(), Refusal>)>,
    pub(super) retired: BTreeMap<u16, Token>,
    /// Blobs of processes that are away.
    pub(super) kept: BTreeMap<u64, KeptBlob>,
    /// Contexts that guest and session call by different numbers.
    pub(super) names: BTreeMap<u32, u32>,
    pub(super) tokens: BTreeSet<u64>,
    /// Open work on timelines that no wait has claimed yet: guest process, timeline, place.
    pub(super) unclaimed: BTreeSet<(u32, u8, u64)>,
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

/// What [`Builder`] has come to.
pub(super) struct Built {
    pub(super) allocations: Vec<(AllocationId, MovedAllocation)>,
    pub(super) blobs: BTreeMap<u32, Blob>,
    pub(super) segments: BTreeMap<u16, Vec<(u64, u64)>>,
    pub(super) segment_charges: BTreeMap<u16, Charge>,
    pub(super) fences: FenceTable,
    pub(super) tables: PageTables,
    pub(super) areas: Areas,
    pub(super) new_areas: BTreeMap<AllocationId, Vec<(u64, u64)>>,
    pub(super) shown: Shown,
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) kernel_bytes: usize,
    pub(super) engines: Vec<RestoredEngine>,
    pub(super) drains: Vec<Drain>,
    pub(super) residents: Vec<Waiter>,
    pub(super) maps: Vec<(u32, u64, Token)>,
    pub(super) due: Vec<(Token, Result<(), Refusal>)>,
    pub(super) retired: BTreeMap<u16, Token>,
    /// Blobs of processes that are away.
    pub(super) kept: BTreeMap<u64, KeptBlob>,
    /// Contexts that guest and session call by different numbers.
    pub(super) names: BTreeMap<u32, u32>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        session: &'a Session,
        saved: &'a SavedSession,
        tables: PageTables,
        areas: Areas,
    ) -> Self {
        Self {
            session,
            saved,
            allocations: BTreeMap::new(),
            blobs: BTreeMap::new(),
            segments: BTreeMap::new(),
            openers: BTreeMap::new(),
            tables,
            areas,
            new_areas: BTreeMap::new(),
            shown: Shown::default(),
            segment_charges: BTreeMap::new(),
            ends: BTreeSet::new(),
            purse: None,
            processes: BTreeMap::new(),
            kernel_bytes: 0,
            engines: Vec::new(),
            drains: Vec::new(),
            residents: Vec::new(),
            maps: Vec::new(),
            due: Vec::new(),
            retired: BTreeMap::new(),
            kept: BTreeMap::new(),
            names: BTreeMap::new(),
            tokens: BTreeSet::new(),
            unclaimed: BTreeSet::new(),
        }
    }

    /// One more item of the process that is being built, or else of the VM.
    pub(super) fn charge(&self, kind: Kind, bytes: u64) -> Result<Charge, Invalid> {
        let purse = self.purse.as_ref().unwrap_or(&self.session.purse);
        purse.charge(kind, bytes).map_err(|over| over.to_string())
    }

    /// One more item of a process that was built.
    pub(super) fn charge_of(&self, context: u32, kind: Kind, bytes: u64) -> Result<Charge, Invalid> {
        let process = self.processes.get(&context).ok_or_else(|| format!("process {context} is none"))?;
        process.purse.charge(kind, bytes).map_err(|over| format!("process {context}: {over}"))
    }

    /// Builds everything, memory first, then what refers to it.
    pub(super) fn build(&mut self) -> Result<(), Invalid> {
        self.build_memory()?;
        self.build_engines()?;
        self.build_processes()?;
        self.build_names()?;
        self.build_messages()?;
        self.check_areas()?;
        self.build_tokens()?;
        if let Some((context, ring, item)) = self.unclaimed.first() {
            return Err(format!("process {context}: nothing ends work {item} of timeline {ring}"));
        }
        let is_known = |kind| matches!(kind, NATIVE_FENCE_DEFAULT | NATIVE_FENCE_INTRA_GPU);
        if let Some(fence) = self.saved.fences.iter().find(|fence| !is_known(fence.2)) {
            return Err(format!("native fence {}: its type", fence.0));
        }
        let unopened = self.saved.fences.iter().find(|fence| !self.openers.contains_key(&fence.0));
        ensure(unopened.is_none(), || "a native fence that nobody has open".to_owned())
    }

    fn build_names(&mut self) -> Result<(), Invalid> {
        let mut named = BTreeSet::new();
        for &(name, own) in &self.saved.names {
            let is_there = self.processes.contains_key(&own) && name != 0;
            let is_new = named.insert(own) && self.names.insert(name, own).is_none();
            ensure(is_there && is_new, || format!("context {name}, which is process {own}"))?;
        }
        Ok(())
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
        for &(segment, token) in &self.saved.retired {
            let token = self.token(token)?;
            let is_known = self.segments.contains_key(&segment);
            let is_new = self.retired.insert(segment, token).is_none();
            ensure(is_known && is_new, || format!("the end of segment {segment}"))?;
        }
        Ok(())
    }

    /// A front's name for something that waits: each stands for one thing.
    pub(super) fn token(&mut self, token: u64) -> Result<Token, Invalid> {
        ensure(self.tokens.insert(token), || format!("command {token} waits for two things"))?;
        Ok(Token(token))
    }

    pub(super) fn fences(&self) -> io::Result<Option<FenceTable>> {
        let fence = |fence: &crate::vgpu::state::saved::row::SavedFence| {
            let openers = self.openers.get(&fence.0).copied().unwrap_or(0);
            (fence.0, Handle(fence.1), fence.2, fence.3, openers)
        };
        FenceTable::of(&self.saved.fences.iter().map(fence).collect::<Vec<_>>())
    }

    pub(super) fn finish(self, fences: FenceTable) -> io::Result<Built> {
        let allocations = self.allocations.into_iter().map(|(id, moved)| (AllocationId(id), moved));
        for engine in &self.engines {
            engine.announce_fences(&fences);
        }
        Ok(Built {
            allocations: allocations.collect(),
            blobs: self.blobs,
            segments: self.segments,
            segment_charges: self.segment_charges,
            fences,
            tables: self.tables,
            areas: self.areas,
            new_areas: self.new_areas,
            shown: self.shown,
            processes: self.processes,
            kernel_bytes: self.kernel_bytes,
            engines: self.engines,
            drains: self.drains,
            residents: self.residents,
            maps: self.maps,
            due: self.due,
            retired: self.retired,
            kept: self.kept,
            names: self.names,
        })
    }
}

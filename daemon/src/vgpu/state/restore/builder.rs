//! What a session will have, built beside it; every piece is checked against those before it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;

use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_protocol::control::native_fence::NATIVE_FENCE_DEFAULT;
use campanile_protocol::control::native_fence::NATIVE_FENCE_INTRA_GPU;
use campanile_protocol::handle::Handle;

use super::claims::Claims;
use super::invalid::Invalid;
use super::invalid::ensure;
use super::memory::RestoredMemory;
use super::restored_engine::RestoredEngine;
use super::waits::RestoredWaits;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::fences::table::FenceTable;
use crate::vgpu::memory::save_areas::Areas;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::budget::Purse;
use crate::vgpu::objects::process::Process;
use crate::vgpu::session::Session;
use crate::vgpu::state::save::snapshot::REFUSALS;
use crate::vgpu::state::saved::SavedSession;

/// Everything that is built beside the session, before any of it is put in place.
pub(super) struct Builder<'a> {
    pub(super) session: &'a Session,
    pub(super) saved: &'a SavedSession,
    pub(super) memory: RestoredMemory,
    pub(super) waits: RestoredWaits,
    pub(super) claims: Claims,
    /// What the process pays with that is being built.
    pub(super) purse: Option<Purse>,
    pub(super) processes: BTreeMap<GuestProcess, Process>,
    pub(super) kernel_bytes: usize,
    pub(super) engines: Vec<RestoredEngine>,
    /// Contexts that guest and session call by different numbers.
    pub(super) names: BTreeMap<FrontContext, GuestProcess>,
}

/// What [`Builder`] has come to.
pub(super) struct Built {
    pub(super) memory: RestoredMemory,
    pub(super) waits: RestoredWaits,
    pub(super) fences: FenceTable,
    pub(super) processes: BTreeMap<GuestProcess, Process>,
    pub(super) kernel_bytes: usize,
    pub(super) engines: Vec<RestoredEngine>,
    /// Contexts that guest and session call by different numbers.
    pub(super) names: BTreeMap<FrontContext, GuestProcess>,
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
            memory: RestoredMemory::new(tables, areas, session.video_memory().device().is_some()),
            waits: RestoredWaits::default(),
            claims: Claims::default(),
            purse: None,
            processes: BTreeMap::new(),
            kernel_bytes: 0,
            engines: Vec::new(),
            names: BTreeMap::new(),
        }
    }

    /// One more item of the process that is being built, or else of the VM.
    pub(super) fn charge(&self, kind: Kind, bytes: u64) -> Result<Charge, Invalid> {
        let purse = self.purse.as_ref().unwrap_or(&self.session.vm.purse);
        purse.charge(kind, bytes).map_err(|over| over.to_string())
    }

    /// One more item of a process that was built.
    pub(super) fn charge_of(&self, context: GuestProcess, kind: Kind, bytes: u64) -> Result<Charge, Invalid> {
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
        self.memory.check_areas()?;
        self.build_tokens()?;
        if let Some((context, ring, item)) = self.claims.unclaimed.first() {
            return Err(format!("process {context}: nothing ends work {item} of timeline {ring}"));
        }
        let is_known = |kind| matches!(kind, NATIVE_FENCE_DEFAULT | NATIVE_FENCE_INTRA_GPU);
        if let Some(fence) = self.saved.fences.iter().find(|fence| !is_known(fence.2)) {
            return Err(format!("native fence {}: its type", fence.0));
        }
        let unopened = self.saved.fences.iter().find(|fence| !self.claims.openers.contains_key(&fence.0));
        ensure(unopened.is_none(), || "a native fence that nobody has open".to_owned())
    }

    fn build_names(&mut self) -> Result<(), Invalid> {
        let mut named = BTreeSet::new();
        for &(name, own) in &self.saved.names {
            let is_there = self.processes.contains_key(&own) && name != FrontContext::new(0);
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
            let token = self.claims.token(token)?;
            self.waits.due.push((token, outcome));
        }
        for &(segment, token) in &self.saved.retired {
            let token = self.claims.token(token)?;
            let is_known = self.memory.segments.contains_key(&segment);
            let is_new = self.waits.retired.insert(segment, token).is_none();
            ensure(is_known && is_new, || format!("the end of segment {segment}"))?;
        }
        Ok(())
    }

    pub(super) fn fences(&self) -> io::Result<Option<FenceTable>> {
        let fence = |fence: &crate::vgpu::state::saved::row::SavedFence| {
            let openers = self.claims.openers.get(&fence.0).copied().unwrap_or(0);
            (fence.0, Handle(fence.1), fence.2, fence.3, openers)
        };
        FenceTable::of(&self.saved.fences.iter().map(fence).collect::<Vec<_>>())
    }

    pub(super) fn finish(self, fences: FenceTable) -> Built {
        for engine in &self.engines {
            engine.announce_fences(&fences);
        }
        let Self { memory, waits, processes, kernel_bytes, engines, names, .. } = self;
        Built { memory, waits, fences, processes, kernel_bytes, engines, names }
    }
}

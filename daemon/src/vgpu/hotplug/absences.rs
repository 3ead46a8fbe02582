//! What is known of guest processes that are away, or are to go.

use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::control::orders::PendingOrder;
use crate::vgpu::engines::suspending::Suspending;
use crate::vgpu::memory::blobs::Blob;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::processes::Objects;
use crate::vgpu::objects::refusal::Refusal;
use campanile_protocol::control::away::Parked;
use std::collections::BTreeMap;
use std::time::Instant;

/// Where the session's own names for contexts begin that the guest's driver has given twice.
const OWN_NAMES: u32 = 1 << 30;

/// A blob of a process that is away.
#[derive(Debug)]
pub struct KeptBlob {
    /// The blob; one reference.
    pub blob: Blob,
    /// The process.
    pub owner: GuestProcess,
}

/// A process that is going: what its engines have to report first.
#[derive(Debug)]
pub(in crate::vgpu) struct Parking {
    pub(in crate::vgpu) origin: Origin,
    pub(super) parked: Parked,
    pub(super) suspends: Vec<Suspending>,
}

/// The operator waits until all have gone.
#[derive(Debug)]
pub(in crate::vgpu) struct Leave {
    /// To be told; none once it was.
    pub(in crate::vgpu) pending: Option<PendingOrder>,
    pub(in crate::vgpu) until: Instant,
    /// Processes that were too late, once that is known: they see that their devices are lost, and close them.
    pub(in crate::vgpu) lost: Option<Vec<GuestProcess>>,
}

/// All that is known of processes that are away.
#[derive(Debug, Default)]
pub struct Absences {
    /// The guest's name for a context, where the session's is another.
    pub(in crate::vgpu) contexts: BTreeMap<FrontContext, GuestProcess>,
    /// Blobs of those that are away, by name.
    pub(in crate::vgpu) kept: BTreeMap<u64, KeptBlob>,
    pub(in crate::vgpu) parking: Vec<Parking>,
    pub(in crate::vgpu) leave: Option<Leave>,
    /// Until when processes that are away may come back.
    pub(in crate::vgpu) until: Option<Instant>,
}

impl Absences {
    /// Whether the device is about to be taken away.
    pub(in crate::vgpu) fn is_leaving(&self) -> bool {
        self.leave.is_some()
    }

    /// When it must be looked at.
    pub(in crate::vgpu) fn next(&self) -> Option<Instant> {
        let leave = self.leave.as_ref().filter(|leave| leave.pending.is_some());
        leave.map(|leave| leave.until).into_iter().chain(self.until).min()
    }

    /// The session's name for a context of the guest's.
    pub(in crate::vgpu) fn own_context(
        &self,
        objects: &Objects,
        context: FrontContext,
    ) -> Result<GuestProcess, Refusal> {
        if let Some(own) = self.contexts.get(&context) {
            return Ok(*own);
        }
        let is_present = |process: &Process| process.away.is_none_or(|away| !away.is_gone);
        // The number is its own, unless another process is called by it.
        let own = GuestProcess::new(context.get());
        let is_taken = self.contexts.values().any(|taken| *taken == own);
        match objects.processes.get(&own).filter(|process| is_present(process) && !is_taken) {
            Some(_) => Ok(own),
            None => Err(Refusal::Context),
        }
    }

    /// What the guest's driver calls a process; none where that is away, or has closed its node.
    pub(in crate::vgpu) fn name_of(&self, own: GuestProcess) -> Option<FrontContext> {
        let named = self.contexts.iter().find(|(_, process)| **process == own).map(|(name, _)| *name);
        // Its own number, unless another process is called by that.
        let same = FrontContext::new(own.get());
        named.or_else(|| (!self.contexts.contains_key(&same)).then_some(same))
    }

    /// A name for a new context that the guest calls `context`.
    pub(in crate::vgpu) fn new_own_context(
        &mut self,
        objects: &Objects,
        context: FrontContext,
    ) -> GuestProcess {
        let same = GuestProcess::new(context.get());
        if !objects.processes.contains_key(&same) {
            return same;
        }
        let is_free = |own: &GuestProcess| !objects.processes.contains_key(own);
        let own = (OWN_NAMES..).map(GuestProcess::new).find(is_free).unwrap_or(GuestProcess::new(u32::MAX));
        self.contexts.insert(context, own);
        own
    }

    /// Whether a process has parked its device, or is about to.
    pub(in crate::vgpu) fn is_going(&self, objects: &Objects, own: GuestProcess) -> bool {
        objects.processes.get(&own).is_some_and(Process::is_away)
            || self.parking.iter().any(|parking| parking.origin.context == own)
    }
}

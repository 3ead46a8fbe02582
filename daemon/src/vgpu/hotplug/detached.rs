//! Guest processes whose device is taken away, and comes back: here or on another host (decision 64).
//!
//! ```text
//!   operator: Leave ─▶ LEAVE in every device page
//!   PRESENT ── PARK_DEVICE ──▶ PARKING ── contexts off the engines: token, fences answered ──▶ PARKED
//!      ▲                                                                                         │ CTX_DESTROY
//!      └── ATTACH_DEVICE with the token, over blobs made again by their names ── AWAY ◀──────────┘
//! ```
//!
//! A process that is away keeps its number; the guest's name for the context that comes back is another, so that names
//! are translated at the edge. Its blobs wait apart, by names that cannot be guessed: a guest gives its resources up
//! when it closes its node, and makes them again under other numbers. Its contexts are held, its messages stay where
//! they are. What has not come back a minute after the device did is ended (`leaving.rs`).

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use campanile_protocol::control::away::Parked;
use campanile_protocol::control::away::blob_name;
use campanile_protocol::control::status::Status;
use zerocopy::IntoBytes;

use crate::vgpu::control::guest_pages::GuestPages;
use crate::vgpu::control::orders::Errand;
use crate::vgpu::counters::count;
use crate::vgpu::engines::suspending::Suspending;
use crate::vgpu::memory::blobs::Blob;
use crate::vgpu::memory::blobs::Shown;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::process::Away;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::session::Session;

/// Where the session's own names for contexts begin that the guest's driver has given twice.
const OWN_NAMES: u32 = 1 << 30;

/// A blob of a process that is away.
#[derive(Debug)]
pub struct KeptBlob {
    /// The blob; one reference.
    pub blob: Blob,
    /// The process.
    pub owner: u32,
}

/// A process that is going: what its engines have to report first.
#[derive(Debug)]
pub(in crate::vgpu) struct Parking {
    pub(in crate::vgpu) origin: Origin,
    parked: Parked,
    suspends: Vec<Suspending>,
}

/// The operator waits until all have gone.
#[derive(Debug)]
pub(in crate::vgpu) struct Leave {
    /// To be told; none once he was.
    pub(in crate::vgpu) errand: Option<Errand>,
    pub(in crate::vgpu) until: Instant,
    /// Processes that were too late, once that is known: they see that their devices are lost, and close them.
    pub(in crate::vgpu) lost: Option<Vec<u32>>,
}

/// All that is known of processes that are away.
#[derive(Debug, Default)]
pub struct Absences {
    /// The guest's name for a context, where the session's is another.
    pub(in crate::vgpu) contexts: BTreeMap<u32, u32>,
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
        let leave = self.leave.as_ref().filter(|leave| leave.errand.is_some());
        leave.map(|leave| leave.until).into_iter().chain(self.until).min()
    }
}

fn random() -> io::Result<[u64; 2]> {
    let mut words = [0_u64; 2];
    let bytes = words.as_mut_bytes();
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(words)
}

impl Session {
    /// The session's name for a context of the guest's.
    pub(in crate::vgpu) fn own_context(&self, context: u32) -> Result<u32, Refusal> {
        if let Some(own) = self.away.contexts.get(&context) {
            return Ok(*own);
        }
        let is_present = |process: &Process| process.away.is_none_or(|away| !away.is_gone);
        let is_taken = self.away.contexts.values().any(|own| *own == context);
        match self.rooms.objects.processes.get(&context).filter(|process| is_present(process) && !is_taken) {
            Some(_) => Ok(context),
            None => Err(Refusal::Context),
        }
    }

    /// A name for a new context that the guest calls `context`.
    pub(in crate::vgpu) fn new_own_context(&mut self, context: u32) -> u32 {
        if !self.rooms.objects.processes.contains_key(&context) {
            return context;
        }
        let own =
            (OWN_NAMES..).find(|own| !self.rooms.objects.processes.contains_key(own)).unwrap_or(u32::MAX);
        self.away.contexts.insert(context, own);
        own
    }

    /// A context is closed: true where its process only goes away.
    pub(in crate::vgpu) fn leaves_process(&mut self, own: u32) -> bool {
        let away = self.rooms.objects.processes.get_mut(&own).and_then(|process| process.away.as_mut());
        away.map(|away| away.is_gone = true).is_some()
    }

    /// A process that is about to park has not its token yet, and ends: it cannot come back.
    pub(in crate::vgpu) fn stop_parking(&mut self, own: u32) {
        let its: Vec<Parking> =
            self.away.parking.extract_if(.., |parking| parking.origin.context == own).collect();
        for parking in its {
            self.give_up_names(own);
            self.rooms.answer(parking.origin, Err(Status::DeviceLost.into()));
        }
    }

    /// Whether a process has parked its device, or is about to.
    pub(in crate::vgpu) fn is_going(&self, own: u32) -> bool {
        self.rooms.objects.processes.get(&own).is_some_and(Process::is_away)
            || self.away.parking.iter().any(|parking| parking.origin.context == own)
    }

    /// PARK_DEVICE.
    pub(in crate::vgpu) fn park_device(&mut self, origin: Origin) -> Outcome {
        self.away.is_leaving().or(Status::Busy)?;
        let process = self.rooms.objects.processes.get(&origin.context).ok_or(Status::NoDevice)?;
        let blobs: Vec<u32> = process.attached.keys().copied().collect();
        // The answer has to lie somewhere when it comes back, before its pages are known.
        let page = self.rooms.objects.device(origin.context)?.page.allocation;
        if self.rooms.memory.allocations.guest_segment(page).is_some() {
            let text = "the device page lies in memory of the guest's own".to_owned();
            return Err(crate::vgpu::objects::message::Refused { status: Status::NotSupported, text });
        }
        let parked = self.new_token(&blobs).ok_or(Status::OutOfResources)?;
        for resource in blobs {
            if let Some(blob) = self.rooms.memory.blobs.get_mut(&resource) {
                blob.name = Some(blob_name(&parked, resource));
            }
        }
        let mut suspends = Vec::new();
        for (_, handle) in
            self.rooms.objects.all_contexts().into_iter().filter(|(of, _)| *of == origin.context)
        {
            suspends.extend(self.rooms.engines.hold(
                &mut self.rooms.objects,
                &self.rooms.config.supervisor,
                origin.context,
                handle,
                |held| held.by_absence = true,
            ));
            // Also where its engine is lost.
            let context = self.rooms.objects.device_mut(origin.context)?.contexts.get_mut(handle);
            context.into_iter().for_each(|context| context.held.by_absence = true);
        }
        let origin = self.rooms.objects.park_end(origin);
        self.away.parking.push(Parking { origin, parked, suspends });
        self.look_at_parking();
        Ok(Handled::Parked)
    }

    /// Numbers that no other process has, for a process with these resources.
    fn new_token(&self, resources: &[u32]) -> Option<Parked> {
        for _ in 0..8 {
            let [token, names] = random().ok()?;
            let parked = Parked { token, names };
            let is_known = |name: &u64| {
                *name == 0
                    || self.away.kept.contains_key(name)
                    || self.rooms.memory.blobs.values().any(|blob| blob.name == Some(*name))
            };
            let mut wanted = resources.iter().map(|resource| blob_name(&parked, *resource));
            if token != 0 && !wanted.any(|name| is_known(&name)) {
                return Some(parked);
            }
        }
        None
    }

    /// Engines may have reported what a process waits for that is going.
    pub(in crate::vgpu) fn look_at_parking(&mut self) {
        let parking = std::mem::take(&mut self.away.parking);
        let (ready, waiting): (Vec<_>, Vec<_>) = parking
            .into_iter()
            .partition(|parking| parking.suspends.iter().all(|of| self.rooms.engines.is_reported(of)));
        self.away.parking = waiting;
        for Parking { origin, parked, .. } in ready {
            self.rooms.answer(origin, Ok(parked.as_bytes().to_vec()));
            let Some(process) = self.rooms.objects.processes.get_mut(&origin.context) else { continue };
            process.away = Some(Away { parked, is_gone: false });
            // The guest's driver waits for no fence of a device that is gone.
            let fences = process.timelines.values_mut().flat_map(|timeline| timeline.fences.drain(..));
            let fences: Vec<_> = fences.map(|(_, token)| (token, Ok(()))).collect();
            self.rooms.objects.due.extend(fences);
            count(&self.rooms.counters.parked);
        }
    }

    /// A guest has given up its name for a blob of a process that is away.
    pub(in crate::vgpu) fn keep_blob(&mut self, blob: Blob) {
        let owner = blob.name.and_then(|name| {
            let of = |process: &&Process| {
                process.away.is_some_and(|away| name.wrapping_sub(away.parked.names) <= u64::from(u32::MAX))
            };
            self.rooms.objects.processes.iter().find(|(_, process)| of(process)).map(|(own, _)| *own)
        });
        match (blob.name, owner) {
            (Some(name), Some(owner)) => {
                let blob = Blob { shown: Shown::No, ..blob };
                if let Some(before) = self.away.kept.insert(name, KeptBlob { blob, owner }) {
                    GuestPages::of(&mut self.rooms).release_allocation(before.blob.allocation);
                }
            }
            _ => GuestPages::of(&mut self.rooms).release_allocation(blob.allocation),
        }
    }

    /// Frees what a process has left of what it had.
    pub(in crate::vgpu) fn drop_kept(&mut self, own: u32) {
        let left: Vec<KeptBlob> =
            self.away.kept.extract_if(.., |_, kept| kept.owner == own).map(|(_, kept)| kept).collect();
        for kept in left {
            GuestPages::of(&mut self.rooms).release_allocation(kept.blob.allocation);
        }
    }

    /// Its blobs are blobs like any other.
    pub(in crate::vgpu) fn give_up_names(&mut self, own: u32) {
        let attached =
            self.rooms.objects.processes.get(&own).map(|process| process.attached.keys().copied().collect());
        let attached: Vec<u32> = attached.unwrap_or_default();
        for resource in attached {
            if let Some(blob) = self.rooms.memory.blobs.get_mut(&resource) {
                blob.name = None;
            }
        }
    }

    /// Ends a process that is away.
    pub(in crate::vgpu) fn end_absent(&mut self, own: u32) {
        self.end_process(own);
        self.drop_kept(own);
        count(&self.rooms.counters.stayed_away);
    }

    /// As if no process had ever gone.
    pub(in crate::vgpu) fn forget_absences(&mut self) {
        let kept = std::mem::take(&mut self.away).kept;
        kept.into_values()
            .for_each(|kept| GuestPages::of(&mut self.rooms).release_allocation(kept.blob.allocation));
    }
}

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
//! are translated at the edge. Its blobs wait apart, by names that nobody can guess: a guest gives its resources up when
//! it closes its node, and makes them again under other numbers. Its contexts are held, its messages stay where they are.
//! What has not come back [`PATIENCE`] after the device did is ended.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::away::AttachDevice;
use campanile_protocol::control::away::PagesAgain;
use campanile_protocol::control::away::Parked;
use campanile_protocol::control::away::blob_name;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use log::Level;
use serde_json::json;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::barrier::Barrier;
use super::blobs::Blob;
use super::blobs::Shown;
use super::control::Checked;
use super::counters::count;
use super::objects::Process;
use super::pending::Action;
use super::reply::Handled;
use super::reply::Origin;
use super::reply::Outcome;
use super::state::Refusal;
use super::state::Session;
use super::state::Window;
use super::suspends::Suspending;
use crate::orders::Answer;
use crate::orders::Errand;
use crate::orders::OrderError;

/// How long processes may take to come back, once their device has.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where the session's own names for contexts begin that the guest's driver has given twice.
const OWN_NAMES: u32 = 1 << 30;

/// A process that is away, or just going.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away {
    /// What it says when it comes back.
    pub parked: Parked,
    /// Its context is closed.
    pub is_gone: bool,
}

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
struct Parking {
    origin: Origin,
    parked: Parked,
    suspends: Vec<Suspending>,
}

/// The operator waits until all have gone.
#[derive(Debug)]
struct Leave {
    /// To be told; none once he was.
    errand: Option<Errand>,
    until: Instant,
    /// Devices that were lost.
    lost: Vec<u32>,
}

/// All that is known of processes that are away.
#[derive(Debug, Default)]
pub struct Absences {
    /// The guest's name for a context, where the session's is another.
    pub(super) contexts: BTreeMap<u32, u32>,
    /// Blobs of those that are away, by name.
    pub(super) kept: BTreeMap<u64, KeptBlob>,
    parking: Vec<Parking>,
    leave: Option<Leave>,
    /// Until when who is away may come back.
    until: Option<Instant>,
}

impl Absences {
    /// Whether the device is about to be taken away.
    pub(super) fn is_leaving(&self) -> bool {
        self.leave.is_some()
    }

    /// When it must be looked at.
    pub(super) fn next(&self) -> Option<Instant> {
        let leave = self.leave.as_ref().filter(|leave| leave.errand.is_some());
        leave.map(|leave| leave.until).into_iter().chain(self.until).min()
    }
}

impl Process {
    /// Whether it has parked its device.
    pub fn is_away(&self) -> bool {
        self.away.is_some()
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
    pub(super) fn own_context(&self, context: u32) -> Result<u32, Refusal> {
        if let Some(own) = self.away.contexts.get(&context) {
            return Ok(*own);
        }
        let is_present = |process: &Process| process.away.is_none_or(|away| !away.is_gone);
        let is_taken = self.away.contexts.values().any(|own| *own == context);
        match self.processes.get(&context).filter(|process| is_present(process) && !is_taken) {
            Some(_) => Ok(context),
            None => Err(Refusal::Context),
        }
    }

    /// A name for a new context that the guest calls `context`.
    pub(super) fn new_own_context(&mut self, context: u32) -> u32 {
        if !self.processes.contains_key(&context) {
            return context;
        }
        let own = (OWN_NAMES..).find(|own| !self.processes.contains_key(own)).unwrap_or(u32::MAX);
        self.away.contexts.insert(context, own);
        own
    }

    /// A context is closed: true where its process only goes away.
    pub(super) fn leaves_process(&mut self, own: u32) -> bool {
        let away = self.processes.get_mut(&own).and_then(|process| process.away.as_mut());
        let is_away = away.map(|away| away.is_gone = true).is_some();
        // Before it has its token it cannot come back.
        let is_parking = self.away.parking.iter().any(|parking| parking.origin.context == own);
        if is_parking {
            self.away.parking.retain(|parking| parking.origin.context != own);
            self.give_up_names(own);
        }
        is_away && !is_parking
    }

    /// PARK_DEVICE.
    pub(super) fn park_device(&mut self, origin: Origin, bytes: &[u8]) -> Outcome {
        bytes.is_empty().or(Status::InvalidParameter)?;
        self.away.is_leaving().or(Status::Busy)?;
        let process = self.processes.get(&origin.context).ok_or(Status::NoDevice)?;
        (!process.is_away()).or(Status::Busy)?;
        let blobs: Vec<u32> = process.attached.iter().copied().collect();
        // The answer has to lie somewhere when it comes back, before its pages are known.
        let page = self.device(origin.context)?.page.allocation;
        if self.allocations.guest_segment(page).is_some() {
            let text = "the device page lies in memory of the guest's own".to_owned();
            return Err(super::reply::Refused { status: Status::NotSupported, text });
        }
        let parked = self.new_token(&blobs).ok_or(Status::OutOfResources)?;
        for resource in blobs {
            if let Some(blob) = self.blobs.get_mut(&resource) {
                blob.name = Some(blob_name(&parked, resource));
            }
        }
        let mut suspends = Vec::new();
        for (_, handle) in self.all_contexts().into_iter().filter(|(of, _)| *of == origin.context) {
            suspends.extend(self.hold(origin.context, handle, |held| held.by_absence = true));
            // Also where its engine is lost.
            let context = self.device_mut(origin.context)?.contexts.get_mut(handle);
            context.into_iter().for_each(|context| context.held.by_absence = true);
        }
        let origin = self.park(origin);
        self.away.parking.push(Parking { origin, parked, suspends });
        self.look_at_parking();
        Ok(Handled::Parked)
    }

    /// Numbers that nobody else has, for a process with these resources.
    fn new_token(&self, resources: &[u32]) -> Option<Parked> {
        for _ in 0..8 {
            let [token, names] = random().ok()?;
            let parked = Parked { token, names };
            let is_known = |name: &u64| {
                *name == 0
                    || self.away.kept.contains_key(name)
                    || self.blobs.values().any(|blob| blob.name == Some(*name))
            };
            let mut wanted = resources.iter().map(|resource| blob_name(&parked, *resource));
            if token != 0 && !wanted.any(|name| is_known(&name)) {
                return Some(parked);
            }
        }
        None
    }

    /// Engines may have reported what a process waits for that is going.
    pub(super) fn look_at_parking(&mut self) {
        let parking = std::mem::take(&mut self.away.parking);
        let (ready, waiting): (Vec<_>, Vec<_>) =
            parking.into_iter().partition(|parking| parking.suspends.iter().all(|of| self.is_reported(of)));
        self.away.parking = waiting;
        for Parking { origin, parked, .. } in ready {
            self.answer(origin, Ok(parked.as_bytes().to_vec()));
            let Some(process) = self.processes.get_mut(&origin.context) else { continue };
            process.away = Some(Away { parked, is_gone: false });
            // The guest's driver waits for no fence of a device that is gone.
            let fences = process.timelines.values_mut().flat_map(|timeline| timeline.fences.drain(..));
            let fences: Vec<_> = fences.map(|(_, token)| (token, Ok(()))).collect();
            self.due.extend(fences);
            count(&self.counters.parked);
        }
    }

    /// A guest has given up its name for a blob of a process that is away.
    pub(super) fn keep_blob(&mut self, blob: Blob) {
        let owner = blob.name.and_then(|name| {
            let of = |process: &&Process| {
                process.away.is_some_and(|away| name.wrapping_sub(away.parked.names) <= u64::from(u32::MAX))
            };
            self.processes.iter().find(|(_, process)| of(process)).map(|(own, _)| *own)
        });
        match (blob.name, owner) {
            (Some(name), Some(owner)) => {
                let blob = Blob { shown: Shown::No, ..blob };
                if let Some(before) = self.away.kept.insert(name, KeptBlob { blob, owner }) {
                    self.release_allocation(before.blob.allocation);
                }
            }
            _ => self.release_allocation(blob.allocation),
        }
    }

    /// RESOURCE_CREATE_BLOB with a name: a process that comes back makes its blob again.
    pub fn take_blob_again(&mut self, resource: u32, size: u64, name: u64) -> Result<(), Refusal> {
        self.check_new_blob(resource, size)?;
        let is_its = |kept: &&KeptBlob| self.allocations.size(kept.blob.allocation) == size;
        let kept = self.away.kept.get(&name).filter(is_its);
        kept.filter(|kept| kept.blob.is_vram).ok_or(Refusal::Parameter)?;
        if let Some(kept) = self.away.kept.remove(&name) {
            self.blobs.insert(resource, kept.blob);
        }
        Ok(())
    }

    /// ATTACH_DEVICE: the process that the guest calls `name` is one that was away.
    pub(super) fn attach_device(&mut self, name: u32, origin: Origin, bytes: &[u8]) -> Result<(), Refusal> {
        let (message, rest) = AttachDevice::read_from_prefix(bytes).map_err(|_| Refusal::Parameter)?;
        let pages: Vec<PagesAgain> = rest
            .chunks_exact(size_of::<PagesAgain>())
            .filter_map(|it| PagesAgain::read_from_bytes(it).ok())
            .collect();
        let is_whole = rest.len() == pages.len() * size_of::<PagesAgain>();
        let is_counted = usize::try_from(message.count).is_ok_and(|count| count == pages.len());
        if !is_whole || !is_counted || message.reserved != 0 {
            return Err(Refusal::Parameter);
        }
        let is_it = |process: &&Process| {
            process.away.is_some_and(|away| away.is_gone && away.parked == message.parked)
        };
        let found = self.processes.iter().find(|(_, process)| is_it(process)).map(|(own, _)| *own);
        let own = found.ok_or(Refusal::Parameter)?;
        let page = self.attached_allocation(origin.context, message.page_resource);
        let page = page.map_err(|_| Refusal::Resource)?;
        let device = self.device(own).map_err(|_| Refusal::Context)?;
        if device.page.allocation != page || message.protocol_version >> 16 != PROTOCOL_VERSION >> 16 {
            return Err(Refusal::Parameter);
        }
        if self.away.is_leaving() {
            self.answer(Origin { context: own, ..origin }, Err(Status::Busy.into()));
            return Ok(());
        }
        self.check_pages(own, origin.context, &pages)?;
        // The new process was a name alone.
        let Some(new) = self.processes.remove(&origin.context) else { return Err(Refusal::Context) };
        self.away.contexts.insert(name, own);
        let tokens = new.timelines.into_values().flat_map(|mut timeline| timeline.take_all());
        self.due.extend(tokens.map(|token| (token, Ok(()))));
        for resource in &new.attached {
            if let Some(blob) = self.blobs.get_mut(resource) {
                blob.name = None;
            }
        }
        if let Some(process) = self.processes.get_mut(&own) {
            process.attached = new.attached;
            process.away = None;
        }
        let barrier = self.put_pages(&pages);
        self.drop_kept(own);
        self.publish_device(own);
        self.answer(Origin { context: own, ..origin }, Ok(Vec::new()));
        let root = self.device(own).map_err(|_| Refusal::Context)?.root;
        self.after(barrier, Action::Return { context: own, root });
        if !self.processes.values().any(Process::is_away) {
            self.away.until = None;
        }
        count(&self.counters.returned);
        self.journal.line(Level::Info, format_args!("process {own} has come back, as context {name}"));
        Ok(())
    }

    /// Whether blobs of its own pages can be what they were, with the pages of others that it has made.
    fn check_pages(&self, own: u32, new: u32, pages: &[PagesAgain]) -> Result<(), Refusal> {
        let mut resources = BTreeSet::new();
        for PagesAgain { name, resource, reserved } in pages {
            let kept =
                self.away.kept.get(name).filter(|kept| kept.owner == own).map(|kept| kept.blob.allocation);
            let kept = kept.ok_or(Refusal::Parameter)?;
            let again = self.attached_allocation(new, *resource).map_err(|_| Refusal::Resource)?;
            let are_pages = [kept, again].iter().all(|id| self.allocations.guest_segment(*id).is_some());
            let fits = are_pages && self.allocations.size(kept) == self.allocations.size(again);
            if !fits || *reserved != 0 || !resources.insert((*name, *resource)) {
                return Err(Refusal::Parameter);
            }
        }
        let (names, all): (BTreeSet<u64>, BTreeSet<u32>) = resources.iter().copied().unzip();
        if names.len() == pages.len() && all.len() == pages.len() { Ok(()) } else { Err(Refusal::Parameter) }
    }

    /// Puts new pages behind old blobs. Engines have them when the barrier is passed.
    fn put_pages(&mut self, pages: &[PagesAgain]) -> Barrier {
        let mut last = None;
        for PagesAgain { name, resource, .. } in pages {
            let Some(KeptBlob { blob: kept, .. }) = self.away.kept.remove(name) else { continue };
            let Some(blob) = self.blobs.get_mut(resource) else { continue };
            let again = std::mem::replace(&mut blob.allocation, kept.allocation);
            let backings = [kept.allocation, again].map(|id| self.allocations.get(id).map(|it| it.backing));
            let [Some(old), Some(new)] = backings else { continue };
            for (id, backing) in [(kept.allocation, new), (again, old)] {
                if let Some(allocation) = self.allocations.get_mut(id) {
                    allocation.backing = backing;
                }
            }
            last = self.allocations.guest_segment(kept.allocation);
            self.remap(kept.allocation);
            self.release_allocation(again);
        }
        last.map_or_else(Barrier::default, Barrier::segment)
    }

    /// A process has come back, and engines know all of its pages: it runs.
    pub(super) fn has_returned(&mut self, own: u32, root: Root) {
        if !self.device(own).is_ok_and(|device| device.root == root) {
            return;
        }
        for (context, handle) in self.all_contexts().into_iter().filter(|(of, _)| *of == own) {
            self.unhold(context, handle, |held| held.by_absence = false);
        }
    }

    /// Its page is what the daemon decided, whatever the guest has put there meanwhile.
    fn publish_device(&self, own: u32) {
        let Ok(device) = self.device(own) else { return };
        let words: Vec<(Handle, DoorbellStatus)> =
            device.doorbells.iter().map(|(_, bell)| (bell.queue, bell.state.status())).collect();
        for (queue, status) in words {
            self.store_page_word(own, device_page::status(queue.index()), status.word());
        }
        for (at, value) in [
            (device_page::PAGING_FENCE, device.paging.done()),
            (device_page::LEAVE, 0),
            (device_page::DEVICE_STATUS, device.status),
        ] {
            self.store_page_word(own, at, value);
        }
    }

    /// Frees what a process has left of what it had.
    fn drop_kept(&mut self, own: u32) {
        let left: Vec<KeptBlob> =
            self.away.kept.extract_if(.., |_, kept| kept.owner == own).map(|(_, kept)| kept).collect();
        for kept in left {
            self.release_allocation(kept.blob.allocation);
        }
    }

    /// Its blobs are blobs like any other.
    fn give_up_names(&mut self, own: u32) {
        let attached = self.processes.get(&own).map(|process| process.attached.clone()).unwrap_or_default();
        for resource in attached {
            if let Some(blob) = self.blobs.get_mut(&resource) {
                blob.name = None;
            }
        }
    }

    /// Ends a process that is away.
    fn end_absent(&mut self, own: u32) {
        self.end_process(own);
        self.drop_kept(own);
        count(&self.counters.stayed_away);
    }

    /// The operator wants all processes to park their devices.
    pub(super) fn leave(&mut self, errand: Errand, limit: Duration) {
        if self.away.leave.as_ref().is_some_and(|leave| leave.errand.is_some()) {
            return errand.answer(Err(OrderError::Refused("that was asked already".to_owned())));
        }
        self.away.leave =
            Some(Leave { errand: Some(errand), until: Instant::now() + limit, lost: Vec::new() });
        self.tell_leave(1);
        self.journal.line(Level::Info, format_args!("guest processes are asked to park their devices"));
        self.set_timer();
        self.look_at_leave();
    }

    fn tell_leave(&self, word: u64) {
        for (own, process) in &self.processes {
            if process.device.is_some() && !process.is_away() {
                self.store_page_word(*own, device_page::LEAVE, word);
            }
        }
    }

    /// It is called off: who is away may come back to this device.
    pub(super) fn stay(&mut self) -> Answer {
        let Some(leave) = self.away.leave.take() else {
            return Err(OrderError::Refused("nobody was asked to go".to_owned()));
        };
        if let Some(errand) = leave.errand {
            errand.answer(Err(OrderError::Refused("it was called off".to_owned())));
        }
        self.tell_leave(0);
        self.begin_return();
        Ok(json!({ "away": self.processes.values().filter(|process| process.is_away()).count() }))
    }

    /// From here on who is away has [`PATIENCE`] to come back.
    pub fn begin_return(&mut self) {
        self.away.leave = None;
        if self.processes.values().any(Process::is_away) {
            self.away.until = Some(Instant::now() + PATIENCE);
            self.set_timer();
        }
    }

    /// The guest has reset the device, as its driver does when it is plugged in: who is away knows nothing of that. Engines
    /// go on, since what they know of who is away is in their blocks.
    pub(super) fn reset_around_absent(&mut self) {
        self.thaw();
        self.end_present();
        self.retired.clear();
        self.front_at = None;
        self.window = Window::Awaited(Vec::new());
    }

    /// Processes of a device that is gone that cannot come back are ended: all that have not parked.
    pub fn end_present(&mut self) {
        let present = self.processes.iter().filter(|(_, process)| !process.is_away());
        let present: Vec<u32> = present.map(|(own, _)| *own).collect();
        present.into_iter().for_each(|own| self.end_process(own));
        self.away.contexts.clear();
        let away = self.processes.values_mut().filter_map(|process| process.away.as_mut());
        away.for_each(|away| away.is_gone = true);
        let blobs: Vec<u32> = self.blobs.keys().copied().collect();
        for resource in blobs {
            // Each exists: the list was just made.
            if let Err(refusal) = self.unref_blob(resource) {
                log::error!("{}: freeing resource {resource}: {refusal:?}", self.config.name);
            }
        }
        self.residency.deferred.clear();
        self.run_pending();
        self.due.clear();
    }

    /// Whether all have gone by now, or the time is over; and whether who is away has been for too long.
    pub(super) fn look_at_leave(&mut self) {
        if self.away.until.is_some_and(|until| until <= Instant::now()) {
            self.away.until = None;
            let late = self.processes.iter().filter(|(_, process)| process.is_away());
            let late: Vec<u32> = late.map(|(own, _)| *own).collect();
            self.journal.line(Level::Warn, format_args!("processes that have not come back: {late:?}"));
            late.into_iter().for_each(|own| self.end_absent(own));
        }
        let Some(until) = self.away.leave.as_ref().filter(|leave| leave.errand.is_some()).map(|it| it.until)
        else {
            return;
        };
        let here =
            |process: &Process| process.device.is_some() && process.away.is_none_or(|away| !away.is_gone);
        let present: Vec<u32> =
            self.processes.iter().filter(|(_, process)| here(process)).map(|(own, _)| *own).collect();
        // Resources are given up before the context, and leave the window after it.
        let is_settled = self.blobs.values().all(|blob| blob.name.is_none()) && self.pending.is_empty();
        let is_late = until <= Instant::now();
        if !(is_late || (present.is_empty() && is_settled)) {
            return;
        }
        for own in &present {
            self.journal.line(Level::Warn, format_args!("process {own} has not parked its device: lost"));
            self.away.parking.retain(|parking| parking.origin.context != *own);
            self.give_up_names(*own);
            if let Some(process) = self.processes.get_mut(own) {
                process.away = None;
            }
            self.end_device(*own);
        }
        let away = self.processes.values().filter(|process| process.is_away()).count();
        let Some(leave) = &mut self.away.leave else { return };
        leave.lost = present;
        let answer = json!({ "parked": away, "lost": leave.lost });
        leave.errand.take().into_iter().for_each(|errand| errand.answer(Ok(answer.clone())));
        self.journal.line(Level::Info, format_args!("{away} processes are away"));
    }

    /// As if nobody had ever gone.
    pub(super) fn forget_absences(&mut self) {
        let kept = std::mem::take(&mut self.away).kept;
        kept.into_values().for_each(|kept| self.release_allocation(kept.blob.allocation));
    }
}

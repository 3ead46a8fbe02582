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

use std::io;

use campanile_protocol::control::away::Parked;
use campanile_protocol::control::away::blob_name;
use campanile_protocol::control::status::Status;
use zerocopy::IntoBytes;

use super::absences::Absences;
use super::absences::Parking;
use crate::ids::GuestProcess;
use crate::ledger::log::Key;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::memory::blobs::Blobs;
use crate::vgpu::counters::count;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::process::Away;
use crate::vgpu::vm::Vm;

fn random() -> io::Result<[u64; 2]> {
    let mut words = [0_u64; 2];
    let bytes = words.as_mut_bytes();
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(words)
}

/// Guest processes that go, are away or come back, and what they work on.
#[derive(Debug)]
pub struct Hotplug<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
    pub(in crate::vgpu) away: &'a mut Absences,
}

impl<'a> Hotplug<'a> {
    /// Over these.
    pub fn of(vm: &'a mut Vm, away: &'a mut Absences) -> Self {
        Self { vm, away }
    }

    /// Sets the timer for what must be looked at first.
    pub(super) fn set_timer(&mut self) {
        if let Some(at) = self.away.next() {
            self.vm.timer.set(at);
        }
    }
}

impl Hotplug<'_> {
    /// A context is closed: true where its process only goes away.
    pub(in crate::vgpu) fn leaves_process(&mut self, own: GuestProcess) -> bool {
        let away = self.vm.objects.processes.get_mut(&own).and_then(|process| process.away.as_mut());
        away.map(|away| away.is_gone = true).is_some()
    }

    /// A process that is about to park has not its token yet, and ends: it cannot come back.
    pub(in crate::vgpu) fn stop_parking(&mut self, own: GuestProcess) {
        let its: Vec<Parking> =
            self.away.parking.extract_if(.., |parking| parking.origin.context == own).collect();
        for parking in its {
            self.give_up_names(own);
            self.vm.answer(parking.origin, Err(Status::DeviceLost.into()));
        }
    }

    /// PARK_DEVICE.
    pub(in crate::vgpu) fn park_device(&mut self, origin: Origin) -> Outcome {
        self.away.is_leaving().or(Status::Busy)?;
        let process = self.vm.objects.processes.get(&origin.context).ok_or(Status::NoDevice)?;
        let blobs: Vec<u32> = process.attached.keys().copied().collect();
        // The answer has to lie somewhere when it comes back, before its pages are known.
        let page = self.vm.objects.device(origin.context)?.page.allocation;
        if self.vm.memory.allocations.guest_segment(page).is_some() {
            let text = "the device page lies in memory of the guest's own".to_owned();
            return Err(crate::vgpu::objects::message::Refused { status: Status::NotSupported, text });
        }
        let parked = self.new_token(&blobs).ok_or(Status::OutOfResources)?;
        for resource in blobs {
            if let Some(blob) = self.vm.memory.blobs.get_mut(&resource) {
                blob.name = Some(blob_name(&parked, resource));
            }
        }
        let mut suspends = Vec::new();
        for (_, handle) in self.vm.objects.all_contexts().into_iter().filter(|(of, _)| *of == origin.context)
        {
            suspends.extend(self.vm.engines.hold(
                &mut self.vm.objects,
                &*self.vm.config.schedule,
                origin.context,
                handle,
                |held| held.by_absence = true,
            ));
            // Also where its engine is lost.
            let context = self.vm.objects.device_mut(origin.context)?.contexts.get_mut(handle);
            context.into_iter().for_each(|context| context.held.by_absence = true);
        }
        let origin = self.vm.objects.park_end(origin);
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
                    || self.vm.memory.blobs.values().any(|blob| blob.name == Some(*name))
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
            .partition(|parking| parking.suspends.iter().all(|of| self.vm.engines.is_reported(of)));
        self.away.parking = waiting;
        for Parking { origin, parked, .. } in ready {
            self.vm.answer(origin, Ok(parked.as_bytes().to_vec()));
            let Some(process) = self.vm.objects.processes.get_mut(&origin.context) else { continue };
            process.away = Some(Away { parked, is_gone: false });
            // The guest's driver waits for no fence of a device that is gone.
            let fences = process.timelines.values_mut().flat_map(|timeline| timeline.fences.drain(..));
            let fences: Vec<_> = fences.map(|(_, token)| (token, Ok(()))).collect();
            self.vm.objects.due.extend(fences);
            count(&self.vm.counters.parked);
        }
    }

    /// Its blobs are blobs like any other.
    pub(in crate::vgpu) fn give_up_names(&mut self, own: GuestProcess) {
        let attached =
            self.vm.objects.processes.get(&own).map(|process| process.attached.keys().copied().collect());
        let attached: Vec<u32> = attached.unwrap_or_default();
        for resource in attached {
            if let Some(blob) = self.vm.memory.blobs.get_mut(&resource) {
                blob.name = None;
            }
        }
    }

    /// Ends a process that is away.
    pub(in crate::vgpu) fn end_absent(&mut self, own: GuestProcess) {
        self.end_process(own);
        Blobs::of(self.vm, self.away).drop_kept(own);
        count(&self.vm.counters.stayed_away);
    }

    /// Ends a guest process, and what it has.
    pub(in crate::vgpu) fn end_process(&mut self, context: GuestProcess) {
        self.stop_parking(context);
        Devices::of(self.vm).end_device(context);
        if let Some(name) = self.away.name_of(context) {
            self.vm.config.ledger.remove(Key::Context(name));
        }
        self.vm.objects.remove(context);
    }

    /// Writes for a daemon after this one what the guest's driver calls the processes that are there, of a session that was another's.
    pub(in crate::vgpu) fn write_names(&self) {
        let there = self.vm.objects.processes.iter().filter(|(_, process)| !process.is_away());
        for name in there.filter_map(|(own, _)| self.away.name_of(*own)) {
            self.vm.config.ledger.put(Key::Context(name), &());
        }
    }
}

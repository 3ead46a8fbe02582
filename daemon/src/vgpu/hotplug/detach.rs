//! A device is about to be taken away from its VM, or has come (`away.rs`): what the operator asks for, and which
//! processes are too late.

use std::time::Duration;

use campanile_host_gpu::clock;
use campanile_protocol::device_page;
use log::Level;
use serde_json::json;

use super::absences::Leave;
use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::memory::blobs::Blobs;
use crate::vgpu::control::orders::Answer;
use crate::vgpu::control::orders::OrderError;
use crate::vgpu::control::orders::PendingOrder;
use crate::vgpu::hotplug::detached::Hotplug;
use crate::vgpu::objects::process::Process;

/// How long processes may take to come back, once their device has.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long processes that are lost may take to close their devices.
const GRACE: Duration = Duration::from_secs(1);

impl Hotplug<'_> {
    /// The operator wants all processes to park their devices.
    pub(in crate::vgpu) fn leave(&mut self, pending: PendingOrder, limit: Duration) {
        if self.away.leave.as_ref().is_some_and(|leave| leave.pending.is_some()) {
            return pending.answer(Err(OrderError::Refused("that was asked already".to_owned())));
        }
        self.away.leave = Some(Leave { pending: Some(pending), until: clock::now() + limit, lost: None });
        // What is away cannot come back before this device is back, however late it is.
        self.away.until = None;
        self.tell_leave(1);
        self.vm.journal.line(Level::Info, format_args!("guest processes are asked to park their devices"));
        self.set_timer();
        self.look_at_leave();
    }

    fn tell_leave(&self, word: u64) {
        for (own, process) in &self.vm.objects.processes {
            if process.device.is_some() && !process.is_away() {
                self.vm.memory.store_page_word(&self.vm.objects, *own, device_page::LEAVE, word);
            }
        }
    }

    /// It is called off: processes that are away may come back to this device.
    pub(in crate::vgpu) fn stay(&mut self) -> Answer {
        let Some(leave) = self.away.leave.take() else {
            return Err(OrderError::Refused("no process was asked to go".to_owned()));
        };
        if let Some(pending) = leave.pending {
            pending.answer(Err(OrderError::Refused("it was called off".to_owned())));
        }
        self.tell_leave(0);
        self.begin_return();
        Ok(json!({ "away": self.vm.objects.processes.values().filter(|process| process.is_away()).count() }))
    }

    /// From here on processes that are away have [`TIMEOUT`] to come back.
    pub fn begin_return(&mut self) {
        self.away.leave = None;
        if self.vm.objects.processes.values().any(Process::is_away) {
            self.away.until = Some(clock::now() + TIMEOUT);
            self.set_timer();
        }
    }

    /// Processes of a device that is gone that cannot come back are ended: all that have not parked.
    pub fn end_present(&mut self) {
        let present = self.vm.objects.processes.iter().filter(|(_, process)| !process.is_away());
        let present: Vec<GuestProcess> = present.map(|(own, _)| *own).collect();
        present.into_iter().for_each(|own| self.end_process(own));
        self.away.contexts.clear();
        let away = self.vm.objects.processes.values_mut().filter_map(|process| process.away.as_mut());
        away.for_each(|away| away.is_gone = true);
        let blobs: Vec<u32> = self.vm.memory.blobs.keys().copied().collect();
        for resource in blobs {
            // Each exists: the list was just made.
            if let Err(refusal) = Blobs::of(self.vm, self.away).unref_blob(resource) {
                log::error!("{}: freeing resource {resource}: {refusal:?}", self.vm.config.name);
            }
        }
        self.vm.memory.residency.deferred.clear();
        Deferred::of(self.vm).run_pending();
        self.vm.objects.due.clear();
    }

    /// Whether all have gone by now, or the time is over; and whether a process has been away for too long.
    pub(in crate::vgpu) fn look_at_leave(&mut self) {
        if self.away.until.is_some_and(|until| until <= clock::now()) {
            self.away.until = None;
            let late = self.vm.objects.processes.iter().filter(|(_, process)| process.is_away());
            let late: Vec<GuestProcess> = late.map(|(own, _)| *own).collect();
            self.vm.journal.line(Level::Warn, format_args!("processes that have not come back: {late:?}"));
            late.into_iter().for_each(|own| self.end_absent(own));
        }
        let waits = self.away.leave.as_ref().filter(|leave| leave.pending.is_some());
        let Some((until, lost)) = waits.map(|leave| (leave.until, leave.lost.clone())) else { return };
        let is_late = until <= clock::now();
        let Some(lost) = lost else {
            if is_late || self.is_left() {
                self.lose_present();
            }
            return;
        };
        if is_late || !lost.iter().any(|own| self.vm.objects.processes.contains_key(own)) {
            self.end_leave(&lost);
        }
    }

    /// Whether no process is there any more. Resources are given up before the context, and leave the window after it.
    /// A process that is about to open a device has mapped its page, and is refused in a moment.
    fn is_left(&self) -> bool {
        let is_settled = self.vm.memory.blobs.values().all(|blob| blob.name.is_none())
            && self.vm.engines.pending.is_empty();
        is_settled && self.vm.objects.processes.values().all(Process::is_gone)
    }

    /// Who has not parked its device loses it. Its driver has [`GRACE`] to let go of what the process has mapped.
    fn lose_present(&mut self) {
        let is_lost = |process: &Process| process.device.is_some() && !process.is_gone();
        let lost: Vec<GuestProcess> = self
            .vm
            .objects
            .processes
            .iter()
            .filter(|(_, process)| is_lost(process))
            .map(|(own, _)| *own)
            .collect();
        for own in &lost {
            self.vm.journal.line(Level::Warn, format_args!("process {own} has not parked its device: lost"));
            self.stop_parking(*own);
            self.give_up_names(*own);
            Blobs::of(self.vm, self.away).drop_kept(*own);
            if let Some(process) = self.vm.objects.processes.get_mut(own) {
                process.away = None;
            }
            Devices::of(self.vm).end_device(*own);
        }
        if lost.is_empty() {
            return self.end_leave(&lost);
        }
        if let Some(leave) = &mut self.away.leave {
            (leave.until, leave.lost) = (clock::now() + GRACE, Some(lost));
        }
        self.set_timer();
    }

    /// The operator may take the device away.
    fn end_leave(&mut self, lost: &[GuestProcess]) {
        let away = self.vm.objects.processes.values().filter(|process| process.is_away()).count();
        let answer = json!({ "parked": away, "lost": lost });
        let pending = self.away.leave.as_mut().and_then(|leave| leave.pending.take());
        if let Some(pending) = pending {
            pending.answer(Ok(answer));
        }
        self.vm.journal.line(Level::Info, format_args!("{away} processes are away"));
    }
}

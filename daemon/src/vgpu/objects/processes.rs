//! The guest processes of a VM: what each has, what it pays, and what its timelines wait for.
//!
//! The bottom of the session: it calls no other room. What becomes due to be answered is gathered here, in order, until
//! the front takes it.

use super::process::QueueKind;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Arc;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::ids::QueueIndex;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;

use super::budget::Charge;
use super::budget::Charges;
use super::budget::Kind;
use super::kernel_board::KernelBoard;
use super::message::Origin;
use super::message::Refused;
use super::message::WORK_BYTES;
use super::process::Device;
use super::process::Process;
use super::refusal::Refusal;
use super::spans::Spans;
use super::timeline::Item;
use super::timeline::Timeline;
use super::timeline::Token;
use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;

/// The guest processes of a VM, by the session's number of each, and what is due to be answered.
#[derive(Debug, Default)]
pub struct Objects {
    /// The processes. One that is detached keeps its number.
    pub processes: BTreeMap<GuestProcess, Process>,
    /// What is due to be answered, in order.
    pub due: Vec<(Token, Result<(), Refusal>)>,
    /// Bytes of kernel sources.
    pub kernel_bytes: usize,
    /// The kernels, for a migration.
    pub kernel_board: Arc<KernelBoard>,
    /// The greatest generation of a kernel of a device that has ended: a name is not given to another while an engine may
    /// still answer for it.
    kernel_generation: u32,
    /// The greatest number of work on a timeline of a process that has ended; likewise.
    last_item: u64,
    /// Of buffers that have not ended.
    pub spans: Spans,
}

impl Objects {
    /// Takes a process that has ended out: all its fences are due, and no later process of its number gets numbers of its
    /// work. Its device has ended before.
    pub fn remove(&mut self, context: GuestProcess) {
        let Some(mut process) = self.processes.remove(&context) else { return };
        self.spans.gone(context);
        for timeline in process.timelines.values_mut() {
            self.last_item = self.last_item.max(timeline.last());
            self.due.extend(timeline.take_all().into_iter().map(|token| (token, Ok(()))));
        }
    }

    /// Takes the device of a process out, which ends: kernels of its next device get later generations.
    pub fn take_device(&mut self, context: GuestProcess) -> Option<Device> {
        let device = self.processes.get_mut(&context)?.device.take()?;
        self.kernel_generation = self.kernel_generation.max(device.kernels.last_generation());
        Some(device)
    }

    /// The generation that those of kernels of a new device are greater than.
    pub fn kernel_generation(&self) -> u32 {
        self.kernel_generation
    }

    /// Signals `token` when the timeline `ring` of a process comes to it; at once where there is no such process, or that
    /// is detached: it waits with its next device.
    pub fn fence(&mut self, context: GuestProcess, ring: u8, token: Token) {
        match self.processes.get_mut(&context).filter(|process| !process.is_away()) {
            Some(process) => {
                let last = self.last_item;
                process.timelines.entry(ring).or_insert_with(|| Timeline::after(last)).fence(token);
                self.end_item(context, ring, None);
            }
            None => self.due.push((token, Ok(()))),
        }
    }

    /// The device of a guest process.
    ///
    /// # Errors
    /// It has none.
    pub fn device(&self, context: GuestProcess) -> Result<&Device, Refused> {
        let process = self.processes.get(&context).ok_or(Status::NoDevice)?;
        process.device.as_ref().ok_or_else(|| Status::NoDevice.into())
    }

    /// As [`Self::device`], to change.
    ///
    /// # Errors
    /// As [`Self::device`].
    pub fn device_mut(&mut self, context: GuestProcess) -> Result<&mut Device, Refused> {
        let process = self.processes.get_mut(&context).ok_or(Status::NoDevice)?;
        process.device.as_mut().ok_or_else(|| Status::NoDevice.into())
    }

    /// As [`Self::device`], where it still works.
    ///
    /// # Errors
    /// It has none, or that is lost.
    pub fn active_device(&self, context: GuestProcess) -> Result<&Device, Refused> {
        let device = self.device(context)?;
        if device.is_active() { Ok(device) } else { Err(Status::DeviceLost.into()) }
    }

    /// All contexts there are: guest process and handle.
    pub fn all_contexts(&self) -> Vec<(GuestProcess, ContextHandle)> {
        let devices = self.processes.iter().filter_map(|(of, process)| Some((*of, process.device.as_ref()?)));
        devices.flat_map(|(of, device)| device.contexts.iter().map(move |(handle, _)| (of, handle))).collect()
    }

    /// Whose queue an entry of an engine's queue table is: context and queue.
    pub fn owner_of_hw_queue(
        &self,
        at: EngineAddress,
        hw_queue: QueueIndex,
    ) -> Option<(GuestProcess, Handle)> {
        self.processes.iter().find_map(|(context, process)| {
            let device = process.device.as_ref()?;
            let mut doorbells = device.doorbells.iter();
            let (_, doorbell) =
                doorbells.find(|(_, doorbell)| doorbell.at == at && doorbell.hw_queue == Some(hw_queue))?;
            Some((*context, doorbell.queue))
        })
    }

    /// Whose context an entry of an engine's context table is: guest process and context.
    pub fn owner_of_entry(
        &self,
        at: EngineAddress,
        entry: ContextIndex,
    ) -> Option<(GuestProcess, ContextHandle)> {
        let devices = self.processes.iter().filter_map(|(of, process)| Some((*of, process.device.as_ref()?)));
        let mut all = devices.flat_map(|(of, device)| device.contexts.iter().map(move |it| (of, it)));
        let found = all.find(|(_, (_, context))| context.at == at && context.entry == Some(entry));
        found.map(|(of, (handle, _))| (of, handle))
    }

    /// Charges a process for one more item.
    ///
    /// # Errors
    /// There is no such process, or the VM's budget is used up.
    pub fn charge(&self, context: GuestProcess, kind: Kind, bytes: u64) -> Result<Charge, Refused> {
        let process = self.processes.get(&context).ok_or(Status::NoDevice)?;
        Ok(process.purse.charge(kind, bytes)?)
    }

    /// Charges a process for so many items more, together.
    ///
    /// # Errors
    /// As [`Self::charge`], for all of them.
    pub fn charge_each(
        &self,
        context: GuestProcess,
        kind: Kind,
        bytes: u64,
        count: usize,
    ) -> Result<Charges, Refused> {
        let process = self.processes.get(&context).ok_or(Status::NoDevice)?;
        Ok(process.purse.charge_each(kind, bytes, count)?)
    }

    /// Keeps a message, or a buffer, for later: its timeline waits for it.
    ///
    /// # Errors
    /// The VM's budget is used up; nothing was changed.
    pub fn park(&mut self, origin: Origin) -> Result<Origin, Refused> {
        let charge = self.charge(origin.context, Kind::Work, WORK_BYTES)?;
        Ok(self.park_charged(origin, Some(charge)))
    }

    /// As [`Self::park`], for a message that ends something, with which it was paid for.
    pub fn park_end(&mut self, origin: Origin) -> Origin {
        self.park_charged(origin, None)
    }

    /// As [`Self::park`], with what was charged for it already.
    pub fn park_charged(&mut self, origin: Origin, charge: Option<Charge>) -> Origin {
        let last = self.last_item;
        let item = self.processes.get_mut(&origin.context).map(|process| {
            process.timelines.entry(origin.ring).or_insert_with(|| Timeline::after(last)).begin(charge)
        });
        Origin { item, ..origin }
    }

    /// Ends a piece of work on a timeline; fences behind it may be due.
    pub fn end_item(&mut self, context: GuestProcess, ring: u8, item: Option<Item>) {
        let Some(process) = self.processes.get_mut(&context) else { return };
        let Some(timeline) = process.timelines.get_mut(&ring) else { return };
        if let Some(item) = item {
            timeline.end(item);
            self.spans.ended((context, ring, item));
        }
        while let Some(token) = timeline.take_due() {
            self.due.push((token, Ok(())));
        }
    }

    /// Cancels what a suspended context holds for an ordinary queue that is to be destroyed: it would wait for ever.
    pub(in crate::vgpu) fn cancel_held(
        &mut self,
        context: GuestProcess,
        queue: Handle,
    ) -> Result<(), Refused> {
        let device = self.device_mut(context)?;
        let of_queue = device.queues.get(queue).ok_or(Status::InvalidHandle)?;
        if matches!(of_queue.kind, QueueKind::UserMode { .. }) {
            return Ok(());
        }
        let holder = of_queue.context;
        let Some(object) = device.contexts.get_mut(holder).filter(|object| object.held.by_guest) else {
            return Ok(());
        };
        let (cancelled, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut object.software_queue).into_iter().partition(|buffer| buffer.queue == queue);
        object.software_queue = kept;
        if std::mem::take(&mut object.is_parked) {
            // What it waited for may have been one of these: the first of the rest finds out for itself.
            object.listed = false;
            device.gpu_waits.retain(|wait| wait.context != holder);
        }
        for buffer in cancelled {
            self.end_item(context, buffer.ring, buffer.item);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

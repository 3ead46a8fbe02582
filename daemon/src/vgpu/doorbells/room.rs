//! The room of doorbells: what it owns, what it works on, and how doorbells are disconnected.
//!
//! It calls `objects` and `memory` and tells engines; answers, the timer and pokes of engines are returned.
//!
//! Order, as the guest sees it: disconnecting, the status says RETRY or ABORT before the slot lets the cell go
//! (UMS-67, UMS-70).

use std::sync::atomic::Ordering;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use campanile_protocol::handshake::doorbell;
use campanile_protocol::page_table::SegmentId;
use campanile_protocol::queue::ring;

use super::drain::Drain;
use super::rate::Rate;
use super::slots::Holder;
use crate::ids::GuestProcess;
use crate::vgpu::config::Config;
use crate::vgpu::counters::Counters;
use crate::vgpu::counters::count;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::memory::room::Memory;
use crate::vgpu::memory::vidmm::allocations::Spot;
use crate::vgpu::objects::doorbell_state::Disconnect;
use crate::vgpu::objects::doorbell_state::DoorbellState;
use crate::vgpu::objects::doorbell_state::Place;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::QueueKind;
use crate::vgpu::objects::processes::Objects;

/// Alignment of a ring and a ring control: a cache line.
pub(in crate::vgpu) const LINE: u64 = 64;

/// What a vGPU has of doorbells beside the doorbells themselves, which are objects of their devices, and the slots and queued
/// connects of each engine.
#[derive(Debug, Default)]
pub struct Doorbells {
    /// Doorbells that end, in the order in which their waits began.
    pub drains: Vec<Drain>,
    /// How often the guest may connect.
    pub rate: Rate,
}

/// What the room works on: the rooms below it, and the engines by place.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Processes with their doorbells.
    pub objects: &'a mut Objects,
    /// Device pages.
    pub memory: &'a Memory,
    /// Engines, with their slots and queued connects.
    pub engines: &'a mut [EngineSlot],
    /// Models, the notify switch, timeouts.
    pub config: &'a Config,
    /// What is counted.
    pub counters: &'a Counters,
}

/// What a removed doorbell leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The page tables of its process.
    pub root: Root,
    /// Its ring and ring control, which may be released when every engine has let go of them.
    pub memory: [AllocationId; 2],
}

/// What a disconnect does to the state of a doorbell.
type Edge = fn(&mut DoorbellState) -> Disconnect;

impl Parts<'_> {
    /// Takes the slot of a doorbell for another one.
    pub fn victimise(&mut self, holder: Holder) {
        self.disconnect(holder, DoorbellState::victimise);
    }

    /// Disconnects a doorbell with RETRY.
    pub fn retry(&mut self, holder: Holder) {
        self.disconnect(holder, DoorbellState::retry);
    }

    /// Disconnects every doorbell of an engine with RETRY.
    pub fn disconnect_all(&mut self, at: EngineAddress) {
        for holder in connected_on(self.objects, at) {
            self.retry(holder);
        }
    }

    /// All doorbells of a process, for good, and then its queues off the engines: nothing of them runs any more.
    pub fn abort_all(&mut self, context: GuestProcess) {
        let Ok(device) = self.objects.device(context) else { return };
        let doorbells: Vec<Handle> = device.doorbells.iter().map(|(handle, _)| handle).collect();
        for doorbell in doorbells {
            self.disconnect(Holder { context, doorbell }, DoorbellState::abort);
        }
        let Ok(device) = self.objects.device_mut(context) else { return };
        for (_, doorbell) in device.doorbells.iter_mut() {
            let Some(hw_queue) = doorbell.hw_queue.take() else { continue };
            if let Some(process) = self.engines[doorbell.at.index()].process_mut() {
                process.destroy_hw_queue(hw_queue);
            }
        }
    }

    /// Disconnects the doorbells of an engine that are connected otherwise than the notify switch says; their reconnects are
    /// answered in the new mode (UMS-97).
    pub fn follow_switch(&mut self, at: EngineAddress) {
        let always = self.config.notify.is_on(node_index(at.node));
        for holder in connected_on(self.objects, at) {
            let device = self.objects.device(holder.context).ok();
            let doorbell = device.and_then(|device| device.doorbells.get(holder.doorbell));
            let misfits = doorbell.is_some_and(|doorbell| match doorbell.state {
                DoorbellState::Connected(place) => (place == Place::Notified) != (always || doorbell.notify),
                DoorbellState::Retry | DoorbellState::Abort => false,
            });
            if misfits {
                self.retry(holder);
            }
        }
    }

    /// Changes the state of a doorbell, publishes its status, then lets its place go (UMS-70).
    fn disconnect(&mut self, holder: Holder, edge: Edge) {
        let Ok(device) = self.objects.device_mut(holder.context) else { return };
        let Some(found) = device.doorbells.get_mut(holder.doorbell) else { return };
        let disconnect = edge(&mut found.state);
        let (status, at, index, hw_queue) =
            (found.state.status().word(), found.at, found.queue.index(), found.hw_queue);
        let Some(page) = self.memory.page(self.objects, holder.context) else { return };
        let Some(word) = page.word(device_page::status(index)) else { return };
        match disconnect {
            Disconnect::Nothing => {}
            Disconnect::PublishOnly => word.store(status, Ordering::Release),
            Disconnect::Free(place) => {
                let engine = &mut self.engines[at.index()];
                doorbell::disconnect(word, status, || {
                    let Some(process) = engine.process_mut() else { return };
                    match place {
                        Place::Own(slot) | Place::Shared(slot) => process.disconnect_doorbell(slot),
                        Place::Notified => {
                            hw_queue.into_iter().for_each(|queue| process.disconnect_notified(queue))
                        }
                    }
                });
                if let Place::Own(slot) = place {
                    engine.slots.free(slot);
                }
            }
        }
        page.mark(device_page::status(index), 8);
    }

    /// Forgets a doorbell that is disconnected, and its queue with the engine; none where it has gone with its device. Its
    /// ring and ring control are free when every engine has let go of them.
    #[must_use]
    pub fn remove(&mut self, holder: Holder) -> Option<Removed> {
        let device = self.objects.device_mut(holder.context).ok()?;
        let doorbell = device.doorbells.remove(holder.doorbell)?;
        let engine = self.engines[doorbell.at.index()].process_mut();
        let reached = engine.zip(doorbell.hw_queue).map_or(0, |(engine, hw_queue)| {
            engine.destroy_hw_queue(hw_queue);
            engine.tables.queue_completed(hw_queue)
        });
        if let Some(queue) = device.queues.get_mut(doorbell.queue)
            && let QueueKind::UserMode { completed, .. } = queue.kind
        {
            queue.kind = QueueKind::UserMode { doorbell: None, completed: completed.max(reached) };
        }
        Some(Removed { root: device.root, memory: [doorbell.ring, doorbell.control] })
    }

    /// NOTIFY: the engine looks at the ring of a queue that is connected in notify mode, or else at all it has.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn notify(&mut self, context: GuestProcess, message: &Notify) -> Result<(), Refused> {
        (message.flags == 0 && message.reserved == 0).or(Status::InvalidParameter)?;
        let device = self.objects.device(context)?;
        let queue = device.queues.get(message.queue).ok_or(Status::InvalidHandle)?;
        let doorbell = match queue.kind {
            QueueKind::UserMode { doorbell: Some(doorbell), .. } => device.doorbells.get(doorbell),
            QueueKind::UserMode { doorbell: None, .. } | QueueKind::Ordinary { .. } => None,
        };
        let notified =
            doorbell.filter(|doorbell| doorbell.state == DoorbellState::Connected(Place::Notified));
        let rung = notified.and_then(|doorbell| doorbell.hw_queue);
        count(&self.counters.notifies);
        if let Some(process) = self.engines[queue.at.index()].process_mut() {
            match rung {
                Some(hw_queue) => process.notify(hw_queue),
                None => process.wake(),
            }
        }
        Ok(())
    }
}

/// The doorbells of an engine that are connected.
pub(in crate::vgpu) fn connected_on(objects: &Objects, at: EngineAddress) -> Vec<Holder> {
    let devices = objects.processes.iter().filter_map(|(context, process)| {
        let device = process.device.as_ref()?;
        device.presence[at.index()].map(|_| (*context, device))
    });
    devices
        .flat_map(|(context, device)| {
            let of_node = device
                .doorbells
                .iter()
                .filter(move |(_, bell)| bell.at == at && matches!(bell.state, DoorbellState::Connected(_)));
            of_node.map(move |(doorbell, _)| Holder { context, doorbell })
        })
        .collect()
}

/// Memory that a guest process names for a ring or a ring control.
#[derive(Debug, Clone, Copy)]
pub struct RingMemory {
    /// The resource.
    pub resource: u32,
    /// Where it is mapped for the GPU.
    pub va: u64,
    /// Its size.
    pub bytes: u64,
    /// Whether the engine writes to it.
    pub writable: bool,
}

impl RingMemory {
    /// The allocation behind it: attached, mapped for the GPU, in one piece.
    ///
    /// # Errors
    /// It is not so, or not resident.
    pub fn allocation(
        self,
        objects: &Objects,
        memory: &Memory,
        context: GuestProcess,
    ) -> Result<AllocationId, Refused> {
        let Self { resource, va, bytes, writable } = self;
        let allocation = memory.attached_allocation(objects, context, resource)?;
        va.is_multiple_of(LINE).or(Status::InvalidAddress)?;
        let device = objects.device(context)?;
        let (mapping, _) = device.find_mapping(va, bytes).ok_or(Status::InvalidAddress)?;
        (mapping.allocation == allocation && (mapping.writable || !writable)).or(Status::InvalidAddress)?;
        // UMS-38: MAKE_RESIDENT first. Guest RAM never leaves, and what engines do not know of it yet they wait for.
        let is_there = matches!(memory.allocations.spot(allocation), Spot::Segment(..))
            || memory.allocations.guest_segment(allocation).is_some();
        (is_there && !device.paging.waits_for(va, bytes)).or(Status::NotResident)?;
        // An engine's CPU looks there, and sees no memory of a device.
        let is_hidden = matches!(memory.allocations.spot(allocation), Spot::Segment(SegmentId::LOCAL, _));
        (!is_hidden).or(Status::InvalidResource)?;
        Ok(allocation)
    }

    /// The ring of a doorbell of so many entries.
    pub const fn ring(resource: u32, va: u64, entries: u32) -> Self {
        Self { resource, va, bytes: entries as u64 * ring::RING_ENTRY_BYTES, writable: false }
    }

    /// The ring control of a doorbell.
    pub const fn control(resource: u32, va: u64) -> Self {
        Self { resource, va, bytes: ring::CONTROL_BYTES, writable: true }
    }
}

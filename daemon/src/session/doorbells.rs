//! Doorbells: create, connect, victimise, destroy, F1.
//!
//! Order, as the guest sees it: connecting, the slot watches the cell before the status says CONNECTED
//! (UMS-57); disconnecting, the status says RETRY or ABORT before the slot lets the cell go (UMS-67, UMS-70).

use std::sync::atomic::Ordering;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_PRIVATE_BYTES;
use campanile_protocol::control::message::DOORBELL_REQUIRE_SECONDARY;
use campanile_protocol::control::message::DOORBELL_RESIZE_RING;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::reply::DoorbellConnected;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::engine::block::QUEUE_EXEMPT;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::handle::Handle;
use campanile_protocol::handshake::doorbell;
use campanile_protocol::queue::ring;

use super::barrier::Barrier;
use super::control::Checked;
use super::counters::count;
use super::objects::Doorbell;
use super::objects::QueueKind;
use super::objects::node_index;
use super::pending::Action;
use super::reply::Handled;
use super::reply::Origin;
use super::reply::Outcome;
use super::reply::Refused;
use super::state::Session;
use crate::doorbell::slots::Holder;
use crate::doorbell::slots::Taken;
use crate::doorbell::state::Connect;
use crate::doorbell::state::Disconnect;
use crate::doorbell::state::DoorbellState;
use crate::vidmm::allocations::AllocationId;

/// Alignment of a ring and a ring control: a cache line.
const LINE: u64 = 64;

impl Session {
    /// CREATE_DOORBELL. Takes no physical doorbell (UMS-33).
    pub(super) fn create_doorbell(&mut self, origin: Origin, message: &CreateDoorbell) -> Outcome {
        (message.flags & DOORBELL_REQUIRE_SECONDARY == 0).or(Status::NotSupported)?;
        let known = message.flags & !(DOORBELL_REQUIRE_SECONDARY | DOORBELL_RESIZE_RING) == 0
            && message.reserved == 0;
        known.or(Status::InvalidParameter)?;
        (!self.has_too_much_pending()).or(Status::OutOfResources)?;
        (message.private_bytes as usize <= DOORBELL_PRIVATE_BYTES).or(Status::InvalidParameter)?;
        let entries = message.ring_entries;
        let sized =
            entries.is_power_of_two() && (ring::MIN_RING_ENTRIES..=ring::MAX_RING_ENTRIES).contains(&entries);
        sized.or(Status::InvalidParameter)?;
        let device = self.device(origin.context)?;
        let queue = device.queues.get(message.queue).ok_or(Status::InvalidHandle)?;
        let node = queue.node;
        let flags = if queue.is_exempt { QUEUE_EXEMPT } else { 0 };
        let completed = match queue.kind {
            QueueKind::Ordinary { .. } => return Err(Status::InvalidParameter.into()),
            QueueKind::UserMode { doorbell: Some(_), .. } => return Err(Status::Busy.into()),
            QueueKind::UserMode { doorbell: None, completed } => completed,
        };
        let ring_bytes = u64::from(entries) * ring::RING_ENTRY_BYTES;
        let ring =
            self.ring_memory(origin.context, message.ring_resource, message.ring_va, ring_bytes, false)?;
        let control = self.ring_memory(
            origin.context,
            message.control_resource,
            message.control_va,
            ring::CONTROL_BYTES,
            true,
        )?;
        let process = self.ensure_presence(origin.context, node)?;
        let index = message.queue.index();
        let engine = self.engines[node_index(node)].process_mut().ok_or(Status::DeviceLost)?;
        let entry = QueueEntry {
            generation: 0,
            ring_va: message.ring_va,
            control_va: message.control_va,
            consumed: 0,
            completed,
            ring_entries: entries,
            process,
            fence_index: index,
            flags,
        };
        let hw_queue = engine
            .create_hw_queue(entry)
            .map_err(|error| Refused { status: Status::OutOfResources, text: error.to_string() })?;
        let doorbell = Doorbell {
            queue: message.queue,
            node,
            state: DoorbellState::Retry,
            was_connected: false,
            hw_queue: Some(hw_queue),
            ring,
            control,
        };
        let device = self.device_mut(origin.context)?;
        // As many doorbells fit as queues, and a queue has one at the most.
        let handle = device.doorbells.insert(doorbell).ok_or(Status::OutOfResources)?;
        if let Some(queue) = device.queues.get_mut(message.queue) {
            queue.kind = QueueKind::UserMode { doorbell: Some(handle), completed };
        }
        self.allocations.retain(ring);
        self.allocations.retain(control);
        self.store_page_word(
            origin.context,
            device_page::status(index),
            DoorbellState::Retry.status().word(),
        );
        // Who waits already, waits for what the engine will signal through this entry.
        self.release_waiters(origin.context, message.queue);
        Ok(Handled::with(&DoorbellCreated {
            doorbell: handle,
            cell_offset: device_page::cell(index),
            status_offset: device_page::status(index),
            last_queued_offset: device_page::last_queued(index),
            summary_bit: device_page::summary_bit(index),
            private_data: message.private_data,
        }))
    }

    /// The allocation behind a ring or ring control: attached, mapped for the GPU, in one piece.
    fn ring_memory(
        &self,
        context: u32,
        resource: u32,
        va: u64,
        bytes: u64,
        writable: bool,
    ) -> Result<AllocationId, Refused> {
        let allocation = self.attached_allocation(context, resource)?;
        va.is_multiple_of(LINE).or(Status::InvalidAddress)?;
        let (mapping, _) = self.device(context)?.find_mapping(va, bytes).ok_or(Status::InvalidAddress)?;
        (mapping.allocation == allocation && (mapping.writable || !writable)).or(Status::InvalidAddress)?;
        Ok(allocation)
    }

    /// CONNECT_DOORBELL. Never waits for a slot: takes one from somebody else if it must (UMS-13, UMS-76).
    pub(super) fn connect_doorbell(&mut self, origin: Origin, message: &Named) -> Outcome {
        let device = self.device(origin.context)?;
        let doorbell = device.doorbells.get(message.handle).ok_or(Status::InvalidHandle)?;
        match doorbell.state.connect() {
            Connect::Already => {}
            Connect::Refused => return Err(Status::DeviceLost.into()),
            Connect::TakeSlot => {
                let (node, cell) = (doorbell.node, doorbell.queue.index());
                let hw_queue = doorbell.hw_queue.ok_or(Status::DeviceLost)?;
                let process = device.presence[node_index(node)].ok_or(Status::DeviceLost)?;
                let holder = Holder { context: origin.context, doorbell: message.handle };
                let slot = self.take_slot(node)?;
                let cell = u16::try_from(cell).map_err(|_| Status::InvalidHandle)?;
                let engine = &mut self.engines[node_index(node)];
                let running = engine.process_mut().ok_or(Status::DeviceLost)?;
                running.connect_doorbell(slot, hw_queue, process, cell);
                self.to_poke[node_index(node)] = true;
                let engine = &mut self.engines[node_index(node)];
                let running = engine.process_mut().ok_or(Status::DeviceLost)?;
                let progress = running.queue_completed(hw_queue);
                engine.slots.hold(slot, holder, progress);
                count(&self.counters.connects);
                if let Some(doorbell) = self.device_mut(origin.context)?.doorbells.get_mut(message.handle) {
                    doorbell.state.connected(slot);
                    doorbell.was_connected = true;
                }
            }
        }
        let device = self.device(origin.context)?;
        let doorbell = device.doorbells.get(message.handle).ok_or(Status::InvalidHandle)?;
        let status = doorbell.state.status().word();
        self.store_page_word(origin.context, device_page::status(doorbell.queue.index()), status);
        Ok(Handled::with(&DoorbellConnected { status }))
    }

    /// A free slot, taken from the longest idle holder where none is.
    fn take_slot(&mut self, node: NodeKind) -> Result<u32, Refused> {
        let index = node_index(node);
        let seen: Vec<(Holder, u64)> = self.engines[index]
            .slots
            .holders()
            .into_iter()
            .map(|holder| {
                let doorbell =
                    self.device(holder.context).ok().and_then(|device| device.doorbells.get(holder.doorbell));
                let engine = self.engines[index].process();
                let hw_queue = doorbell.and_then(|doorbell| doorbell.hw_queue);
                let completed =
                    hw_queue.zip(engine).map(|(hw_queue, engine)| engine.queue_completed(hw_queue));
                (holder, completed.unwrap_or(0))
            })
            .collect();
        let taken = self.engines[index].slots.choose(|holder| {
            seen.iter().find(|(known, _)| *known == holder).map_or(0, |(_, completed)| *completed)
        });
        match taken {
            Taken::Free(slot) => Ok(slot),
            Taken::Victim(slot, holder) => {
                count(&self.counters.victims);
                self.retry_doorbell(holder);
                Ok(slot)
            }
            Taken::None => Err(Status::OutOfResources.into()),
        }
    }

    /// Disconnects a doorbell with RETRY.
    fn retry_doorbell(&mut self, holder: Holder) {
        let Ok(device) = self.device_mut(holder.context) else { return };
        let Some(doorbell) = device.doorbells.get_mut(holder.doorbell) else { return };
        let disconnect = doorbell.state.retry();
        self.carry_out(holder, disconnect);
    }

    /// Publishes the status of a doorbell, then lets its slot go (UMS-70).
    pub(super) fn carry_out(&mut self, holder: Holder, disconnect: Disconnect) {
        let Ok(device) = self.device(holder.context) else { return };
        let Some(found) = device.doorbells.get(holder.doorbell) else { return };
        let (status, node, index) = (found.state.status().word(), found.node, found.queue.index());
        let Some(page) = device.page.view(&self.allocations) else { return };
        let Some(word) = page.word(device_page::status(index)) else { return };
        match disconnect {
            Disconnect::Nothing => {}
            Disconnect::PublishOnly => word.store(status, Ordering::Release),
            Disconnect::FreeSlot(slot) => {
                let engine = &mut self.engines[node_index(node)];
                doorbell::disconnect(word, status, || {
                    if let Some(process) = engine.process_mut() {
                        process.disconnect_doorbell(slot);
                    }
                });
                engine.slots.free(slot);
            }
        }
    }

    /// DESTROY_DOORBELL (UMS-78, UMS-79).
    pub(super) fn destroy_doorbell(&mut self, origin: Origin, message: &Named) -> Outcome {
        self.device(origin.context)?.doorbells.get(message.handle).ok_or(Status::InvalidHandle)?;
        self.retry_doorbell(Holder { context: origin.context, doorbell: message.handle });
        let device = self.device_mut(origin.context)?;
        let doorbell = device.doorbells.remove(message.handle).ok_or(Status::InvalidHandle)?;
        let engine = self.engines[node_index(doorbell.node)].process_mut();
        let reached = engine.zip(doorbell.hw_queue).map_or(0, |(engine, hw_queue)| {
            engine.destroy_hw_queue(hw_queue);
            engine.queue_completed(hw_queue)
        });
        if let Some(queue) = self.device_mut(origin.context)?.queues.get_mut(doorbell.queue)
            && let QueueKind::UserMode { completed, .. } = queue.kind
        {
            queue.kind = QueueKind::UserMode { doorbell: None, completed: completed.max(reached) };
        }
        let barrier = Barrier::raise(&mut self.engines);
        self.after(barrier, Action::Release(vec![doorbell.ring, doorbell.control]));
        Ok(Handled::done())
    }

    /// NOTIFY: valid for any queue of the process; the engine looks at its rings (UMS-94, UMS-96).
    pub(super) fn notify(&mut self, origin: Origin, message: &Notify) -> Outcome {
        (message.flags == 0 && message.reserved == 0).or(Status::InvalidParameter)?;
        let device = self.device(origin.context)?;
        let queue = device.queues.get(message.queue).ok_or(Status::InvalidHandle)?;
        let node = queue.node;
        if let Some(process) = self.engines[node_index(node)].process_mut() {
            process.wake();
        }
        Ok(Handled::done())
    }

    /// TRANSITION_TO_F1: every doorbell of the engine is disconnected first, then it may sleep (UMS-118). Other
    /// engines' doorbells stay (UMS-119).
    pub(super) fn engine_to_f1(&mut self, node: NodeKind) {
        for holder in self.engines[node_index(node)].slots.holders() {
            self.retry_doorbell(holder);
        }
        let process = self.engines[node_index(node)].process_mut();
        if process.is_some_and(EngineProcess::allow_f1) {
            count(&self.counters.f1_transitions);
        }
    }

    /// Whose queue an entry of an engine's queue table is: context and queue.
    pub(super) fn owner_of_hw_queue(&self, node: NodeKind, hw_queue: u16) -> Option<(u32, Handle)> {
        self.processes.iter().find_map(|(context, process)| {
            let device = process.device.as_ref()?;
            let mut doorbells = device.doorbells.iter();
            let (_, doorbell) = doorbells
                .find(|(_, doorbell)| doorbell.node == node && doorbell.hw_queue == Some(hw_queue))?;
            Some((*context, doorbell.queue))
        })
    }

    /// A user-mode queue has a fault, or a waiter is due.
    pub(super) fn queue_wants_attention(&mut self, node: NodeKind, hw_queue: u16) {
        let Some((context, queue)) = self.owner_of_hw_queue(node, hw_queue) else { return };
        let fault =
            self.engines[node_index(node)].process().and_then(|process| process.queue_fault(hw_queue));
        match fault {
            Some((fault, address)) => self.fault_device(context, queue, fault, address),
            None => self.release_waiters(context, queue),
        }
    }

    /// All doorbells of a process, for good, and then its queues off the engines: nothing of them runs any more.
    pub(super) fn abort_doorbells(&mut self, context: u32) {
        let Ok(device) = self.device_mut(context) else { return };
        let aborted: Vec<(Handle, Disconnect)> =
            device.doorbells.iter_mut().map(|(handle, doorbell)| (handle, doorbell.state.abort())).collect();
        for (doorbell, disconnect) in aborted {
            self.carry_out(Holder { context, doorbell }, disconnect);
        }
        let Ok(device) = self.device_mut(context) else { return };
        let queues: Vec<(NodeKind, u16)> = device
            .doorbells
            .iter_mut()
            .filter_map(|(_, doorbell)| Some((doorbell.node, doorbell.hw_queue.take()?)))
            .collect();
        for (node, hw_queue) in queues {
            if let Some(process) = self.engines[node_index(node)].process_mut() {
                process.destroy_hw_queue(hw_queue);
            }
        }
    }
}

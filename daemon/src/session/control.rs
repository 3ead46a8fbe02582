//! Control messages: from frames to handlers.

use campanile_protocol::control::away;
use campanile_protocol::control::frame;
use campanile_protocol::control::frame::FrameError;
use campanile_protocol::control::memory;
use campanile_protocol::control::message;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::scheduling;
use campanile_protocol::control::status::Status;
use std::time::Instant;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::KnownLayout;

use super::counters::count;
use super::objects::Device;
use super::objects::Process;
use super::power::wakes;
use super::reply::Handled;
use super::reply::Origin;
use super::reply::Outcome;
use super::reply::Refused;
use super::state::Refusal;
use super::state::Session;
use super::timeline::Timeline;
use super::timeline::Token;
use crate::vidmm::allocations::AllocationId;

/// Turns a condition that a message must meet into a refusal.
pub trait Checked {
    /// `Err(status)` when it is not met.
    fn or(self, status: Status) -> Result<(), Status>;
}

impl Checked for bool {
    fn or(self, status: Status) -> Result<(), Status> {
        if self { Ok(()) } else { Err(status) }
    }
}

/// A body that is exactly a `T`.
pub fn body<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<T, Status> {
    T::read_from_bytes(bytes).map_err(|_| Status::InvalidParameter)
}

impl Session {
    /// A guest process opens the device.
    pub fn create_context(&mut self, context: u32) -> Result<(), Refusal> {
        self.is_fresh = false;
        if context == 0 || self.own_context(context).is_ok() {
            return Err(Refusal::Context);
        }
        if self.processes.len() >= campanile_protocol::engine::block::MAX_PROCESSES as usize {
            return Err(Refusal::OutOfMemory);
        }
        let purse = self.config.budget.process()?;
        let process = Process::new(purse)?;
        let context = self.new_own_context(context);
        self.processes.insert(context, process);
        Ok(())
    }

    /// A guest process closes the device, or died: the abnormal end (UMS-128). Fences still open are due.
    pub fn destroy_context(&mut self, context: u32) -> Result<(), Refusal> {
        let own = self.own_context(context)?;
        self.away.contexts.remove(&context);
        if self.leaves_process(own) {
            return Ok(());
        }
        self.end_process(own);
        Ok(())
    }

    /// Ends a guest process, and what it has.
    pub(super) fn end_process(&mut self, context: u32) {
        self.stop_parking(context);
        self.end_device(context);
        if let Some(mut process) = self.processes.remove(&context) {
            for timeline in process.timelines.values_mut() {
                self.last_item = self.last_item.max(timeline.last());
                self.due.extend(timeline.take_all().into_iter().map(|token| (token, Ok(()))));
            }
        }
    }

    /// Handles the frames of one SUBMIT_3D. All frames up to the first malformed one are handled.
    pub fn submit(&mut self, context: u32, ring: u8, bytes: &[u8]) -> Result<(), Refusal> {
        if self.is_stopping() {
            return Err(Refusal::Unspecified);
        }
        let name = context;
        let context = self.own_context(context)?;
        for frame in frame::frames(bytes) {
            let frame = match frame {
                Ok(frame) => frame,
                Err(FrameError::Empty) => break,
                Err(_) => return Err(Refusal::Parameter),
            };
            let header = frame.header;
            let device = self.processes.get(&context).and_then(|process| process.device.as_ref());
            if device.is_none() && header.opcode == away::ATTACH_DEVICE {
                let (slot, sequence) = (header.slot, header.sequence);
                let origin = Origin { context, slot, sequence, ring, item: None };
                self.attach_device(name, origin, frame.body)?;
                break;
            }
            if device.is_none() && header.opcode != message::CREATE_DEVICE {
                // There is no place for an answer.
                return Err(Refusal::Parameter);
            }
            let origin = Origin { context, slot: header.slot, sequence: header.sequence, ring, item: None };
            if header.opcode == message::CREATE_DEVICE && device.is_none() {
                self.open_device(origin, frame.body)?;
            } else {
                self.handle(origin, header.opcode, frame.body);
            }
        }
        self.keep_looking();
        Ok(())
    }

    /// Signals `token` when the timeline comes to it.
    pub fn fence(&mut self, context: u32, ring: u8, token: Token) {
        let own = self.own_context(context);
        let process = own.as_ref().ok().and_then(|own| self.processes.get_mut(own));
        let context = own.unwrap_or(context);
        // Who is away waits with its next device.
        match process.filter(|process| !process.is_away()) {
            Some(process) => {
                let last = self.last_item;
                process.timelines.entry(ring).or_insert_with(|| Timeline::after(last)).fence(token);
                self.end_item(context, ring, None);
            }
            None => self.due.push((token, Ok(()))),
        }
    }

    /// Handles one message and answers it, unless it is parked.
    pub(super) fn handle(&mut self, origin: Origin, opcode: u32, bytes: &[u8]) {
        count(&self.counters.control_messages);
        self.quiet_since = self.quiet_since.map(|_| Instant::now());
        let woken = wakes(opcode) && self.leave_d3();
        let outcome = self.dispatch(origin, opcode, bytes);
        if woken {
            self.resume_from_d3();
        }
        match outcome {
            Ok(Handled::Now(payload)) => self.answer(origin, Ok(payload)),
            Ok(Handled::Parked) => {}
            Err(refused) => self.answer(origin, Err(refused)),
        }
        self.poke_engines();
    }

    /// Wakes the engines whose doorbells were connected.
    pub(super) fn poke_engines(&mut self) {
        for at in self.addresses() {
            if std::mem::take(&mut self.to_poke[at.index()])
                && let Some(process) = self.engines[at.index()].process()
            {
                process.poke();
            }
        }
    }

    fn dispatch(&mut self, origin: Origin, opcode: u32, bytes: &[u8]) -> Outcome {
        let ends = matches!(
            opcode,
            message::DESTROY_DEVICE
                | message::DESTROY_CONTEXT
                | message::DESTROY_QUEUE
                | message::DESTROY_DOORBELL
                | message::DESTROY_KERNEL
                | message::UNMAP_MEMORY
                | native_fence::CLOSE_NATIVE_FENCE
                | message::QUERY_CAPS
                | memory::UNMAP_LIST
                | memory::QUERY_MEMORY
        );
        if !ends && opcode != message::CREATE_DEVICE {
            self.active_device(origin.context)?;
        }
        // What runs while it is away would be gone when it comes back. A kernel whose end was asked for before may end.
        let ended_before = opcode == message::DESTROY_KERNEL && origin.item.is_some();
        if self.is_going(origin.context) && !ended_before {
            return Err(Status::Busy.into());
        }
        match opcode {
            message::CREATE_DEVICE => Err(Status::DeviceExists.into()),
            message::DESTROY_DEVICE => self.destroy_device(origin, bytes),
            message::QUERY_CAPS => {
                bytes.is_empty().or(Status::InvalidParameter)?;
                Ok(Handled::with(&self.capset()))
            }
            message::MAP_MEMORY => self.map_memory(origin, &body(bytes)?),
            message::UNMAP_MEMORY => self.unmap_memory(origin, &body(bytes)?),
            memory::MAP_LIST => self.map_list(origin, bytes),
            memory::UNMAP_LIST => self.unmap_list(origin, bytes),
            memory::MAKE_RESIDENT => self.make_resident(origin, bytes),
            memory::EVICT => self.evict(origin, bytes),
            memory::SET_PRIORITY => self.set_priority(origin, bytes),
            memory::QUERY_MEMORY => {
                bytes.is_empty().or(Status::InvalidParameter)?;
                Ok(Handled::with(&self.memory_info()))
            }
            message::CREATE_CONTEXT => self.new_context(origin, bytes),
            message::DESTROY_CONTEXT => self.drop_context(origin, &body(bytes)?),
            message::CREATE_QUEUE => self.create_queue(origin, &body(bytes)?),
            message::DESTROY_QUEUE => self.destroy_queue(origin, &body(bytes)?),
            message::CREATE_DOORBELL => self.create_doorbell(origin, &body(bytes)?),
            message::CONNECT_DOORBELL => self.connect_doorbell(origin, &body(bytes)?),
            message::DESTROY_DOORBELL => self.destroy_doorbell(origin, &body(bytes)?),
            message::NOTIFY => self.notify(origin, &body(bytes)?),
            message::CREATE_KERNEL => self.create_kernel(origin, bytes),
            message::DESTROY_KERNEL => self.destroy_kernel(origin, &body(bytes)?),
            message::SUBMIT => self.submit_buffer(origin, &body(bytes)?),
            message::SUSPEND_CONTEXT => self.suspend_context(origin, &body(bytes)?),
            message::RESUME_CONTEXT => self.resume_context(origin, &body(bytes)?),
            away::PARK_DEVICE => self.park_device(origin, bytes),
            scheduling::SET_SCHEDULING_PROPERTIES => self.set_scheduling(origin, &body(bytes)?),
            scheduling::SET_PROCESS_CLASS => self.set_process_class(origin, &body(bytes)?),
            message::WAIT_FENCE => self.wait_fence(origin, &body(bytes)?),
            native_fence::CREATE_NATIVE_FENCE => self.create_native_fence(origin, &body(bytes)?),
            native_fence::OPEN_NATIVE_FENCE => self.open_native_fence(origin, &body(bytes)?),
            native_fence::CLOSE_NATIVE_FENCE => self.close_native_fence(origin, &body(bytes)?),
            native_fence::WAIT_NATIVE_FENCE => self.wait_native_fence(origin, &body(bytes)?),
            native_fence::SIGNAL_NATIVE_FENCE => self.signal_native_fence(origin, &body(bytes)?),
            native_fence::QUERY_NATIVE_FENCE => self.query_native_fence(origin, &body(bytes)?),
            _ => Err(Status::UnknownMessage.into()),
        }
    }

    pub(super) fn device(&self, context: u32) -> Result<&Device, Refused> {
        let process = self.processes.get(&context).ok_or(Status::NoDevice)?;
        process.device.as_ref().ok_or_else(|| Status::NoDevice.into())
    }

    pub(super) fn device_mut(&mut self, context: u32) -> Result<&mut Device, Refused> {
        let process = self.processes.get_mut(&context).ok_or(Status::NoDevice)?;
        process.device.as_mut().ok_or_else(|| Status::NoDevice.into())
    }

    pub(super) fn active_device(&self, context: u32) -> Result<&Device, Refused> {
        let device = self.device(context)?;
        if device.is_active() { Ok(device) } else { Err(Status::DeviceLost.into()) }
    }

    /// The memory of a resource that this context has attached.
    pub(super) fn attached_allocation(&self, context: u32, resource: u32) -> Result<AllocationId, Refused> {
        let process = self.processes.get(&context).ok_or(Status::NoDevice)?;
        process.attached.contains_key(&resource).or(Status::InvalidResource)?;
        Ok(self.blobs.get(&resource).ok_or(Status::InvalidResource)?.allocation)
    }
}

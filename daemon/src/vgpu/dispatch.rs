//! Control messages: from frames to handlers.

use campanile_host_gpu::clock;
use campanile_protocol::control::frame;
use campanile_protocol::control::frame::FrameError;
use campanile_protocol::control::status::Status;

use super::session::Session;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::ledger::log::Key;
use crate::vgpu::control::caps::capset;
use crate::vgpu::control::caps::profile;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::control::fences::NativeFences;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::control::request::Request;
use crate::vgpu::counters::count;
use crate::vgpu::doorbells::requests::DoorbellRequests;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::memory::occupancy::memory_info;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::reports::EngineReports;
use crate::vgpu::submission::waits::Waits;
use crate::vgpu::tdr::recovery::Recovery;

impl Session {
    /// A guest process opens the device.
    pub fn create_context(&mut self, context: FrontContext) -> Result<(), Refusal> {
        self.vm.is_fresh = false;
        if context.get() == 0 || self.away.own_context(&self.vm.objects, context).is_ok() {
            return Err(Refusal::Context);
        }
        if self.vm.objects.processes.len() >= campanile_protocol::engine::block::MAX_PROCESSES as usize {
            return Err(Refusal::OutOfMemory);
        }
        let purse = self.vm.config.budget.process()?;
        let process = Process::new(purse)?;
        self.vm.config.ledger.put(Key::Context(context), &());
        let own = self.away.new_own_context(&self.vm.objects, context);
        self.vm.objects.processes.insert(own, process);
        // What moves memory may come up by now, where a device was short of memory: what it left undone is in the way of this process, too.
        self.vm.engines.moves.set_available(true);
        Ok(())
    }

    /// A guest process closes the device, or died: the abnormal end (UMS-128). Fences still open are due.
    pub fn destroy_context(&mut self, context: FrontContext) -> Result<(), Refusal> {
        let own = self.away.own_context(&self.vm.objects, context)?;
        self.vm.config.ledger.remove(Key::Context(context));
        self.away.contexts.remove(&context);
        if self.hotplug().leaves_process(own) {
            return Ok(());
        }
        self.hotplug().end_process(own);
        Ok(())
    }

    /// Handles the frames of one SUBMIT_3D. All frames up to the first malformed one are handled.
    pub fn submit(&mut self, context: FrontContext, ring: u8, bytes: &[u8]) -> Result<(), Refusal> {
        if self.vm.freeze.is_stopping() {
            return Err(Refusal::Unspecified);
        }
        let name = context;
        let context = self.away.own_context(&self.vm.objects, context)?;
        for frame in frame::frames(bytes) {
            let frame = match frame {
                Ok(frame) => frame,
                Err(FrameError::Empty) => break,
                Err(_) => return Err(Refusal::Parameter),
            };
            let header = frame.header;
            let origin = Origin { context, slot: header.slot, sequence: header.sequence, ring, item: None };
            let request = Request::decode(header.opcode, frame.body);
            let device = self.vm.objects.processes.get(&context).and_then(|process| process.device.as_ref());
            match request {
                request if device.is_some() => self.handle(origin, request),
                Ok(Request::CreateDevice(create)) => {
                    Devices::of(&mut self.vm).open_device(origin, &create, self.away.is_leaving())?
                }
                Ok(Request::AttachDevice(body)) => {
                    self.hotplug().attach_device(name, origin, body)?;
                    break;
                }
                // There is no place for an answer.
                _ => return Err(Refusal::Parameter),
            }
        }
        self.settle();
        self.look_at.keep_looking(&mut self.vm);
        Ok(())
    }

    /// Signals `token` when the timeline comes to it.
    pub fn fence(&mut self, context: FrontContext, ring: u8, token: Token) {
        let own =
            self.away.own_context(&self.vm.objects, context).unwrap_or(GuestProcess::new(context.get()));
        self.vm.objects.fence(own, ring, token);
    }

    /// Handles one message and answers it, unless it is parked.
    pub(in crate::vgpu) fn handle(&mut self, origin: Origin, request: Result<Request<'_>, Status>) {
        count(&self.vm.counters.control_messages);
        self.power.quiet_since = self.power.quiet_since.map(|_| clock::now());
        let woken = request.as_ref().is_ok_and(Request::wakes) && self.power().leave_d3();
        let outcome = request.map_err(Refused::from).and_then(|request| self.dispatch(origin, request));
        if woken {
            self.power().resume_from_d3();
        }
        match outcome {
            Ok(Handled::Now(payload)) => self.vm.answer(origin, Ok(payload)),
            Ok(Handled::Parked) => {}
            Err(refused) => self.vm.answer(origin, Err(refused)),
        }
        self.vm.engines.poke_listed();
        self.settle();
    }

    /// Carries out what was noted while something else was half done: engines that are no good are replaced, messages that wait
    /// no more are handled.
    pub(in crate::vgpu) fn settle(&mut self) {
        loop {
            self.power().look_at_power();
            Lifecycle::of(&mut self.vm).run_moves();
            Recovery::of(&mut self.vm).replace_condemned();
            let messages = std::mem::take(&mut self.vm.engines.to_handle);
            if messages.is_empty() {
                return;
            }
            for message in messages {
                self.handle(message.origin, message.request());
            }
        }
    }

    /// Does what a request asks, where its process is in a state to have it done.
    pub(in crate::vgpu) fn dispatch(&mut self, origin: Origin, request: Request<'_>) -> Outcome {
        if !request.suits_lost_device() {
            self.vm.objects.active_device(origin.context)?;
        }
        // What runs while it is away would be gone when it comes back. A kernel whose end was asked for before may end.
        let ended_before = matches!(request, Request::DestroyKernel(_)) && origin.item.is_some();
        if self.away.is_going(&self.vm.objects, origin.context) && !ended_before {
            return Err(Status::Busy.into());
        }
        match request {
            Request::CreateDevice(_) => Err(Status::DeviceExists.into()),
            // A message of a context without a device.
            Request::AttachDevice(_) => Err(Status::UnknownMessage.into()),
            Request::DestroyDevice => Devices::of(&mut self.vm).destroy_device(origin),
            Request::ParkDevice => self.hotplug().park_device(origin),
            Request::QueryCaps => Ok(Handled::with(&capset(&self.vm))),
            Request::QueryProfile => Ok(Handled::with(profile(&self.vm).ok_or(Status::NotSupported)?)),
            Request::MapMemory(map) => Pager::of(&mut self.vm).map_memory(origin, &map),
            Request::UnmapMemory(unmap) => Pager::of(&mut self.vm).unmap_memory(origin, &unmap),
            Request::MapList(list) => Pager::of(&mut self.vm).map_list(origin, &list),
            Request::UnmapList(list) => Pager::of(&mut self.vm).unmap_list(origin, &list),
            Request::MakeResident(list) => Pager::of(&mut self.vm).make_resident(origin, &list),
            Request::Evict(list) => Pager::of(&mut self.vm).evict(origin, &list),
            Request::SetPriority(list) => self.vm.memory.set_priority(&self.vm.objects, origin, &list),
            Request::QueryMemory => {
                Ok(Handled::with(&memory_info(&self.vm.memory, &self.vm.config.account, &self.vm.counters)))
            }
            Request::CreateContext(create) => Lifecycle::of(&mut self.vm).new_context(origin, &create),
            Request::DestroyContext(named) => Lifecycle::of(&mut self.vm).drop_context(origin, &named),
            Request::SuspendContext(named) => {
                // An engine that says that it hangs is reset first, and suspends nothing.
                for at in self.vm.engines.addresses() {
                    Recovery::of(&mut self.vm).collect_reports(at);
                }
                EngineReports::of(&mut self.vm).suspend_context(origin, &named)
            }
            Request::ResumeContext(named) => Waits::of(&mut self.vm).resume_context(origin, &named),
            Request::CreateQueue(create) => Submission::of(&mut self.vm).create_queue(origin, &create),
            Request::DestroyQueue(named) => Waits::of(&mut self.vm).destroy_queue(origin, &named),
            Request::CreateDoorbell(create) => {
                DoorbellRequests::of(&mut self.vm).create_doorbell(origin, &create)
            }
            Request::ConnectDoorbell(named) => {
                DoorbellRequests::of(&mut self.vm).connect_doorbell(origin, &named)
            }
            Request::DestroyDoorbell(named) => {
                DoorbellRequests::of(&mut self.vm).destroy_doorbell(origin, &named)
            }
            Request::Notify(notify) => DoorbellRequests::of(&mut self.vm).notify(origin, &notify),
            Request::CreateKernel(create) => Lifecycle::of(&mut self.vm).create_kernel(origin, &create),
            Request::DestroyKernel(named) => Lifecycle::of(&mut self.vm).destroy_kernel(origin, &named),
            Request::Submit(submit) => EngineReports::of(&mut self.vm).submit_buffer(origin, &submit),
            Request::SetScheduling(properties) => {
                Submission::of(&mut self.vm).set_scheduling(origin, &properties)
            }
            Request::SetProcessClass(class) => Submission::of(&mut self.vm).set_process_class(origin, &class),
            Request::WaitFence(wait) => Waits::of(&mut self.vm).wait_fence(origin, &wait),
            Request::CreateNativeFence(create) => {
                NativeFences::of(&mut self.vm).create_native_fence(origin, &create)
            }
            Request::OpenNativeFence(open) => NativeFences::of(&mut self.vm).open_native_fence(origin, &open),
            Request::CloseNativeFence(named) => {
                NativeFences::of(&mut self.vm).close_native_fence(origin, &named)
            }
            Request::WaitNativeFence(wait) => NativeFences::of(&mut self.vm).wait_native_fence(origin, &wait),
            Request::SignalNativeFence(signal) => {
                NativeFences::of(&mut self.vm).signal_native_fence(origin, &signal)
            }
            Request::QueryNativeFence(named) => {
                NativeFences::of(&mut self.vm).query_native_fence(origin, &named)
            }
        }
    }
}

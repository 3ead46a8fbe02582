//! Devices in error, and the loss of an engine.
//!
//! A device in error has its doorbells on ABORT (UMS-99), its waits and fences released (UMS-140, TDR-68), its
//! queued buffers cancelled (TDR-69). Other devices notice nothing (UMS-101).

use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use campanile_protocol::packet::Fault;

use super::recovery::Recovery;
use super::reset_record::Loss;
use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::counters::count;
use crate::vgpu::doorbells::connects::take_connects_of;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::Device;
use crate::vgpu::submission::buffers::Submission;
use crate::vgpu::submission::waits::Waits;

impl Recovery<'_> {
    /// Puts the devices of these processes in error, of a session that another daemon had: what they ran when that was killed is not known.
    pub fn lose_interrupted(&mut self, processes: &[GuestProcess]) {
        for process in processes {
            Devices::of(self.vm).put_device_in_error(*process, device_page::DEVICE_STOPPED);
        }
    }
}

impl Devices<'_> {
    /// A buffer of this device broke a rule.
    pub(in crate::vgpu) fn fault_device(
        &mut self,
        context: GuestProcess,
        queue: Handle,
        fault: u32,
        address: u64,
    ) {
        let name = Fault::from_word(fault);
        log::debug!(
            "{}: context {context}, queue {}: {name:?} at {address:#x}",
            self.vm.config.name,
            queue.index()
        );
        let status = match name {
            Some(Fault::PageFault) => device_page::DEVICE_PAGE_FAULT,
            Some(Fault::Driver) => device_page::DEVICE_HUNG,
            _ => device_page::DEVICE_DMA_FAULT,
        };
        self.put_device_in_error(context, status);
    }

    /// Puts a device in error that a reset has cost; its guest is told of the reset.
    pub(in crate::vgpu) fn lose_device(&mut self, context: GuestProcess, status: u64, loss: Loss) {
        if self.vm.objects.device(context).is_ok_and(Device::is_active) {
            self.vm.memory.store_page_word(&self.vm.objects, context, device_page::LOSS, loss.word());
            self.vm.memory.store_page_word(&self.vm.objects, context, device_page::LOSS_REPORT, loss.report);
        }
        self.put_device_in_error(context, status);
    }

    /// Puts a device in error; the first reason stays.
    pub(in crate::vgpu) fn put_device_in_error(&mut self, context: GuestProcess, status: u64) {
        if self.vm.objects.device(context).is_ok_and(Device::is_active) {
            count(&self.vm.counters.devices_lost);
        }
        self.stop_device(context, status);
    }

    /// Stops a device that is in error from here on, or ends.
    pub(in crate::vgpu) fn stop_device(&mut self, context: GuestProcess, status: u64) {
        let Ok(device) = self.vm.objects.device_mut(context) else { return };
        if device.is_active() {
            device.status = status;
            self.vm.memory.store_page_word(&self.vm.objects, context, device_page::DEVICE_STATUS, status);
        }
        self.vm.doorbells().1.abort_all(context);
        self.cancel_buffers(context);
        // One that waits in the engine would be reported when another comes behind it, which may be never.
        self.vm.engines.disown_buffers(&mut self.vm.objects, context);
        self.refuse_waiting_messages(context);
        Waits::of(self.vm).refuse_suspends(Status::DeviceLost, |of| of.context == context);
        Deferred::of(self.vm).look_at_drains();
        Waits::of(self.vm).lose_native_waits(context);
        Waits::of(self.vm).lose_gpu_waits(context);
        let Ok(device) = self.vm.objects.device_mut(context) else { return };
        for wait in std::mem::take(&mut device.waits) {
            let text = "the device is in error".to_owned();
            self.vm.answer(wait.origin, Err(Refused { status: Status::DeviceLost, text }));
        }
    }

    /// Answers what waits for an engine to start, to compile, or to forget a kernel.
    fn refuse_waiting_messages(&mut self, context: GuestProcess) {
        let mut origins = take_connects_of(&mut self.vm.engines, context);
        for slot in self.vm.engines.iter_mut() {
            let of_it = slot.waiting.extract_if(.., |message| message.origin.context == context);
            origins.extend(of_it.map(|message| message.origin));
        }
        origins
            .extend(self.vm.memory.residency.take_waiters(context).into_iter().map(|waiter| waiter.origin));
        origins.extend(self.vm.engines.take_compiling(|kernel| kernel.origin.context == context));
        for origin in origins {
            let text = "the device is in error".to_owned();
            self.vm.answer(origin, Err(Refused { status: Status::DeviceLost, text }));
        }
    }

    /// Takes the buffers of a device out of its software queues.
    fn cancel_buffers(&mut self, context: GuestProcess) {
        let Ok(device) = self.vm.objects.device_mut(context) else { return };
        let mut cancelled = Vec::new();
        for (_, context) in device.contexts.iter_mut() {
            cancelled.extend(context.software_queue.drain(..));
        }
        for buffer in cancelled {
            self.vm.objects.end_item(context, buffer.ring, buffer.item);
        }
        let handles: Vec<ContextHandle> = self
            .vm
            .objects
            .device(context)
            .into_iter()
            .flat_map(|device| device.contexts.handles())
            .collect();
        for handle in handles {
            Submission::of(self.vm).unlist_context(context, handle);
            if let Some(context) =
                self.vm.objects.device_mut(context).ok().and_then(|device| device.contexts.get_mut(handle))
            {
                (context.listed, context.is_parked) = (false, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    use std::time::Instant;

    use campanile_protocol::control::message::Named;
    use campanile_protocol::device_page::DEVICE_DMA_FAULT;
    use campanile_protocol::device_page::DEVICE_HUNG;
    use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
    use campanile_protocol::device_page::LOSS;
    use campanile_protocol::device_page::LOSS_REPORT;
    use campanile_protocol::device_page::response;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::packet::Fault;

    use crate::ids::GuestProcess;
    use crate::vgpu::control::devices::Devices;
    use crate::vgpu::doorbells::drain::Drain;
    use crate::vgpu::doorbells::line::WaitingConnect;
    use crate::vgpu::doorbells::requests::DoorbellRequests;
    use crate::vgpu::doorbells::slots::Holder;
    use crate::vgpu::engines::pending_kernel::PendingKernel;
    use crate::vgpu::engines::slot::WaitingMessage;
    use crate::vgpu::memory::residency_faults::Waiter;
    use crate::vgpu::objects::budget::Kind;
    use crate::vgpu::objects::doorbell_state::DoorbellState;
    use crate::vgpu::objects::message::Handled;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::objects::timeline::Token;
    use crate::vgpu::session::Session;
    use crate::vgpu::submission::buffers::Submission;
    use crate::vgpu::submission::reports::EngineReports;
    use crate::vgpu::tdr::reason::Reason;
    use crate::vgpu::tdr::reset_record::Loss;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::give;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::take_buffer;
    use campanile_host_gpu::ids::ContextIndex;

    fn origin(context: GuestProcess, slot: u32) -> Origin {
        Origin { context, slot, sequence: 77, ring: 9, item: None }
    }

    #[test]
    fn what_a_buffer_did_decides_what_its_device_is_told_and_the_first_reason_stays() {
        let faults = [
            (Fault::PageFault, DEVICE_PAGE_FAULT),
            (Fault::Driver, DEVICE_HUNG),
            (Fault::RingEntry, DEVICE_DMA_FAULT),
        ];
        for (fault, status) in faults {
            let mut session = restored(startable());
            Devices::of(&mut session.vm).fault_device(OWNER, Handle(1), fault as u32, 0x1000);
            Devices::of(&mut session.vm).fault_device(OWNER, Handle(1), Fault::PacketSize as u32, 0x1000);
            assert_eq!(device(&mut session, OWNER).status, status, "{fault:?}");
            assert!(
                device(&mut session, GuestProcess::new(1)).is_active(),
                "another process notices nothing"
            );
        }
    }

    #[test]
    fn tdr_69_ums_101_a_device_in_error_loses_its_own_buffers_and_messages_and_nobody_elses() {
        let mut session = restored(startable());
        let buffer = take_buffer(&mut session);
        let queued = |session: &mut _, of: GuestProcess| -> usize {
            device(session, of).contexts.iter().map(|(_, context)| context.software_queue.len()).sum()
        };
        let others = queued(&mut session, GuestProcess::new(1));
        assert!(queued(&mut session, OWNER) > 0);
        for of in [OWNER, GuestProcess::new(1)] {
            give(&mut session, Some((of, buffer)));
        }
        for (number, context) in [(4, OWNER), (5, GuestProcess::new(1))] {
            let origin = Origin { context, slot: 1, sequence: 1, ring: 1, item: None };
            let slot = &mut session.vm.engines[COPY.index()];
            let message = WaitingMessage { origin, opcode: 0, body: Vec::new(), charge: None };
            slot.waiting.push(message);
            slot.compiling.insert((1, number), PendingKernel::new(origin, Handle(number), number));
        }
        Devices::of(&mut session.vm).put_device_in_error(OWNER, DEVICE_HUNG);
        assert_eq!((queued(&mut session, OWNER), queued(&mut session, GuestProcess::new(1))), (0, others));
        let slot = &session.vm.engines[COPY.index()];
        let owners: Vec<_> = slot.in_flight.iter().map(|flight| flight.owner.map(|(of, _)| of)).collect();
        assert_eq!(owners, [None, Some(GuestProcess::new(1))]);
        let waiting: Vec<GuestProcess> = slot.waiting.iter().map(|message| message.origin.context).collect();
        assert_eq!(waiting, [GuestProcess::new(1)]);
        let compiled: Vec<GuestProcess> =
            slot.compiling.values().map(|kernel| kernel.origin.context).collect();
        assert_eq!(compiled, [GuestProcess::new(1)]);
    }

    /// The sequence of what was answered to a message of this process.
    fn answered(session: &Session, of: GuestProcess, slot: u32) -> u64 {
        let page = session.vm.memory.page(&session.vm.objects, of).unwrap();
        page.word(response(slot)).unwrap().load(Ordering::Acquire)
    }

    #[test]
    fn ums_99_a_device_in_error_has_its_doorbells_on_abort_and_none_that_waits_or_ends() {
        let mut session = restored(startable());
        let doorbell = Handle::new(0, 1);
        let connected = DoorbellRequests::of(&mut session.vm)
            .connect_doorbell(origin(OWNER, 1), &Named { handle: doorbell });
        assert!(connected.is_ok());
        for of in [OWNER, GuestProcess::new(1)] {
            let origin =
                session.vm.objects.park(origin(of, 8)).unwrap_or_else(|refused| panic!("{}", refused.text));
            session.vm.engines[COPY.index()].line.push(of, WaitingConnect { origin, doorbell });
        }
        let drain = Drain {
            holder: Holder { context: OWNER, doorbell },
            origin: session.vm.objects.park_end(origin(OWNER, 9)),
            last_queued: u64::MAX,
            completed: 0,
            since: Instant::now(),
            timeout: Duration::from_secs(3600),
        };
        session.vm.doorbells.drains.push(drain);
        let states = |session: &mut Session, of: GuestProcess| -> Vec<_> {
            device(session, of).doorbells.iter().map(|(_, it)| (it.state, it.hw_queue.is_some())).collect()
        };
        let of_another = states(&mut session, GuestProcess::new(1));
        Devices::of(&mut session.vm).put_device_in_error(OWNER, DEVICE_HUNG);
        assert!(states(&mut session, OWNER).iter().all(|state| *state == (DoorbellState::Abort, false)));
        assert_eq!(states(&mut session, GuestProcess::new(1)), of_another);
        let line = session.vm.engines[COPY.index()].line.in_order();
        assert_eq!(
            line.iter().map(|connect| connect.origin.context).collect::<Vec<_>>(),
            [GuestProcess::new(1)]
        );
        assert_eq!([OWNER, GuestProcess::new(1)].map(|of| answered(&session, of, 8)), [77, 0]);
        assert!(session.vm.doorbells.drains.is_empty(), "what was rung never runs");
    }

    #[test]
    fn tdr_69_a_device_in_error_waits_for_no_memory_and_for_no_turn_and_its_fences_come() {
        let mut session = restored(startable());
        let buffer = device(&mut session, OWNER).contexts.get(CONTEXT).unwrap().software_queue[0];
        session.vm.objects.fence(OWNER, buffer.ring, Token(5));
        assert!(session.vm.objects.due.is_empty(), "it is behind the buffer");
        let now = session.vm.engines.now();
        Submission::of(&mut session.vm).list_context(OWNER, CONTEXT);
        let context = device(&mut session, OWNER).contexts.get_mut(CONTEXT).unwrap();
        (context.listed, context.is_parked) = (true, true);
        for of in [OWNER, GuestProcess::new(1)] {
            let origin =
                session.vm.objects.park(origin(of, 8)).unwrap_or_else(|refused| panic!("{}", refused.text));
            let charge = session.vm.objects.charge(of, Kind::Work, 1);
            let charge = charge.unwrap_or_else(|refused| panic!("{}", refused.text));
            let root = device(&mut session, of).root;
            let waiter = Waiter { origin, root, allocations: Vec::new(), charge };
            session.vm.memory.residency.add_waiter(waiter);
        }
        Devices::of(&mut session.vm).put_device_in_error(OWNER, DEVICE_HUNG);
        let context = device(&mut session, OWNER).contexts.get(CONTEXT).unwrap();
        assert!(!context.listed && !context.is_parked);
        let next = session.vm.engines[COPY.index()].run_list.next(now);
        assert!(next.is_none_or(|(of, ..)| of != OWNER), "{next:?}");
        let waiting = session.vm.memory.residency.waiters.iter().map(|waiter| waiter.origin.context);
        assert_eq!(waiting.collect::<Vec<_>>(), [GuestProcess::new(1)]);
        assert_eq!([OWNER, GuestProcess::new(1)].map(|of| answered(&session, of, 8)), [77, 0]);
        assert!(session.vm.objects.due.contains(&(Token(5), Ok(()))), "the buffer has ended");
    }

    #[test]
    fn a_guest_is_told_which_reset_has_cost_its_device_and_the_first_reason_stays() {
        let mut session = restored(startable());
        let word = |session: &Session, at: u64| {
            session
                .vm
                .memory
                .page(&session.vm.objects, OWNER)
                .unwrap()
                .word(at)
                .unwrap()
                .load(Ordering::Acquire)
        };
        for report in [9, 10] {
            let loss = Loss { reason: Reason::EngineTimeout, is_collateral: report == 10, report };
            Devices::of(&mut session.vm).lose_device(OWNER, DEVICE_HUNG, loss);
            let first = Loss { is_collateral: false, report: 9, ..loss };
            assert_eq!([LOSS, LOSS_REPORT].map(|at| word(&session, at)), [first.word(), 9]);
        }
    }

    #[test]
    fn ums_101_suspends_of_a_device_in_error_are_answered_and_those_of_others_wait_on() {
        let mut session = restored(startable());
        for of in [OWNER, GuestProcess::new(1)] {
            let device = device(&mut session, of);
            device
                .contexts
                .iter_mut()
                .for_each(|(_, context)| (context.at, context.entry) = (COPY, Some(ContextIndex::new(0))));
            let handle = device.contexts.handles()[0];
            let origin = Origin { context: of, slot: 9, sequence: 77, ring: 9, item: None };
            let outcome =
                EngineReports::of(&mut session.vm).suspend_context(origin, &Named { handle: handle.get() });
            assert!(matches!(outcome, Ok(Handled::Parked)), "{of}");
        }
        Devices::of(&mut session.vm).put_device_in_error(OWNER, DEVICE_HUNG);
        let waiting: Vec<GuestProcess> = session.vm.engines.suspending.iter().map(|of| of.context).collect();
        assert_eq!(waiting, [GuestProcess::new(1)]);
        let answered = |of: GuestProcess| {
            session
                .vm
                .memory
                .page(&session.vm.objects, of)
                .unwrap()
                .word(response(9))
                .unwrap()
                .load(Ordering::Acquire)
        };
        assert_eq!([OWNER, GuestProcess::new(1)].map(answered), [77, 0]);
    }
}

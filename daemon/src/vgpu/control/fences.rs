//! Native fences: created, opened, closed, waited for and signalled by the CPU, as messages and engines ask (UMS-131 to
//! UMS-143). See [`crate::vgpu::fences::native`].

use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::message::Named as NamedMessage;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::CurrentValue;
use campanile_protocol::control::native_fence::NATIVE_FENCE_DEFAULT;
use campanile_protocol::control::native_fence::NATIVE_FENCE_INTRA_GPU;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::control::native_fence::OpenNativeFence;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;

use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::fences::native::Closed;
use crate::vgpu::fences::native::FENCE_BYTES;
use crate::vgpu::fences::native::take_open;
use crate::vgpu::fences::table::Named;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Handled;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Outcome;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::MAX_WAITS;
use crate::vgpu::objects::waits::NativeWait;
use crate::vgpu::submission::waits::Waits;
use crate::vgpu::vm::Vm;

/// Requests of native fences.
#[derive(Debug)]
pub struct NativeFences<'a> {
    pub(in crate::vgpu) vm: &'a mut Vm,
}

impl<'a> NativeFences<'a> {
    /// Over these rooms.
    pub fn of(vm: &'a mut Vm) -> Self {
        Self { vm }
    }
}

impl NativeFences<'_> {
    /// CREATE_NATIVE_FENCE.
    pub(in crate::vgpu) fn create_native_fence(
        &mut self,
        origin: Origin,
        message: &CreateNativeFence,
    ) -> Outcome {
        let known = matches!(message.kind, NATIVE_FENCE_DEFAULT | NATIVE_FENCE_INTRA_GPU);
        (known && message.reserved == 0).or(Status::InvalidParameter)?;
        let charge = self.room_for_fence(origin.context)?;
        let made = self.vm.fences.create(message.kind, message.initial_value);
        let (index, global) = made.ok_or(Status::OutOfResources)?;
        // Every engine knows it before its page can be found in any address space.
        for process in self.vm.engines.iter().filter_map(|slot| slot.process()) {
            process.native_fences.create(index, global);
        }
        let opened = self.map_fence(origin.context, index, global, message.va, charge);
        if opened.is_err() {
            // It was mapped nowhere, so no engine has its page.
            Waits::of(self.vm).free_fences(&[index]);
        }
        Ok(Handled::with(&opened?))
    }

    /// OPEN_NATIVE_FENCE.
    pub(in crate::vgpu) fn open_native_fence(
        &mut self,
        origin: Origin,
        message: &OpenNativeFence,
    ) -> Outcome {
        let charge = self.room_for_fence(origin.context)?;
        let Named::Live(index) = self.vm.fences.find(message.global) else {
            let text = "no fence of this VM has this global handle".to_owned();
            return Err(Refused { status: Status::InvalidHandle, text });
        };
        let opened = self.map_fence(origin.context, index, message.global, message.va, charge)?;
        self.vm.fences.open(index);
        Ok(Handled::with(&opened))
    }

    fn room_for_fence(&self, context: GuestProcess) -> Result<Charge, Refused> {
        (!self.vm.engines.has_too_much_pending()).or(Status::OutOfResources)?;
        self.vm.objects.device(context)?.fences.has_room().or(Status::OutOfResources)?;
        self.vm.objects.charge(context, Kind::Objects, FENCE_BYTES)
    }

    /// CLOSE_NATIVE_FENCE. What the process waits for through this handle will never be answered otherwise.
    pub(in crate::vgpu) fn close_native_fence(&mut self, origin: Origin, message: &NamedMessage) -> Outcome {
        let Closed { fence, root, of_cpu, of_gpu } =
            take_open(&mut self.vm.objects, origin.context, message.handle)?;
        for wait in of_cpu {
            self.vm.answer(wait.origin, Err(Status::InvalidHandle.into()));
        }
        self.vm.memory.tables.unmap(root, fence.va, PAGE_SIZE)?;
        // A buffer that waits at this address faults now: so it does on every kind of queue.
        for wait in of_gpu {
            Waits::of(self.vm).unpark(origin.context, wait.context);
        }
        Waits::of(self.vm).release_native_waiters(fence.index);
        if self.vm.fences.close(fence.index) {
            let barrier = Barrier::raise(&mut self.vm.engines);
            Deferred::of(self.vm).after(barrier, Action::FreeFences(vec![fence.index]));
        }
        Ok(Handled::done())
    }

    /// Gives a process a local handle of a fence, and its page at `va`.
    fn map_fence(
        &mut self,
        context: GuestProcess,
        index: u32,
        global: Handle,
        va: u64,
        charge: Charge,
    ) -> Result<NativeFenceOpened, Refused> {
        let fence = self.vm.fences.named(index, global)?;
        fence.map(&mut self.vm.objects, &mut self.vm.memory.tables, context, va, charge)
    }

    /// WAIT_NATIVE_FENCE: answered when the value is there.
    pub(in crate::vgpu) fn wait_native_fence(
        &mut self,
        origin: Origin,
        message: &NativeFenceValue,
    ) -> Outcome {
        let index = self.vm.fences.of_cpu(&self.vm.objects, origin.context, message.fence)?;
        let device = self.vm.objects.device(origin.context)?;
        (device.waits.len() + device.native_waits.len() < MAX_WAITS).or(Status::OutOfResources)?;
        let origin = self.vm.objects.park(origin)?;
        let wait = NativeWait { origin, fence: message.fence, index, value: message.value };
        self.vm.objects.device_mut(origin.context)?.native_waits.push(wait);
        Waits::of(self.vm).release_native_waiters(index);
        Ok(Handled::Parked)
    }

    /// SIGNAL_NATIVE_FENCE (UMS-139).
    pub(in crate::vgpu) fn signal_native_fence(
        &mut self,
        origin: Origin,
        message: &NativeFenceValue,
    ) -> Outcome {
        let index = self.vm.fences.of_cpu(&self.vm.objects, origin.context, message.fence)?;
        let value = self.vm.fences.value(index).ok_or(Status::InvalidHandle)?;
        // PAIRS WITH node/buffer.rs: what the process stored before is seen by a queue that passes its wait.
        value.store(message.value, Ordering::Release);
        self.vm.engines.poke_all();
        Waits::of(self.vm).release_native_waiters(index);
        Ok(Handled::done())
    }

    /// QUERY_NATIVE_FENCE.
    pub(in crate::vgpu) fn query_native_fence(&self, origin: Origin, message: &NamedMessage) -> Outcome {
        let index = self.vm.fences.of_cpu(&self.vm.objects, origin.context, message.handle)?;
        let value = self.vm.fences.value(index).ok_or(Status::InvalidHandle)?;
        // PAIRS WITH the engine's release of the value.
        Ok(Handled::with(&CurrentValue { value: value.load(Ordering::Acquire) }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use campanile_host_gpu::engine::address::EngineAddress;
    use campanile_host_gpu::engine::message::NodeKind;
    use campanile_host_gpu::memory::page_table::reader::Intent;
    use campanile_host_gpu::memory::page_table::reader::resolve_one;
    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::control::native_fence::CreateNativeFence;
    use campanile_protocol::control::native_fence::NativeFenceValue;
    use campanile_protocol::control::status::Status;
    use campanile_protocol::engine::block;
    use campanile_protocol::engine::fences;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::handshake::fence::NOBODY;
    use campanile_protocol::page_table::FIRST_ADDRESS;

    use super::NamedMessage;
    use super::NativeFences;
    use crate::vgpu::control::deferred::Deferred;
    use crate::vgpu::fences::table::Named;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::objects::process::MAX_WAITS;
    use crate::vgpu::objects::waits::GpuWait;
    use crate::vgpu::objects::waits::NativeWait;
    use crate::vgpu::objects::waits::Wait;
    use crate::vgpu::session::Session;
    use crate::vgpu::submission::waits::Waits;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::device;
    use crate::vgpu::testing::load;
    use crate::vgpu::testing::restored;
    use crate::vgpu::testing::run;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;
    use crate::vgpu::testing::store;

    const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);
    const ORIGIN: Origin = Origin { context: OWNER, slot: 1, sequence: 1, ring: 1, item: None };
    /// Where the golden state has nothing mapped.
    const VA: u64 = FIRST_ADDRESS + (1 << 36);

    /// What each engine is told to interrupt for.
    fn monitored(session: &Session) -> [u64; 2] {
        [COMPUTE, COPY].map(|at| load(session, at, fences::monitored(0)))
    }

    /// A session with a wait of the CPU for value 7 of fence 0.
    fn waiting() -> (Session, Handle) {
        let mut session = restored(startable());
        let (fence, _) = device(&mut session, OWNER).fences.iter().next().unwrap();
        session.vm.fences.value(0).unwrap().store(0, Ordering::Release);
        device(&mut session, OWNER).native_waits =
            vec![NativeWait { origin: ORIGIN, fence, index: 0, value: 7 }];
        Waits::of(&mut session.vm).release_native_waiters(0);
        (session, fence)
    }

    #[test]
    fn ums_133_every_engine_watches_for_the_smallest_value_that_cpu_or_gpu_waits_for() {
        let (mut session, _) = waiting();
        assert_eq!(monitored(&session), [6; 2]);
        device(&mut session, OWNER).gpu_waits.push(GpuWait { context: CONTEXT, index: 0, value: 3 });
        Waits::of(&mut session.vm).release_native_waiters(0);
        assert_eq!(monitored(&session), [2; 2], "a context that is parked waits, too");
        Waits::of(&mut session.vm).lose_gpu_waits(OWNER);
        assert_eq!(monitored(&session), [6; 2]);
        Waits::of(&mut session.vm).lose_native_waits(OWNER);
        assert_eq!(monitored(&session), [NOBODY; 2], "a lost device waits no more");
    }

    #[test]
    fn ums_135_ums_137_a_wait_is_over_at_its_value_and_not_before() {
        let (mut session, _) = waiting();
        for (value, waits) in [(6, 1), (7, 0)] {
            session.vm.fences.value(0).unwrap().store(value, Ordering::Release);
            Waits::of(&mut session.vm).release_native_waiters(0);
            assert_eq!(device(&mut session, OWNER).native_waits.len(), waits, "{value}");
        }
        assert_eq!(monitored(&session), [NOBODY; 2]);
    }

    #[test]
    fn waits_for_fences_of_both_kinds_are_bounded_together() {
        let (mut session, fence) = waiting();
        let device_of = device(&mut session, OWNER);
        let queue = device_of.queues.handles()[0];
        device_of.waits = vec![Wait { origin: ORIGIN, queue, value: u64::MAX }; MAX_WAITS - 1];
        let wait = NativeFences::of(&mut session.vm)
            .wait_native_fence(ORIGIN, &NativeFenceValue { fence, value: 9 });
        assert_eq!(wait.err().map(|refused| refused.status), Some(Status::OutOfResources));
        device(&mut session, OWNER).waits.pop();
        assert!(
            NativeFences::of(&mut session.vm)
                .wait_native_fence(ORIGIN, &NativeFenceValue { fence, value: 9 })
                .is_ok()
        );
    }

    fn say_signalled(session: &Session, handle: Handle) {
        let count = load(session, COPY, fences::SIGNALLED_WRITTEN);
        store(session, COPY, fences::signalled(count), handle.0);
        store(session, COPY, fences::SIGNALLED_WRITTEN, count + 1);
    }

    #[test]
    fn ums_141_a_fence_that_was_just_closed_may_be_named_and_one_that_never_was_may_not() {
        let (mut session, _) = waiting();
        let (index, global) = session.vm.fences.create(0, 0).unwrap();
        session.vm.engines[COPY.index()].process().unwrap().native_fences.create(index, global);
        assert!(session.vm.fences.close(index));
        assert_eq!(session.vm.fences.find(global), Named::Leaving);
        say_signalled(&session, global);
        Waits::of(&mut session.vm).read_signalled(COPY);
        assert!(!session.vm.engines.is_condemned(COPY));
        say_signalled(&session, global);
        // What was said before it is free is read by then.
        Waits::of(&mut session.vm).free_fences(&[index]);
        Waits::of(&mut session.vm).read_signalled(COPY);
        assert!(!session.vm.engines.is_condemned(COPY));
        assert_eq!(load(&session, COPY, fences::handle(index)), 0, "the engine forgets it");
        say_signalled(&session, global);
        Waits::of(&mut session.vm).read_signalled(COPY);
        assert!(session.vm.engines.is_condemned(COPY), "it was destroyed");
    }

    #[test]
    fn ums_141_a_report_that_did_not_fit_has_all_waiters_looked_at() {
        let (mut session, _) = waiting();
        session.vm.fences.value(0).unwrap().store(7, Ordering::Release);
        store(&session, COPY, fences::SIGNALLED_OVERFLOW, 1);
        Waits::of(&mut session.vm).read_signalled(COPY);
        assert!(device(&mut session, OWNER).native_waits.is_empty());
    }

    #[test]
    fn ums_131_an_engine_knows_a_fence_that_is_created_and_forgets_one_that_cannot_be_mapped() {
        let mut session = restored(startable());
        let create = |session: &mut Session, va: u64| {
            let message = CreateNativeFence { va, initial_value: 5, ..CreateNativeFence::default() };
            NativeFences::of(&mut session.vm).create_native_fence(ORIGIN, &message)
        };
        let known = |session: &Session| -> Vec<(u32, u64)> {
            let all = session.vm.fences.iter().map(|(index, _)| index).collect::<Vec<_>>();
            all.into_iter().map(|index| (index, load(session, COPY, fences::handle(index)))).collect()
        };
        let before = known(&session);
        assert!(create(&mut session, VA).is_ok());
        let mut after = known(&session);
        let all: Vec<_> = session.vm.fences.iter().map(|(index, global)| (index, global.0)).collect();
        assert_eq!(after, all, "by the handle that it reports");
        let (index, _) = after.pop().unwrap();
        assert_eq!(after, before);
        assert_eq!(load(&session, COPY, fences::monitored(index)), NOBODY);
        // Its address is taken.
        assert!(create(&mut session, VA).is_err());
        assert_eq!(known(&session), all, "nothing is left of it");
        assert_eq!(load(&session, COPY, fences::handle(index + 1)), 0);
    }

    #[test]
    fn ums_142_a_fence_that_its_last_process_closes_is_unmapped_waited_for_no_more_and_free_when_engines_have_let_go()
     {
        let mut session = restored(startable());
        let message = CreateNativeFence { va: VA, ..CreateNativeFence::default() };
        assert!(NativeFences::of(&mut session.vm).create_native_fence(ORIGIN, &message).is_ok());
        let mut all = device(&mut session, OWNER).fences.iter();
        let (fence, open) =
            all.find(|(_, fence)| fence.va == VA).map(|(handle, fence)| (handle, fence.index)).unwrap();
        drop(all);
        let global = session.vm.fences.iter().find(|(index, _)| *index == open).unwrap().1;
        let wait = NativeWait { origin: ORIGIN, fence, index: open, value: 7 };
        device(&mut session, OWNER).native_waits.push(wait);
        Waits::of(&mut session.vm).release_native_waiters(open);
        let monitored = |session: &Session| load(session, COPY, fences::monitored(open));
        assert_eq!(monitored(&session), 6);
        let root = device(&mut session, OWNER).root;
        let is_mapped = |session: &Session| {
            resolve_one(session.vm.memory.tables.mapping(), root.0, VA, PAGE_SIZE, Intent::Write).is_ok()
        };
        assert!(is_mapped(&session));
        let closed =
            NativeFences::of(&mut session.vm).close_native_fence(ORIGIN, &NamedMessage { handle: fence });
        assert!(closed.is_ok());
        assert!(device(&mut session, OWNER).native_waits.iter().all(|wait| wait.index != open));
        assert_eq!(monitored(&session), NOBODY, "no engine interrupts for it");
        assert!(!is_mapped(&session));
        assert_eq!(session.vm.fences.find(global), Named::Leaving, "an engine may still have its page");
        for (asked, done) in
            [(block::PAGE_TABLE_GENERATION, block::PAGE_TABLE_ACK), (block::WATCH_SEQUENCE, block::WATCH_ACK)]
        {
            store(&session, COPY, done, load(&session, COPY, asked));
        }
        Deferred::of(&mut session.vm).run_pending();
        assert_eq!(session.vm.fences.find(global), Named::Nothing);
    }

    #[test]
    fn ums_137_a_wait_for_a_value_that_is_there_is_over_at_once() {
        let (mut session, fence) = waiting();
        session.vm.fences.value(0).unwrap().store(4, Ordering::Release);
        let wait = NativeFences::of(&mut session.vm)
            .wait_native_fence(ORIGIN, &NativeFenceValue { fence, value: 4 });
        assert!(wait.is_ok());
        assert_eq!(device(&mut session, OWNER).native_waits.len(), 1, "the other one waits on");
    }

    #[test]
    fn an_engine_that_starts_late_knows_the_fences_that_there_are() {
        let mut session = session(&Arc::new(startable()));
        let (index, global) = session.vm.fences.create(0, 0).unwrap();
        run(&mut session, COPY);
        assert_eq!(load(&session, COPY, fences::handle(index)), global.0);
        assert_eq!(load(&session, COPY, fences::monitored(index)), NOBODY);
    }
}

//! Tests: what becomes of what waits for an engine that does not come up, or that is replaced.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::memory::bits;
use campanile_protocol::control::message::DESTROY_KERNEL;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_HUNG;
use campanile_protocol::device_page::response;
use campanile_protocol::engine::block;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::handle::Handle;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use zerocopy::IntoBytes;

use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::engines::pending_kernel::PendingKernel;
use crate::vgpu::engines::pending_kernel::Suspicion;
use crate::vgpu::engines::slot::WaitingMessage;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::kernel_source::KernelSource;
use crate::vgpu::objects::kernel_source::SourceBytes;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::timeline::Token;
use crate::vgpu::session::Session;
use crate::vgpu::tdr::reason::Reason;
use crate::vgpu::tdr::recovery::Recovery;
use crate::vgpu::testing::COPY;
use crate::vgpu::testing::OWNER;
use crate::vgpu::testing::counted;
use crate::vgpu::testing::device;
use crate::vgpu::testing::give;
use crate::vgpu::testing::lose;
use crate::vgpu::testing::restored;
use crate::vgpu::testing::run;
use crate::vgpu::testing::shared;
use crate::vgpu::testing::startable;
use crate::vgpu::testing::store_progress;
use crate::vgpu::testing::take_buffer;

const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);

/// A message of [`OWNER`] that is parked, to be answered in this slot.
fn parked(session: &mut Session, slot: u32) -> Origin {
    let origin = Origin { context: OWNER, slot, sequence: 77, ring: 9, item: None };
    session.vm.objects.park(origin).unwrap_or_else(|refused| panic!("{}", refused.text))
}

/// The answer in a slot of [`OWNER`], once there is one.
fn answer(session: &Session, slot: u32) -> Option<u32> {
    let page = session.vm.memory.page(&session.vm.objects, OWNER).unwrap();
    let word = |at: u64| page.word(response(slot) + at).unwrap().load(Ordering::Acquire);
    // Sequence, status, bytes.
    (word(0) == 77).then(|| u32::try_from(word(8) & u64::from(u32::MAX)).unwrap())
}

/// Has [`OWNER`] one more kernel, without text.
fn new_kernel(session: &mut Session) -> Handle {
    let charge = |session: &Session| {
        session
            .vm
            .objects
            .charge(OWNER, Kind::Kernels, 1)
            .unwrap_or_else(|refused| panic!("{}", refused.text))
    };
    let bytes = SourceBytes::new(&[], charge(session));
    let source = KernelSource { language: LANGUAGE_WGSL, entry: None, bytes, is_ending: false };
    let object = charge(session);
    device(session, OWNER).kernels.insert(source, object).unwrap()
}

fn has_kernel(session: &mut Session, handle: Handle) -> bool {
    device(session, OWNER).kernels.get(handle).is_some()
}

/// A session whose compute engine is on its way up for the first time, and no other is there.
fn starting() -> Session {
    let mut session = restored(startable());
    Lifecycle::of(&mut session.vm).stop_engines();
    assert!(
        !Lifecycle::of(&mut session.vm)
            .ensure_engine(COMPUTE)
            .unwrap_or_else(|refused| panic!("{}", refused.text))
    );
    session
}

#[test]
fn an_engine_that_does_not_come_up_is_given_up_with_what_waited_for_it_and_costs_no_device() {
    let mut session = starting();
    let origin = parked(&mut session, 9);
    let message = WaitingMessage { origin, opcode: u32::MAX, body: Vec::new(), charge: None };
    session.vm.engines[COMPUTE.index()].waiting.push(message);
    let barrier = Barrier::raise(&mut session.vm.engines);
    Deferred::of(&mut session.vm).after(barrier, Action::Answer(Token(5)));
    assert!(session.take_due().is_empty());
    lose(&mut session, COMPUTE, "a test");
    let slot = &session.vm.engines[COMPUTE.index()];
    assert!(slot.process().is_none() && slot.waiting.is_empty());
    assert_eq!(answer(&session, 9), Some(Status::NotSupported.word()));
    assert_eq!(session.take_due(), [(Token(5), Ok(()))], "what waited for engines waits no more");
    let counters = &session.vm.counters;
    let counts = [&counters.engines_reset, &counters.engines_lost, &counters.adapters_reset];
    assert_eq!(counts.map(counted), [0; 3], "there was nothing to recover");
    assert!(device(&mut session, OWNER).is_active());
}

#[test]
fn without_an_engine_a_kernel_is_destroyed_and_any_other_message_that_waits_for_it_is_refused() {
    let mut session = restored(startable());
    Lifecycle::of(&mut session.vm).stop_engines();
    let handle = new_kernel(&mut session);
    let destroy = Named { handle }.as_bytes().to_vec();
    for (slot, opcode, body) in [(9, DESTROY_KERNEL, destroy), (10, u32::MAX, Vec::new())] {
        let origin = parked(&mut session, slot);
        let message = WaitingMessage { origin, opcode, body, charge: None };
        session.vm.engines[COMPUTE.index()].waiting.push(message);
    }
    let refused = Refused { status: Status::OutOfResources, text: String::new() };
    Recovery::of(&mut session.vm).refuse_waiting_for(COMPUTE, &refused);
    session.settle();
    assert_eq!(
        [9, 10].map(|slot| answer(&session, slot)),
        [Status::Ok, Status::OutOfResources].map(|it| Some(it.word()))
    );
    assert!(!has_kernel(&mut session, handle));
    assert!(session.vm.engines[COMPUTE.index()].waiting.is_empty());
}

#[test]
fn the_next_process_compiles_again_what_was_compiled_and_what_is_asked_for_and_nothing_that_ends() {
    let mut session = restored(startable());
    Lifecycle::of(&mut session.vm).stop_engines();
    let rebuilding = |session: &mut Session| {
        Lifecycle::of(&mut session.vm).stop_engine(COMPUTE);
        Lifecycle::of(&mut session.vm)
            .ensure_engine(COMPUTE)
            .unwrap_or_else(|refused| panic!("{}", refused.text));
        session.vm.engines[COMPUTE.index()].rebuilding.len()
    };
    let before = rebuilding(&mut session);
    let handle = new_kernel(&mut session);
    assert_eq!(rebuilding(&mut session), before + 1);
    // One that is being compiled is waited for by the message that asked.
    let name = (device(&mut session, OWNER).root.0, handle.0);
    let origin = parked(&mut session, 9);
    session.vm.engines[COMPUTE.index()].compiling.insert(name, PendingKernel::new(origin, handle, 1));
    assert_eq!(rebuilding(&mut session), before);
    session.vm.engines[COMPUTE.index()].compiling.clear();
    device(&mut session, OWNER).kernels.get_mut(handle).unwrap().is_ending = true;
    assert_eq!(rebuilding(&mut session), before);
    device(&mut session, OWNER).kernels.get_mut(handle).unwrap().is_ending = false;
    device(&mut session, OWNER).status = DEVICE_HUNG;
    let of_others = session.vm.engines[COMPUTE.index()].rebuilding.iter().filter(|(root, _)| *root != name.0);
    let of_others = of_others.count();
    assert_eq!(rebuilding(&mut session), of_others, "a device in error runs nothing");
}

#[test]
fn tdr_57_the_next_process_looks_at_the_rings_of_its_own_doorbells_that_were_connected() {
    let mut session = restored(startable());
    let cases = [(COPY, true), (COPY, false), (COMPUTE, true)];
    let mut doorbells = device(&mut session, OWNER).doorbells.iter_mut();
    let mut expected = Vec::new();
    for (at, was_connected) in cases {
        let (_, doorbell) = doorbells.next().unwrap();
        (doorbell.at, doorbell.was_connected) = (at, was_connected);
        let is_expected = at == COPY && was_connected;
        expected.extend(doorbell.hw_queue.filter(|_| is_expected).map(|queue| u32::from(queue.get())));
    }
    assert!(doorbells.next().is_none() && expected.len() == 1);
    drop(doorbells);
    let others = device(&mut session, GuestProcess::new(1)).doorbells.iter_mut();
    others.for_each(|(_, doorbell)| doorbell.was_connected = false);
    let looks = |session: &Session| bits::take(&shared(session, COPY), block::LOOK, block::LOOK_WORDS);
    looks(&session);
    Recovery::of(&mut session.vm).recover_engine(COPY, Reason::EngineTimeout, "a test", None);
    assert_eq!(counted(&session.vm.counters.engines_reset), 1);
    assert_eq!(looks(&session), expected);
}

#[test]
fn the_kernel_that_an_engine_was_at_when_it_ended_is_refused_and_those_behind_it_are_not() {
    let mut session = starting();
    run(&mut session, COMPUTE);
    let kernels = [(5, 9), (4, 10), (6, 11)].map(|(number, slot)| {
        let handle = new_kernel(&mut session);
        let origin = parked(&mut session, slot);
        let name = (device(&mut session, OWNER).root.0, handle.0);
        let slot = &mut session.vm.engines[COMPUTE.index()];
        slot.compiling.insert(name, PendingKernel::new(origin, handle, number));
        handle
    });
    Recovery::of(&mut session.vm).recover_engine(COMPUTE, Reason::EngineTimeout, "a test", None);
    assert_eq!([9, 10, 11].map(|slot| answer(&session, slot)), [None; 3], "it may have been any of them");
    run(&mut session, COMPUTE);
    session.vm.engines[COMPUTE.index()].rebuilding.clear();
    Recovery::of(&mut session.vm).recover_engine(COMPUTE, Reason::EngineTimeout, "a test", None);
    assert_eq!(counted(&session.vm.counters.engines_reset), 2);
    let refused = Some(Status::KernelRefused.word());
    assert_eq!([9, 10, 11].map(|slot| answer(&session, slot)), [None, refused, None]);
    assert_eq!(kernels.map(|handle| has_kernel(&mut session, handle)), [true, false, true]);
    assert_eq!(session.vm.engines[COMPUTE.index()].compiling.len(), 2);
}

#[test]
fn tdr_61_an_engine_that_is_ended_for_its_work_or_by_order_is_not_ended_for_a_kernel() {
    use Suspicion::Alone;
    use Suspicion::OneOfSeveral;
    let refused = Some(Status::KernelRefused.word());
    for (runs, has_ended, reason, left) in [
        (true, false, Reason::EngineTimeout, Some(OneOfSeveral)),
        (false, false, Reason::Forced, Some(OneOfSeveral)),
        (false, false, Reason::EngineTimeout, None),
        (false, true, Reason::EngineTimeout, None),
        // It may have been either.
        (true, true, Reason::EngineTimeout, Some(Alone)),
    ] {
        let mut session = restored(startable());
        let (handle, origin) = (new_kernel(&mut session), parked(&mut session, 9));
        let name = (device(&mut session, OWNER).root.0, handle.0);
        let slot = &mut session.vm.engines[COPY.index()];
        slot.rebuilding.clear();
        slot.compiling.insert(name, PendingKernel::new(origin, handle, 1));
        if runs {
            let buffer = take_buffer(&mut session);
            give(&mut session, Some((GuestProcess::new(1), buffer)));
            store_progress(&session, Work::HwQueue);
        }
        if has_ended {
            let process = session.vm.engines[COPY.index()].process_mut().unwrap();
            assert!(!process.has_ended());
            let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap()).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
            let begun = Instant::now();
            while !process.has_ended() {
                assert!(begun.elapsed() < Duration::from_secs(30), "it was killed");
                thread::yield_now();
            }
        }
        Recovery::of(&mut session.vm).recover_engine(COPY, reason, "a test", None);
        assert_eq!(counted(&session.vm.counters.engines_reset), 1);
        let compiling = &session.vm.engines[COPY.index()].compiling;
        let case = (runs, has_ended, reason);
        assert_eq!(compiling.get(&name).map(|kernel| kernel.suspicion), left, "{case:?}");
        assert_eq!(answer(&session, 9), if left.is_none() { refused } else { None }, "{case:?}");
    }
}

//! Who waits for a shared native fence, and what engines say of it.

use std::sync::Arc;

use campanile_guest_driver::native_fence::GlobalFence;
use campanile_guest_driver::node::Node;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::control::native_fence::OpenNativeFence;
use campanile_protocol::control::status::Status;
use campanile_test_vmm::vm::LoopbackVm;

use crate::native_fences::VA;
use crate::native_fences::Worker;
use crate::native_fences::number;
use crate::native_fences::process;
use crate::native_fences::signaller;
use crate::processes::EngineView;
use crate::processes::engine;
use crate::processes::kill_engine_at_rest;
use crate::raw::RawCall;
use crate::raw::RawGuest;
use crate::signals::Stopped;
use crate::support::Daemon;
use crate::support::until;

/// A guest with a fence, and another with the same; their waits go by hand.
struct Shared {
    one: Arc<RawGuest>,
    other: Arc<RawGuest>,
    of_one: NativeFenceOpened,
    of_other: NativeFenceOpened,
}

impl Shared {
    fn new(vm: &Arc<LoopbackVm>) -> Self {
        let (one, other) = (RawGuest::open(vm), RawGuest::open(vm));
        let create = native_fence::CreateNativeFence { va: VA, ..Default::default() };
        let of_one: NativeFenceOpened = one.ask(native_fence::CREATE_NATIVE_FENCE, &create).unwrap();
        let open = OpenNativeFence { global: of_one.global, va: VA };
        let of_other = other.ask(native_fence::OPEN_NATIVE_FENCE, &open).unwrap();
        Self { one, other, of_one, of_other }
    }

    fn global(&self) -> GlobalFence {
        GlobalFence(self.of_one.global.0)
    }

    fn wait_of_one(&self, slot: u32, value: u64) -> RawCall {
        let wait = NativeFenceValue { fence: self.of_one.fence, value };
        self.one.send(slot, native_fence::WAIT_NATIVE_FENCE, &wait)
    }

    fn wait_of_other(&self, slot: u32, value: u64) -> RawCall {
        let wait = NativeFenceValue { fence: self.of_other.fence, value };
        self.other.send(slot, native_fence::WAIT_NATIVE_FENCE, &wait)
    }
}

#[test]
fn ums_133_ums_135_monitored_value_of_a_shared_fence_follows_the_waiters_of_all_processes() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let shared = Shared::new(&vm);
    let (mut worker, fence) = signaller(&vm, shared.global());
    let view = EngineView::of(&daemon);
    let index = number(shared.global());
    let monitors = |value: u64| until("MonitoredValue", || view.monitored_fence(index) == value);
    assert_eq!(view.monitored_fence(index), u64::MAX, "nobody waits");
    let fifth = shared.wait_of_one(1, 5);
    monitors(4);
    let third = shared.wait_of_other(1, 3);
    monitors(2);
    let fourth = shared.wait_of_one(2, 4);
    shared.one.round_trip();
    assert_eq!(view.monitored_fence(index), 2, "the smallest counts");
    worker.signal(&fence, 3);
    assert_eq!(third.finish(), Ok(Vec::new()));
    monitors(3);
    assert!(!fourth.is_done() && !fifth.is_done());
    worker.signal(&fence, 9);
    assert_eq!((fourth.finish(), fifth.finish()), (Ok(Vec::new()), Ok(Vec::new())));
    monitors(u64::MAX);
}

#[test]
fn ums_134_ums_141_an_interrupt_names_the_fences_that_have_a_waiter_due() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let shared = Shared::new(&vm);
    let (mut worker, fence) = signaller(&vm, shared.global());
    let view = EngineView::of(&daemon);
    let before = view.signalled_written();
    let stands_still = Stopped::new(daemon.pid());
    worker.signal(&fence, 1);
    worker.wait(&fence, 1, 2);
    worker.marks(2);
    assert_eq!(view.signalled_written(), before, "nobody waits");
    drop(stands_still);
    let call = shared.wait_of_other(1, 10);
    shared.other.round_trip();
    let stands_still = Stopped::new(daemon.pid());
    worker.signal(&fence, 9);
    worker.wait(&fence, 9, 3);
    worker.marks(3);
    assert_eq!(view.signalled_written(), before, "not yet what is waited for");
    worker.signal(&fence, 10);
    worker.wait(&fence, 10, 4);
    worker.marks(4);
    assert_eq!(view.signalled_written(), before + 1);
    assert_eq!(view.signalled(before), shared.global().0, "by its global handle");
    drop(stands_still);
    assert_eq!(call.finish(), Ok(Vec::new()));
}

#[test]
fn ums_141_a_report_that_does_not_fit_stands_for_all_waiters() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (full, last) = (Shared::new(&vm), Shared::new(&vm));
    let (mut worker, fence) = signaller(&vm, full.global());
    let device = process(&vm);
    let (mut of_last, last_fence) =
        (Worker::new(&device, Node::Copy, true), device.open_fence(last.global()).unwrap());
    of_last.wait(&last_fence, 0, 1);
    of_last.marks(1);
    let view = EngineView::of(&daemon);
    let calls = [full.wait_of_one(1, 1), last.wait_of_other(1, 1)];
    full.one.round_trip();
    last.other.round_trip();
    let stands_still = Stopped::new(daemon.pid());
    for value in 1..=100 {
        worker.signal(&fence, value);
    }
    worker.wait(&fence, 100, 2);
    worker.marks(2);
    assert!(view.has_overflowed(), "100 reports in 64 places");
    // Named nowhere any more.
    of_last.signal(&last_fence, 1);
    of_last.wait(&last_fence, 1, 2);
    of_last.marks(2);
    drop(stands_still);
    for call in calls {
        assert_eq!(call.finish(), Ok(Vec::new()));
    }
}

#[test]
fn ums_141_an_empty_payload_stands_for_all_waiters() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let shared = Shared::new(&vm);
    let (_worker, _fence) = signaller(&vm, shared.global());
    let pid = engine(&daemon);
    let view = EngineView::of(&daemon);
    let call = shared.wait_of_one(1, 1);
    shared.one.round_trip();
    view.set_fence_value(&daemon, number(shared.global()), 1);
    view.say_signalled(0);
    // Whatever else makes the engine interrupt.
    let other = process(&vm);
    let _context = other.create_context(Node::Copy).unwrap();
    assert_eq!(call.finish(), Ok(Vec::new()));
    assert_eq!(engine(&daemon), pid, "nothing wrong with it");
}

#[test]
fn ums_140_on_a_lost_device_waits_for_a_shared_fence_end_and_others_go_on() {
    let daemon = Daemon::steady(8);
    let vm = daemon.vm(0);
    let shared = Shared::new(&vm);
    let (mut worker, fence) = signaller(&vm, shared.global());
    let (lost, context) = (&shared.one, shared.one.context(Node::Copy));
    let of_lost = shared.wait_of_one(1, 100);
    let of_other = shared.wait_of_other(1, 5);
    lost.lose(context);
    assert_eq!(of_lost.finish(), Err(Status::DeviceLost));
    assert_eq!(shared.wait_of_one(1, 100).finish(), Err(Status::DeviceLost), "at once");
    let signal = NativeFenceValue { fence: shared.of_one.fence, value: 99 };
    assert_eq!(lost.call(native_fence::SIGNAL_NATIVE_FENCE, &signal), Err(Status::DeviceLost));
    shared.other.round_trip();
    assert!(!of_other.is_done(), "its device is well");
    assert_eq!(fence.value().unwrap(), 0, "signals of a lost device touch nothing");
    worker.signal(&fence, 5);
    assert_eq!(of_other.finish(), Ok(Vec::new()));
    assert_eq!(lost.name(native_fence::CLOSE_NATIVE_FENCE, shared.of_one.fence), Ok(()));
    fence.signal(6).unwrap();
    assert_eq!(shared.wait_of_other(1, 6).finish(), Ok(Vec::new()));
}

#[test]
fn ums_136_ums_137_a_wait_that_races_with_a_signal_of_another_process_ends() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let shared = Shared::new(&vm);
    let (mut worker, fence) = signaller(&vm, shared.global());
    for round in 1..=2000 {
        // Signals before, while and after the daemon sets MonitoredValue.
        let call = if round % 3 == 0 {
            worker.signal(&fence, round);
            shared.wait_of_one(1, round)
        } else {
            let call = shared.wait_of_one(1, round);
            for _ in 0..(round % 3) * round {
                std::hint::spin_loop();
            }
            worker.signal(&fence, round);
            call
        };
        assert_eq!(call.finish(), Ok(Vec::new()));
    }
}

#[test]
fn ums_135_a_wait_ends_when_its_engine_died_with_the_interrupt() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let shared = Shared::new(&vm);
    let (_worker, _fence) = signaller(&vm, shared.global());
    let call = shared.wait_of_other(1, 1);
    shared.other.round_trip();
    let view = EngineView::of(&daemon);
    // The value is there, and who stored it did not live to say so.
    view.set_fence_value(&daemon, number(shared.global()), 1);
    kill_engine_at_rest(&daemon);
    assert_eq!(call.finish(), Ok(Vec::new()));
}

#[test]
fn ums_142_closing_ends_waits_through_that_handle_and_no_others() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let shared = Shared::new(&vm);
    let open = OpenNativeFence { global: shared.of_one.global, va: VA + 4096 };
    let second: NativeFenceOpened = shared.one.ask(native_fence::OPEN_NATIVE_FENCE, &open).unwrap();
    let wait = NativeFenceValue { fence: second.fence, value: 1 };
    let through_second = shared.one.send(3, native_fence::WAIT_NATIVE_FENCE, &wait);
    let [mine, theirs] = [shared.wait_of_one(1, 1), shared.wait_of_other(1, 1)];
    assert_eq!(shared.one.name(native_fence::CLOSE_NATIVE_FENCE, second.fence), Ok(()));
    assert_eq!(through_second.finish(), Err(Status::InvalidHandle));
    assert_eq!(shared.one.name(native_fence::CLOSE_NATIVE_FENCE, second.fence), Err(Status::InvalidHandle));
    assert!(!mine.is_done() && !theirs.is_done());
    let signal = NativeFenceValue { fence: shared.of_other.fence, value: 1 };
    shared.other.call(native_fence::SIGNAL_NATIVE_FENCE, &signal).unwrap();
    assert_eq!((mine.finish(), theirs.finish()), (Ok(Vec::new()), Ok(Vec::new())));
}

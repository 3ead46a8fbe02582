//! Native fences between queues, nodes and processes of one VM.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::native_fence::FenceKind;
use campanile_guest_driver::native_fence::GlobalFence;
use campanile_guest_driver::native_fence::NativeFence;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::loopback::vm::LoopbackVm;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::control::native_fence::OpenNativeFence;
use campanile_protocol::control::status::Status;

use crate::processes::EngineView;
use crate::processes::Stopped;
use crate::processes::engine;
use crate::raw::RawCall;
use crate::raw::RawGuest;
use crate::raw_queue::copy_guest;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

/// A guest process.
pub(crate) fn process(vm: &Arc<LoopbackVm>) -> Device {
    Device::open(vm.open("process").unwrap()).unwrap()
}

pub(crate) fn refused(error: DriverError) -> Status {
    match error {
        DriverError::Refused { status, .. } => status,
        other => panic!("{other}"),
    }
}

/// The number of a fence in an engine's block.
pub(crate) fn number(global: GlobalFence) -> u32 {
    u32::try_from(global.0 & 0xfff).unwrap()
}

/// A queue of either kind, with memory that its work marks.
#[derive(Debug)]
struct Worker {
    queue: Kind,
    mark: Buffer,
    _context: Context,
}

#[derive(Debug)]
enum Kind {
    User(UserQueue),
    Ordinary(KernelQueue),
}

impl Worker {
    fn new(device: &Device, node: Node, is_user: bool) -> Self {
        let context = device.create_context(node).unwrap();
        let queue = if is_user {
            Kind::User(context.create_user_queue(&QueueOptions::default()).unwrap())
        } else {
            Kind::Ordinary(context.create_kernel_queue().unwrap())
        };
        Self { queue, mark: device.create_buffer(4096).unwrap(), _context: context }
    }

    fn submit(&mut self, commands: &CommandBuffer) {
        match &mut self.queue {
            Kind::User(queue) => {
                queue.submit(commands).unwrap();
            }
            Kind::Ordinary(queue) => {
                queue.submit(commands).unwrap();
            }
        }
    }

    /// Work that marks `round` once `fence` is `value`.
    fn wait(&mut self, fence: &NativeFence, value: u64, round: u32) {
        let mut commands = CommandBuffer::new();
        commands.wait(fence.va(), value).unwrap().fill(self.mark.va(), 4, round).unwrap();
        self.submit(&commands);
    }

    fn signal(&mut self, fence: &NativeFence, value: u64) {
        let mut commands = CommandBuffer::new();
        commands.signal(fence.va(), value).unwrap();
        self.submit(&commands);
    }

    fn marked(&self) -> u32 {
        u32::try_from(self.mark.memory().word(0).unwrap().load(Ordering::Acquire)).unwrap()
    }

    fn marks(&self, round: u32) {
        until("work behind a wait", || self.marked() == round);
    }
}

#[test]
fn ums_142_a_fence_outlives_its_creator_and_dies_with_its_last_opener() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (creator, second, third) = (process(&vm), process(&vm), process(&vm));
    let fence = creator.create_fence(FenceKind::Default, 3).unwrap();
    let global = fence.global();
    let opened = second.open_fence(global).unwrap();
    let twice = second.open_fence(global).unwrap();
    assert_eq!((opened.global(), opened.kind(), opened.value().unwrap()), (global, FenceKind::Default, 3));
    drop(fence);
    opened.signal(5).unwrap();
    let late = third.open_fence(global).unwrap();
    late.wait(5, Some(NEVER)).unwrap();
    drop((opened, late));
    assert_eq!(twice.value().unwrap(), 5, "one handle an open, not one a process");
    drop(creator);
    assert_eq!(process(&vm).open_fence(global).unwrap().value().unwrap(), 5);
    drop(twice);
    assert_eq!(refused(third.open_fence(global).unwrap_err()), Status::InvalidHandle, "nobody has it");
    let next = third.create_fence(FenceKind::Default, 0).unwrap();
    assert_ne!(next.global(), global);
    assert_eq!(next.value().unwrap(), 0);
}

#[test]
fn ums_142_a_process_that_dies_closes_what_it_had_open() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (dies, lives) = (RawGuest::open(&vm), process(&vm));
    let create = |guest: &RawGuest, va| -> NativeFenceOpened {
        let create = native_fence::CreateNativeFence { va, ..Default::default() };
        guest.ask(native_fence::CREATE_NATIVE_FENCE, &create).unwrap()
    };
    let [shared, lone] = [VA, VA + 4096].map(|va| GlobalFence(create(&dies, va).global.0));
    let opened = lives.open_fence(shared).unwrap();
    // As the guest's kernel ends it: nothing is closed one by one.
    drop(dies);
    opened.signal(1).unwrap();
    assert_eq!(lives.open_fence(shared).unwrap().value().unwrap(), 1);
    assert_eq!(refused(lives.open_fence(lone).unwrap_err()), Status::InvalidHandle);
}

#[test]
fn ums_138_a_fence_joins_queues_of_two_nodes_and_two_processes() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (one, other) = (process(&vm), process(&vm));
    let mut round = 0;
    for (waits_on, signals_on) in [
        (Node::Copy, Node::Copy),
        (Node::Copy, Node::Compute),
        (Node::Compute, Node::Copy),
        (Node::Compute, Node::Compute),
    ] {
        for (waits_in_user_mode, signals_in_user_mode) in
            [(true, true), (true, false), (false, true), (false, false)]
        {
            let fence = one.create_fence(FenceKind::IntraGpu, 0).unwrap();
            let same = other.open_fence(fence.global()).unwrap();
            let mut waiter = Worker::new(&one, waits_on, waits_in_user_mode);
            let mut signaller = Worker::new(&other, signals_on, signals_in_user_mode);
            for value in 1..=3 {
                round += 1;
                waiter.wait(&fence, value, round);
                assert_ne!(waiter.marked(), round);
                signaller.signal(&same, value);
                waiter.marks(round);
            }
        }
    }
}

#[test]
fn ums_138_two_processes_play_ping_pong_without_a_message() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (one, other) = (process(&vm), process(&vm));
    let fence = one.create_fence(FenceKind::Default, 0).unwrap();
    let same = other.open_fence(fence.global()).unwrap();
    let mut ping = Worker::new(&one, Node::Copy, true);
    let mut pong = Worker::new(&other, Node::Copy, true);
    ping.wait(&fence, 0, 1);
    pong.wait(&same, 0, 1);
    ping.marks(1);
    pong.marks(1);
    let sent = vm.commands_sent();
    for turn in 0..64 {
        let value = 2 * turn;
        let mut commands = CommandBuffer::new();
        commands.wait(fence.va(), value).unwrap().signal(fence.va(), value + 1).unwrap();
        ping.submit(&commands);
        let mut commands = CommandBuffer::new();
        commands.wait(same.va(), value + 1).unwrap().signal(same.va(), value + 2).unwrap();
        pong.submit(&commands);
    }
    ping.wait(&fence, 128, 2);
    ping.marks(2);
    assert_eq!(vm.commands_sent(), sent, "the GPU alone");
    assert_eq!(fence.value().unwrap(), 128);
}

#[test]
fn ums_139_a_signal_of_the_cpu_frees_queues_of_other_processes() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (one, other, third) = (process(&vm), process(&vm), process(&vm));
    let fence = one.create_fence(FenceKind::Default, 0).unwrap();
    let (second, of_third) =
        (other.open_fence(fence.global()).unwrap(), third.open_fence(fence.global()).unwrap());
    let mut workers = [
        Worker::new(&other, Node::Copy, true),
        Worker::new(&other, Node::Copy, false),
        Worker::new(&other, Node::Compute, true),
    ];
    for round in 1..=10 {
        for worker in &mut workers {
            worker.wait(&second, u64::from(round), round);
        }
        let sleeps = thread::scope(|scope| {
            let sleeper = scope.spawn(|| of_third.wait(u64::from(round), Some(NEVER)));
            assert!(workers.iter().all(|worker| worker.marked() == round - 1));
            fence.signal(u64::from(round)).unwrap();
            sleeper.join().unwrap()
        });
        sleeps.unwrap();
        for worker in &workers {
            worker.marks(round);
        }
    }
}

/// A guest with a fence, and another with the same; their waits go by hand.
struct Shared {
    one: Arc<RawGuest>,
    other: Arc<RawGuest>,
    of_one: NativeFenceOpened,
    of_other: NativeFenceOpened,
}

/// Where raw guests have a fence.
const VA: u64 = 1 << 33;

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

/// A process that signals through its own queue on the copy node.
fn signaller(vm: &Arc<LoopbackVm>, global: GlobalFence) -> (Worker, NativeFence) {
    let device = process(vm);
    let fence = device.open_fence(global).unwrap();
    let mut worker = Worker::new(&device, Node::Copy, true);
    worker.wait(&fence, 0, 1);
    worker.marks(1);
    (worker, fence)
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
fn ums_141_naming_a_fence_that_was_destroyed_is_fatal_to_the_engine() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let kept = process(&vm).create_fence(FenceKind::Default, 0).unwrap();
    let (mut worker, fence) = signaller(&vm, kept.global());
    let destroyed = {
        let scrap = process(&vm).create_fence(FenceKind::Default, 0).unwrap();
        scrap.global()
    };
    let view = EngineView::of(&daemon);
    until("the fence is gone from the engine", || view.fence_handle(number(destroyed)) == 0);
    let pid = engine(&daemon);
    view.say_signalled(destroyed.0);
    let other = process(&vm);
    let _context = other.create_context(Node::Copy).unwrap();
    until("another engine", || !crate::processes::is_there(pid));
    // It ran nobody's work: all go on, with their fences.
    worker.signal(&fence, 7);
    fence.wait(7, Some(NEVER)).unwrap();
    assert_ne!(engine(&daemon), pid);
}

#[test]
fn ums_143_a_fence_of_the_gpu_alone_refuses_the_cpu() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (one, other) = (process(&vm), process(&vm));
    let fence = one.create_fence(FenceKind::IntraGpu, 0).unwrap();
    let same = other.open_fence(fence.global()).unwrap();
    assert_eq!(same.kind(), FenceKind::IntraGpu);
    for refusal in [
        fence.wait(0, Some(NEVER)).unwrap_err(),
        same.wait(1, Some(NEVER)).unwrap_err(),
        fence.signal(1).unwrap_err(),
        same.value().unwrap_err(),
    ] {
        assert!(refusal.to_string().contains("INTRA_GPU"), "{refusal}");
        assert_eq!(refused(refusal), Status::NotSupported);
    }
    let (mut waiter, mut signaller) =
        (Worker::new(&one, Node::Copy, true), Worker::new(&other, Node::Copy, true));
    waiter.wait(&fence, 1, 1);
    signaller.signal(&same, 1);
    waiter.marks(1);
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
    crate::processes::kill(engine(&daemon));
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

#[test]
fn a_wait_with_a_time_limit_ends_with_it_and_can_go_on() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let device = process(&vm);
    let fence = device.create_fence(FenceKind::Default, 0).unwrap();
    for _ in 0..100 {
        let error = fence.wait(1, Some(Duration::from_micros(100))).unwrap_err();
        assert!(matches!(error, DriverError::Timeout), "{error}");
    }
    // More values than the daemon takes waits.
    for value in 2..=64 {
        assert!(fence.wait(value, Some(Duration::ZERO)).is_err());
    }
    fence.signal(64).unwrap();
    for value in 1..=64 {
        fence.wait(value, Some(NEVER)).unwrap();
    }
    let (guest, _context) = copy_guest(&vm);
    guest.round_trip();
}

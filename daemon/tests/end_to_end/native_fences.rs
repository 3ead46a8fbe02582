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
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::status::Status;
use campanile_test_vmm::vm::LoopbackVm;

use crate::processes::EngineView;
use crate::processes::engine;
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
pub(crate) struct Worker {
    pub(crate) queue: Kind,
    pub(crate) mark: Buffer,
    pub(crate) _context: Context,
}

#[derive(Debug)]
pub(crate) enum Kind {
    User(UserQueue),
    Ordinary(KernelQueue),
}

impl Worker {
    pub(crate) fn new(device: &Device, node: Node, is_user: bool) -> Self {
        let context = device.create_context(node).unwrap();
        let queue = if is_user {
            Kind::User(context.create_user_queue(&QueueOptions::default()).unwrap())
        } else {
            Kind::Ordinary(context.create_kernel_queue().unwrap())
        };
        Self { queue, mark: device.create_buffer(4096).unwrap(), _context: context }
    }

    pub(crate) fn submit(&mut self, commands: &CommandBuffer) {
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
    pub(crate) fn wait(&mut self, fence: &NativeFence, value: u64, round: u32) {
        let mut commands = CommandBuffer::new();
        commands.wait(fence.va(), value).unwrap().fill(self.mark.va(), 4, round).unwrap();
        self.submit(&commands);
    }

    pub(crate) fn signal(&mut self, fence: &NativeFence, value: u64) {
        let mut commands = CommandBuffer::new();
        commands.signal(fence.va(), value).unwrap();
        self.submit(&commands);
    }

    pub(crate) fn marked(&self) -> u32 {
        u32::try_from(self.mark.memory().word(0).unwrap().load(Ordering::Acquire)).unwrap()
    }

    pub(crate) fn marks(&self, round: u32) {
        until("work behind a wait", || self.marked() == round);
    }
}

/// A process that signals through its own queue on the copy node.
pub(crate) fn signaller(vm: &Arc<LoopbackVm>, global: GlobalFence) -> (Worker, NativeFence) {
    let device = process(vm);
    let fence = device.open_fence(global).unwrap();
    let mut worker = Worker::new(&device, Node::Copy, true);
    worker.wait(&fence, 0, 1);
    worker.marks(1);
    (worker, fence)
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

/// Where raw guests have a fence.
pub(crate) const VA: u64 = 1 << 33;

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

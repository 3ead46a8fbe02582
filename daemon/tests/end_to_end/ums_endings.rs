//! Devices, engines and guests that end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::away;
use campanile_protocol::control::memory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::scheduling;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_protocol::device_page::DEVICE_RESET;
use campanile_protocol::device_page::DEVICE_STOPPED;

use crate::processes::EngineView;
use crate::processes::engine;
use crate::processes::engines;
use crate::processes::is_there;
use crate::processes::lose_engine;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::RawRing;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::raw_queue::wait_for;
use crate::signals::Stopped;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

/// Of 64 MiB of video memory, while somebody has the first nobody gets the second.
const BIG: u64 = 24 << 20;
const MOST: u64 = 48 << 20;

// conformance: one page fault, and each line is what it does to the doorbells of its device
#[test]
fn ums_53_ums_54_ums_60_ums_99_a_page_fault_aborts_every_doorbell_of_its_device() {
    let daemon = Daemon::dedicated(2);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queues: Vec<RawQueue> = (0..3).map(|_| RawQueue::new(&guest, context)).collect();
    // Of three, one disconnected, one idle; the third breaks the rule.
    for queue in &mut queues {
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
    }
    assert_eq!((queues[0].status(), queues[2].status()), (RETRY, CONNECTED));
    assert_eq!(queues[2].submit(&fill(1 << 40, 8, 1)), CONNECTED);
    for queue in &queues {
        until("ABORT", || queue.status() == ABORT);
    }
    assert_eq!(guest.device_status(), DEVICE_PAGE_FAULT);
    assert!(EngineView::of(&daemon).slots_in_use().is_empty());
    for queue in &mut queues {
        assert_eq!(queue.connect(), Err(Status::DeviceLost));
        assert_eq!(queue.submit(&CommandBuffer::new()), ABORT, "for good");
        assert_eq!(queue.fence(), 1);
    }
}

#[test]
fn ums_99_ums_101_a_lost_engine_aborts_its_own_doorbells_alone() {
    let daemon = Daemon::with_vgpus(2, &["--spin", "600000000"]);
    let (first, second) = (daemon.vm(0), daemon.vm(1));
    let (guest, context) = copy_guest(&first);
    let first_engine = engine(&daemon);
    let (neighbour, neighbours) = copy_guest(&second);
    let queues = [RawQueue::new(&guest, context), RawQueue::new(&guest, context)];
    let mut works = RawQueue::new(&neighbour, neighbours);
    assert_eq!((queues[0].connect(), works.connect()), (Ok(CONNECTED), Ok(CONNECTED)));
    let spared = engines(&daemon).into_iter().find(|pid| *pid != first_engine).unwrap();
    lose_engine(&daemon, &[spared], || queues.iter().all(|queue| queue.status() == ABORT));
    assert_eq!(guest.device_status(), DEVICE_RESET);
    assert_eq!((works.status(), neighbour.device_status()), (CONNECTED, DEVICE_ACTIVE));
    works.run(&CommandBuffer::new());
}

#[test]
fn ums_100_a_guest_recreates_everything_after_abort() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    for round in 0..3 {
        let context = if round == 0 { context } else { guest.context(Node::Copy) };
        let mut queue = RawQueue::new(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
        queue.submit(&fill(1 << 40, 8, 1));
        until("ABORT", || queue.status() == ABORT);
        guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell).unwrap();
        guest.name(message::DESTROY_QUEUE, queue.created.queue).unwrap();
        guest.name(message::DESTROY_CONTEXT, context).unwrap();
        guest.call(message::DESTROY_DEVICE, &()).unwrap();
        guest.create_device().unwrap();
        assert_eq!(guest.device_status(), DEVICE_ACTIVE);
    }
}

#[test]
fn ums_60_a_driver_that_lost_its_device_opens_another() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    for _ in 0..3 {
        let device = Device::open(vm.open("again").unwrap()).unwrap();
        let context = device.create_context(Node::Copy).unwrap();
        let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        queue.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
        let point = queue.submit(&fill(1 << 40, 8, 1)).unwrap();
        let lost = |outcome| matches!(outcome, Err(DriverError::DeviceLost(loss)) if loss.status == DEVICE_PAGE_FAULT);
        assert!(lost(point.wait(Some(NEVER))));
        assert!(lost(queue.submit(&CommandBuffer::new()).map(|_| ())));
        assert!(lost(queue.connect()));
    }
}

#[test]
fn ums_83_the_end_of_a_device_frees_the_rings_that_nobody_else_would() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    let mut ring = RawRing::new(&guest);
    ring.ring = guest.vram(BIG);
    let doorbell = ring.doorbell(guest.queue(context, 0x10).unwrap().queue);
    guest.call(message::CREATE_DOORBELL, &doorbell).unwrap();
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    // Neither a name of it nor a mapping is left to the guest.
    guest.unmap(&ring.ring);
    guest.free(ring.ring);
    assert!(!guest.can_have(MOST));
    guest.call(message::DESTROY_DEVICE, &()).unwrap();
    until("the memory of a ring whose device is gone", || guest.can_have(MOST));
    assert_eq!(queue.status(), ABORT);
    assert!(EngineView::of(&daemon).slots_in_use().is_empty());
    guest.create_device().unwrap();
    for opcode in [message::CONNECT_DOORBELL, message::DESTROY_DOORBELL] {
        assert_eq!(guest.name(opcode, queue.bell.doorbell), Err(Status::InvalidHandle));
    }
    assert_eq!(guest.name(message::DESTROY_QUEUE, queue.created.queue), Err(Status::InvalidHandle));
    assert_eq!(guest.name(message::DESTROY_CONTEXT, context), Err(Status::InvalidHandle));
}

#[test]
fn ums_128_ums_129_a_process_that_ends_waits_for_no_fence_and_keeps_its_ring_until_the_engine_let_go() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (neighbour, neighbours) = copy_guest(&vm);
    let mut works = RawQueue::new(&neighbour, neighbours);
    assert_eq!(works.connect(), Ok(CONNECTED));
    works.run(&CommandBuffer::new());
    let view = EngineView::of(&daemon);
    let held = view.slots_in_use();

    let (guest, context) = copy_guest(&vm);
    let gate = guest.vram(4096);
    let ring = RawRing { ring: guest.vram(BIG), ..RawRing::new(&guest) };
    let mut queue = RawQueue::over(&guest, context, ring);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    // Work that will never be done, while its doorbell alone keeps the ring.
    let mut endless = CommandBuffer::new();
    endless.signal(gate.va + 8, 1).unwrap();
    endless.wait(gate.va, 1).unwrap();
    assert_eq!(queue.submit(&endless), CONNECTED);
    until("endless work", || gate.word(8).load(Ordering::Acquire) == 1);
    let slot = view.slots_in_use().into_iter().find(|slot| !held.contains(slot)).unwrap();
    let entry = view.slot(slot).queue();
    assert!(view.has_queue(entry));
    guest.unmap(&queue.ring.ring);
    let RawRing { ring, control, .. } = queue.ring;
    guest.free(ring);
    guest.round_trip();

    let engine_stands_still = Stopped::new(engine(&daemon));
    // Answered, though nobody signals and the engine cannot be asked.
    assert_eq!(guest.call(message::DESTROY_DEVICE, &()), Ok(Vec::new()));
    assert_eq!((guest.device_status(), guest.load(queue.bell.status_offset)), (DEVICE_STOPPED, ABORT));
    assert_eq!((view.slots_in_use(), view.has_queue(entry)), (held, false));
    neighbour.round_trip();
    assert!(!neighbour.can_have(MOST), "the engine has not let go");
    drop(engine_stands_still);
    until("the memory of a process that ended", || neighbour.can_have(MOST));
    assert_eq!(guest.load(queue.created.fence_offset), 1);
    drop(control);
    assert_eq!(works.status(), CONNECTED);
    works.run(&CommandBuffer::new());
}

#[test]
fn ums_129_a_process_that_dies_waits_for_no_fence() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (neighbour, _) = copy_guest(&vm);
    let (guest, context) = copy_guest(&vm);
    let gate = guest.vram(BIG);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    assert_eq!(queue.submit(&wait_for(gate.va, u64::MAX)), CONNECTED);
    let ordinary = guest.queue(context, 0).unwrap().queue;
    let packets = guest.vram(4096);
    let commands = wait_for(gate.va, u64::MAX);
    packets.memory.write(0, commands.bytes()).unwrap();
    let length = u32::try_from(commands.bytes().len()).unwrap();
    let submit = Submit { queue: ordinary, buffer_va: packets.va, length, flags: 0 };
    let calls: Vec<_> = (1..4).map(|slot| guest.send(slot, message::SUBMIT, &submit)).collect();
    drop((calls, queue));
    drop(Arc::into_inner(guest).unwrap());
    until("the memory of a process that died", || neighbour.can_have(MOST));
    assert!(vm.is_connected());
}

#[test]
fn a_lost_device_takes_nothing_from_the_next_engine() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let [(loser, losers), (other, _)] = [copy_guest(&vm), copy_guest(&vm)];
    let lost: Vec<RawQueue> = (0..3).map(|_| RawQueue::new(&loser, losers)).collect();
    lose_engine(&daemon, &[], || lost.iter().all(|queue| queue.status() == ABORT));
    until("the loss of the neighbour", || other.device_status() == DEVICE_RESET);
    let (guest, context) = copy_guest(&vm);
    let mut queues: Vec<RawQueue> = (0..3).map(|_| RawQueue::new(&guest, context)).collect();
    for queue in &queues {
        assert_eq!(queue.connect(), Ok(CONNECTED));
    }
    // Their places in the tables of the engine that died are those of others now.
    for queue in &lost {
        loser.name(message::DESTROY_DOORBELL, queue.bell.doorbell).unwrap();
    }
    for queue in &mut queues {
        queue.run(&CommandBuffer::new());
    }
}

#[test]
fn ums_130_a_peer_that_disappears_ends_as_a_crash_does() {
    let daemon = Daemon::steady(4);
    for reset in [false, true, false] {
        let vm = daemon.vm(0);
        let (guest, context) = copy_guest(&vm);
        let gate = guest.vram(4096);
        let mut queue = RawQueue::new(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        assert_eq!(queue.submit(&wait_for(gate.va, 1)), CONNECTED);
        let old = engine(&daemon);
        if reset {
            vm.reset_device().unwrap();
            until("the end of the old guest's engine", || !is_there(old));
            let (again, context) = copy_guest(&vm);
            let mut queue = RawQueue::new(&again, context);
            assert_eq!(queue.connect(), Ok(CONNECTED));
            queue.run(&CommandBuffer::new());
        } else {
            vm.hang_up();
            until("the end of the engine", || !is_there(old));
        }
    }
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    assert!(guest.can_have(MOST));
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    assert_eq!(engines(&daemon).len(), 1);
}

#[test]
fn ums_147_the_guest_has_four_doorbell_operations_and_no_disconnect() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let notify = Notify { queue: queue.created.queue, flags: 0, reserved: 0 };
    assert_eq!(guest.call(message::NOTIFY, &notify), Ok(Vec::new()));
    // Every other message: those of other objects do not take a doorbell, and there are no more. The context, which has
    // the same number, can be suspended.
    let known = [
        message::DESTROY_DEVICE,
        message::CONNECT_DOORBELL,
        message::DESTROY_DOORBELL,
        message::SUSPEND_CONTEXT,
        message::RESUME_CONTEXT,
    ];
    let others = (0..1000).chain([u32::MAX]).filter(|opcode| !known.contains(opcode));
    for opcode in others {
        let outcome = guest.name(opcode, queue.bell.doorbell);
        let of_fences = native_fence::CREATE_NATIVE_FENCE..=native_fence::QUERY_NATIVE_FENCE;
        let of_scheduling = scheduling::SET_SCHEDULING_PROPERTIES..=scheduling::SET_PROCESS_CLASS;
        let of_memory = memory::MAP_LIST..=memory::QUERY_MEMORY;
        let of_going_away = away::PARK_DEVICE..=away::ATTACH_DEVICE;
        let is_known =
            [of_fences, of_scheduling, of_memory, of_going_away].iter().any(|of| of.contains(&opcode));
        if (opcode > message::QUERY_PROFILE || opcode == 0) && !is_known {
            assert_eq!(outcome, Err(Status::UnknownMessage), "message {opcode}");
        } else {
            assert!(outcome.is_err(), "message {opcode}");
        }
        assert_eq!(queue.status(), CONNECTED);
    }
    guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell).unwrap();
}

#[test]
fn a_queue_of_the_driver_finishes_its_work_before_it_is_gone() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let context = device.create_context(Node::Copy).unwrap();
    let target = device.create_buffer(1 << 20).unwrap();
    for round in 1..=20u32 {
        let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        for _ in 0..10 {
            queue.submit(&fill(target.va(), 1 << 20, round)).unwrap();
        }
        drop(queue);
        let last = target.memory().word((1 << 20) - 8).unwrap().load(Ordering::Relaxed);
        assert_eq!(last, u64::from(round) << 32 | u64::from(round));
    }
}

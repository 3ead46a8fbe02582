//! Queues of both kinds, and what a guest learns before it makes one.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::capset;
use campanile_protocol::capset::Capset;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::reply::Submitted;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::handle::Handle;

use crate::processes::EngineView;
use crate::raw::RawGuest;
use crate::raw_queue::BOTH_MEMORIES;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::ENTRIES;
use crate::raw_queue::RawQueue;
use crate::raw_queue::RawRing;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::raw_queue::wait_for;
use crate::signals::Stopped;
use crate::support::Daemon;
use crate::support::NEVER;

const USER_MODE: u32 = 0x10;

/// A submission of `commands`, put at the start of `memory`.
fn submission(memory: &crate::raw::RawMemory, commands: &CommandBuffer, queue: Handle) -> Submit {
    memory.memory.write(0, commands.bytes()).unwrap();
    let length = u32::try_from(commands.bytes().len()).unwrap();
    Submit { queue, buffer_va: memory.va, length, flags: 0 }
}

#[test]
fn ums_03_a_guest_that_knows_only_the_traditional_path_works_unchanged() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let queue = guest.queue(context, 0).unwrap();
    let (packets, target) = (guest.vram(4096), guest.vram(4096));
    for round in 1..=50u32 {
        let submit = submission(&packets, &fill(target.va, 4096, round), queue.queue);
        let submitted: Submitted = guest.ask(message::SUBMIT, &submit).unwrap();
        assert_eq!(submitted.fence_value, u64::from(round));
        assert_eq!(guest.load(queue.fence_offset), u64::from(round), "done when answered");
        assert_eq!(target.word(4088).load(Ordering::Relaxed), u64::from(round) << 32 | u64::from(round));
    }
    assert!(EngineView::of(&daemon).slots_in_use().is_empty(), "it has no doorbell");
}

#[test]
fn ums_04_ums_25_ums_26_a_flag_at_creation_chooses_for_each_queue() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let user = guest.queue(context, USER_MODE).unwrap();
    let ordinary = guest.queue(context, 0).unwrap();
    let (ring, packets) = (RawRing::new(&guest), guest.vram(4096));
    let submit =
        |queue| guest.ask::<Submitted>(message::SUBMIT, &submission(&packets, &CommandBuffer::new(), queue));
    let doorbell = |queue| guest.ask::<DoorbellCreated>(message::CREATE_DOORBELL, &ring.doorbell(queue));

    assert_eq!(submit(user.queue), Err(Status::InvalidParameter), "only its doorbell feeds it");
    assert_eq!(submit(ordinary.queue), Ok(Submitted { fence_value: 1 }));
    assert_eq!(doorbell(ordinary.queue), Err(Status::InvalidParameter), "only messages feed it");
    assert!(doorbell(user.queue).is_ok());
    assert_eq!(submit(user.queue), Err(Status::InvalidParameter), "with its doorbell no less");
    assert_eq!(guest.load(user.fence_offset), 0);
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

#[test]
fn ums_06_where_user_mode_cannot_be_set_up_an_ordinary_queue_takes_its_place() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let (packets, target) = (guest.vram(4096), guest.vram(4096));
    let user = guest.queue(context, USER_MODE).unwrap();
    let mut hopeless = RawRing::new(&guest).doorbell(user.queue);
    hopeless.ring_resource = 0;
    let setup = guest.ask::<DoorbellCreated>(message::CREATE_DOORBELL, &hopeless);
    assert_eq!(setup, Err(Status::InvalidResource));
    guest.name(message::DESTROY_QUEUE, user.queue).unwrap();
    let ordinary = guest.queue(context, 0).unwrap();
    let submit = submission(&packets, &fill(target.va, 4096, 6), ordinary.queue);
    guest.ask::<Submitted>(message::SUBMIT, &submit).unwrap();
    assert_eq!(target.word(0).load(Ordering::Relaxed), 0x6_0000_0006);
}

#[test]
fn ums_07_doorbells_lie_in_either_memory_and_their_number_is_told() {
    let daemon = Daemon::dedicated(3);
    let vm = daemon.vm(0);
    for memory in BOTH_MEMORIES {
        let guest = RawGuest::open_in(&vm, memory);
        let caps = guest.transport().capset().unwrap();
        assert_eq!(caps.nodes[capset::NODE_COPY as usize].physical_doorbells, 3);
        let mut queue = RawQueue::new(&guest, guest.context(Node::Copy));
        assert_eq!(queue.connect(), Ok(CONNECTED));
        for _ in 0..50 {
            queue.run(&CommandBuffer::new());
        }
    }
}

#[test]
fn ums_18_ums_19_a_node_without_the_flag_makes_no_user_mode_queue() {
    let daemon = Daemon::with(&["--vulkan-device", "no device has this name", "--local-memory", "host"]);
    let vm = daemon.vm(0);
    let guest = RawGuest::open(&vm);
    let caps = guest.transport().capset().unwrap();
    let says = |node: u32| caps.nodes[node as usize].flags & capset::NODE_FLAG_USER_MODE_SUBMISSION != 0;
    assert!(says(capset::NODE_COPY) && !says(capset::NODE_COMPUTE));
    for node in [capset::NODE_COMPUTE, capset::NODE_COPY, caps.node_count, u32::MAX] {
        let create = CreateContext { node, engine_affinity: 1, flags: 0, reserved: 0 };
        let context = guest.ask::<Created>(message::CREATE_CONTEXT, &create);
        if node == capset::NODE_COPY {
            let queue = guest.queue(context.unwrap().handle, USER_MODE).unwrap();
            let doorbell = RawRing::new(&guest).doorbell(queue.queue);
            assert!(guest.ask::<DoorbellCreated>(message::CREATE_DOORBELL, &doorbell).is_ok());
        } else {
            // Nothing is left that a queue could be made of.
            assert_eq!(context, Err(Status::NotSupported));
        }
    }
    assert_eq!(guest.queue(Handle::NONE, USER_MODE), Err(Status::InvalidHandle));
}

#[test]
fn ums_20_ums_21_a_query_tells_the_size_of_a_doorbell() {
    let daemon = Daemon::dedicated(64);
    let vm = daemon.vm(0);
    let guest = RawGuest::open(&vm);
    let by_capset = guest.transport().capset().unwrap();
    let by_message: Capset = guest.ask(message::QUERY_CAPS, &()).unwrap();
    assert_eq!(by_capset, by_message);
    assert_eq!(by_capset.doorbell_bytes, 8);
    let (secondary, reserved) = (by_capset.doorbell_flags & 1, by_capset.doorbell_flags & !1);
    assert_eq!((secondary, reserved, by_capset.secondary_doorbell_bytes), (0, 0, 0));
    let bytes: [u8; 16] = zerocopy::transmute!(by_capset.doorbell_reserved);
    assert_eq!(bytes, [0; 16]);
    // And what is told is true: doorbells lie that far from each other.
    let context = guest.context(Node::Copy);
    let cells: Vec<u64> = (0..3).map(|_| RawQueue::new(&guest, context).bell.cell_offset).collect();
    assert!(cells.windows(2).all(|pair| pair[0].abs_diff(pair[1]) >= u64::from(by_capset.doorbell_bytes)));
}

#[test]
fn ums_23_mcdm_26_no_limit_of_buffers_in_flight_means_a_whole_ring() {
    let daemon = Daemon::dedicated(2);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let node = guest.transport().capset().unwrap().nodes[capset::NODE_COPY as usize];
    let known = capset::NODE_FLAG_AVAILABLE
        | capset::NODE_FLAG_USER_MODE_SUBMISSION
        | capset::NODE_FLAG_RING_BUFFER_FENCE_RELEASE;
    assert_eq!((node.max_in_flight_hw_queue_buffers, node.flags & !known), (0, 0));
    let gate = guest.vram(4096);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    for round in 1..=5 {
        for _ in 0..ENTRIES {
            assert_eq!(queue.submit(&wait_for(gate.va, round)), CONNECTED);
        }
        assert_eq!(guest.device_status(), DEVICE_ACTIVE);
        gate.word(0).store(round, Ordering::Release);
        queue.wait(round * u64::from(ENTRIES));
    }
}

#[test]
fn ums_24_the_device_writes_the_fence_when_nobody_uses_the_buffer_any_more() {
    let daemon = Daemon::steady(2);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let node = guest.transport().capset().unwrap().nodes[capset::NODE_COPY as usize];
    assert_ne!(node.flags & capset::NODE_FLAG_RING_BUFFER_FENCE_RELEASE, 0);
    const BYTES: u64 = 1 << 20;
    let target = guest.vram(BYTES);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    for round in 1..=100u32 {
        // No packet writes a fence; the device does.
        queue.run(&fill(target.va, BYTES, round));
        let last = target.word(BYTES - 8).load(Ordering::Acquire);
        assert_eq!(last, u64::from(round) << 32 | u64::from(round), "all of it is done");
        // Packets and ring entry are the guest's again.
        queue.spoil();
    }
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

#[test]
fn queue_flags_that_mean_nothing_here_are_refused() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    for bit in 0..32 {
        let flags = 1 << bit;
        let known = [0x1, 0x10, 0x20].contains(&flags);
        let made = guest.queue(context, flags);
        assert_eq!(made.is_ok(), known, "flag {flags:#x}");
        assert!(known || made == Err(Status::InvalidParameter));
    }
    let reserved = CreateQueue { context, flags: 0, reserved: 1 };
    assert_eq!(guest.call(message::CREATE_QUEUE, &reserved), Err(Status::InvalidParameter));
}

#[test]
fn ums_28_a_queue_comes_with_a_progress_fence_for_cpu_and_gpu() {
    let daemon = Daemon::steady(2);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    let mut other = RawQueue::new(&guest, context);
    assert_eq!((queue.connect(), other.connect()), (Ok(CONNECTED), Ok(CONNECTED)));
    let seen = guest.vram(4096);
    queue.run(&CommandBuffer::new());
    queue.run(&CommandBuffer::new());
    assert_eq!(queue.fence(), 2);
    other.run(&copy(queue.created.fence_va, seen.va, 8));
    assert_eq!(seen.word(0).load(Ordering::Relaxed), 2, "the GPU sees the same word");
    let mut signal = CommandBuffer::new();
    signal.signal(queue.created.fence_va, 7).unwrap();
    other.run(&signal);
    assert_eq!(queue.fence(), 7, "and writes it");
    // That the guest should only read it is not enforced (UMS-48); what it stores does not mislead the device.
    guest.word(queue.created.fence_offset).store(0, Ordering::Release);
    queue.run(&CommandBuffer::new());
    assert_eq!(queue.fence(), 3);
}

#[test]
fn ums_29_ums_138_the_gpu_waits_for_progress_fences_without_the_cpu() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let target = guest.vram(4096);
    // Made without a word about native fences: a user-mode queue has no other kind.
    let mut queues: Vec<RawQueue> = (0..3).map(|_| RawQueue::new(&guest, context)).collect();
    for queue in &mut queues {
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
    }
    let [signaller, waiter, bystander] = &mut queues[..] else { panic!("three queues") };
    let daemon_stands_still = Stopped::new(daemon.pid());
    for round in 2..=20u32 {
        let value = u64::from(round);
        let mut behind = CommandBuffer::new();
        behind.wait(signaller.created.fence_va, value).unwrap();
        behind.fill(target.va, 8, round).unwrap();
        assert_eq!(waiter.submit(&behind), CONNECTED);
        // The scheduler skips the blocked queue.
        bystander.run(&CommandBuffer::new());
        bystander.run(&CommandBuffer::new());
        assert_eq!(waiter.fence(), value - 1);
        signaller.run(&CommandBuffer::new());
        waiter.wait(value);
        assert_eq!(target.word(0).load(Ordering::Relaxed), value << 32 | value);
    }
    drop(daemon_stands_still);
}

#[test]
fn ums_01_ums_95_the_fast_path_needs_no_daemon() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (device, seen) = crate::spy::open_overheard(&vm);
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let target = device.create_buffer(4096).unwrap();
    queue.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
    let page = seen.page();
    assert_eq!(page.word(device_page::status(0)).unwrap().load(Ordering::Acquire), CONNECTED, "plainly");
    seen.take_opcodes();
    let daemon_stands_still = Stopped::new(daemon.pid());
    for round in 1..=1000u32 {
        queue.submit(&fill(target.va(), 4096, round)).unwrap().spin().unwrap();
        assert_eq!(target.memory().word(8).unwrap().load(Ordering::Relaxed) >> 32, u64::from(round));
    }
    drop(daemon_stands_still);
    assert!(seen.take_opcodes().is_empty());
}

#[test]
fn a_driver_whose_setup_is_refused_says_why_and_goes_on_with_ordinary_queues() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let context = device.create_context(Node::Copy).unwrap();
    let odd = QueueOptions { entries: 3, ..QueueOptions::default() };
    let refused = context.create_user_queue(&odd).unwrap_err();
    assert!(matches!(refused, DriverError::Refused { status: Status::InvalidParameter, .. }), "{refused}");
    let mut queue = context.create_kernel_queue().unwrap();
    let ticket = queue.submit(&CommandBuffer::new()).unwrap();
    queue.wait(ticket, Some(NEVER)).unwrap();
}

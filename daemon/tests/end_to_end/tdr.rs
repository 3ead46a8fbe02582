//! Engines that hang or die: whose work they ran pays, and nobody else notices.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::capset::NODE_KIND_COMPUTE;
use campanile_protocol::capset::NODE_KIND_COPY;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CREATE_CONTEXT;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::QUEUE_DISABLE_GPU_TIMEOUT;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_HUNG;
use campanile_protocol::device_page::DEVICE_RESET;
use campanile_protocol::device_page::LOSS;
use campanile_protocol::engine::progress::Work;

use crate::operator::Operated;
use crate::processes::EngineView;
use crate::processes::engine;
use crate::processes::kill_engine_at_rest;
use crate::processes::lose_engine;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::signals::Stopped;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

const ENDLESS: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(1) fn main() {
        loop {
            data[0] = data[0] + 1u;
            if data[1] == 7u { break; }
        }
    }";

const DOUBLE: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        data[id.x] = 2u * data[id.x] + 1u;
    }";

fn is_hung(outcome: Result<(), DriverError>) -> bool {
    matches!(outcome, Err(DriverError::DeviceLost(loss)) if loss.status == DEVICE_HUNG)
}

#[test]
fn tdr_03_tdr_61_tdr_70_a_kernel_without_end_costs_its_own_device_alone() {
    let daemon = Daemon::with(&["--tdr-timeout", "300"]);
    let vm = daemon.vm(0);
    let works = Device::open(vm.open("works").unwrap()).unwrap();
    let double = works.create_kernel(&KernelSource::wgsl(DOUBLE)).unwrap();
    let data = works.create_buffer(4096).unwrap();
    let context = works.create_context(Node::Compute).unwrap();
    let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut kernel_mode = context.create_kernel_queue().unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&double, [16, 1, 1], &[data.binding(0)], &[]).unwrap();
    let mut expected = 0u32;
    for through_doorbell in [true, false] {
        let hangs = Device::open(vm.open("hangs").unwrap()).unwrap();
        let endless = hangs.create_kernel(&KernelSource::wgsl(ENDLESS)).unwrap();
        let its_data = hangs.create_buffer(4096).unwrap();
        let its_context = hangs.create_context(Node::Compute).unwrap();
        let mut forever = CommandBuffer::new();
        forever.dispatch(&endless, [1, 1, 1], &[its_data.binding(0)], &[]).unwrap();
        let spins = || its_data.memory().word(0).unwrap().load(Ordering::Relaxed) != 0;
        if through_doorbell {
            let mut queue = its_context.create_user_queue(&QueueOptions::default()).unwrap();
            let point = queue.submit(&forever).unwrap();
            until("the kernel without end", spins);
            assert!(is_hung(point.wait(Some(NEVER))));
        } else {
            let mut queue = its_context.create_kernel_queue().unwrap();
            let ticket = queue.submit(&forever).unwrap();
            until("the kernel without end", spins);
            // Behind it in the hardware queue.
            let innocent = kernel_mode.submit(&commands).unwrap();
            assert!(is_hung(queue.wait(ticket, Some(NEVER))));
            kernel_mode.wait(innocent, Some(NEVER)).unwrap();
            expected = 2 * expected + 1;
        }
        // Its kernel has moved to the next process of the engine.
        user.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
        let ticket = kernel_mode.submit(&commands).unwrap();
        kernel_mode.wait(ticket, Some(NEVER)).unwrap();
        expected = 2 * (2 * expected + 1) + 1;
        let mut bytes = [0; 4096];
        data.read(0, &mut bytes).unwrap();
        assert!(bytes.chunks_exact(4).all(|word| word == expected.to_le_bytes()), "once each");
        works.check().unwrap();
    }
}

#[test]
fn tdr_57_work_that_was_put_aside_goes_on_where_it_was() {
    let daemon = Daemon::with(&["--tdr-timeout", "300"]);
    let vm = daemon.vm(0);
    let works = Device::open(vm.open("works").unwrap()).unwrap();
    let big = works.create_buffer(12 << 20).unwrap();
    let half = 6 << 20;
    let marks = works.create_buffer(8192).unwrap();
    marks.write(0, &[5; 4096]).unwrap();
    let context = works.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut commands = CommandBuffer::new();
    // Twice would be seen: the second time there are nines to copy.
    commands.copy(marks.va(), marks.va() + 4096, 4096).unwrap();
    commands.fill(marks.va(), 4096, 0x0909_0909).unwrap();
    for _ in 0..400 {
        commands.copy(big.va(), big.va() + half, half).unwrap();
    }
    let point = queue.submit(&commands).unwrap();
    let begun = || marks.memory().word(0).unwrap().load(Ordering::Acquire) == 0x0909_0909_0909_0909;
    until("the long buffer has begun", begun);
    let hangs = Device::open(vm.open("hangs").unwrap()).unwrap();
    let endless = hangs.create_kernel(&KernelSource::wgsl(ENDLESS)).unwrap();
    let its_data = hangs.create_buffer(4096).unwrap();
    let its_context = hangs.create_context(Node::Compute).unwrap();
    let mut its_queue = its_context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut forever = CommandBuffer::new();
    forever.dispatch(&endless, [1, 1, 1], &[its_data.binding(0)], &[]).unwrap();
    assert!(is_hung(its_queue.submit(&forever).unwrap().wait(Some(NEVER))));
    point.wait(Some(NEVER)).unwrap();
    let mut bytes = [0; 8192];
    marks.read(0, &mut bytes).unwrap();
    assert!(bytes[4096..].iter().all(|byte| *byte == 5), "it was run again from its start");
    works.check().unwrap();
}

#[test]
fn an_engine_that_dies_while_nothing_runs_costs_nobody_anything() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queues: Vec<RawQueue> = (0..3).map(|_| RawQueue::new(&guest, context)).collect();
    for queue in &mut queues[..2] {
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
    }
    // Not connected: its ring must reach nobody, before and after.
    queues[2].submit(&CommandBuffer::new());
    let dead = kill_engine_at_rest(&daemon);
    for queue in &mut queues[..2] {
        queue.run(&CommandBuffer::new());
        assert_eq!(
            (queue.fence(), queue.status()),
            (2, CONNECTED),
            "neither a new connect nor a doubled buffer"
        );
    }
    assert_ne!(engine(&daemon), dead);
    assert_eq!((queues[2].fence(), guest.device_status()), (0, DEVICE_ACTIVE));
}

// conformance: one table of nodes and engines is read, and each line is a property of it
#[test]
fn tdr_05_tdr_06_tdr_07_tdr_08_nodes_have_ordinals_and_one_engine_each() {
    let (_vm, device) = Daemon::start().device();
    let capset = device.capset();
    assert_eq!(capset.node_count, 2);
    assert!(capset.nodes.len() <= 64);
    let nodes = &capset.nodes[..2];
    assert_eq!([nodes[0].kind, nodes[1].kind], [NODE_KIND_COMPUTE, NODE_KIND_COPY]);
    assert!(
        nodes.iter().all(|node| node.engines == 1),
        "one physical adapter, so as many engines on each node"
    );
}

#[test]
fn tdr_09_tdr_10_without_linked_adapters_a_context_is_of_one_node_and_of_engine_0() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let (guest, _context) = copy_guest(&vm);
    for (node, engine_affinity, is_valid) in
        [(1, 1, true), (1, 0, false), (1, 2, false), (1, 3, false), (1, 1 << 31, false), (2, 1, false)]
    {
        let create = CreateContext { node, engine_affinity, flags: 0, reserved: 0 };
        assert_eq!(guest.call(CREATE_CONTEXT, &create).is_ok(), is_valid, "{create:?}");
    }
}

#[test]
fn tdr_49_tdr_50_tdr_65_an_engine_whose_next_process_does_not_come_up_takes_its_whole_adapter_along() {
    // No limit has a part in this.
    let operated = Operated::with(1, &["--tdr-debug", "3", "--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    lose_engine(&operated.daemon, &[], || queue.status() == ABORT);
    assert_eq!(guest.device_status(), DEVICE_RESET);
    assert_eq!(guest.load(LOSS), 1 << 32 | 9, "promoted, and no fault of its own");
    let counters = operated.ask(&["metrics"])["vgpus"][0]["counters"].clone();
    assert!(counters["adapters_reset"].as_u64() >= Some(1), "{counters}");
}

#[test]
fn tdr_67_tdr_68_tdr_69_a_hung_device_has_no_doorbell_no_wait_and_no_buffer_left() {
    let daemon = Daemon::with(&["--tdr-timeout", "150", "--spin", "600000000"]);
    let vm = daemon.vm(0);
    let view_of = |guest: &_, context| {
        let queue = RawQueue::new(guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue
    };
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let memory = guest.vram(16 << 20);
    let half = memory.size() / 2;
    let mut long = CommandBuffer::new();
    for _ in 0..7 {
        long.copy(memory.va, memory.va + half, half).unwrap();
    }
    let mut busy = view_of(&guest, context);
    let idle = view_of(&guest, context);
    let wait = guest.wait_fence(1, idle.created.queue, 1);
    let ordinary = guest.queue(context, 0).unwrap().queue;
    let stopped = loop {
        for _ in 0..40 {
            busy.submit(&long);
        }
        let stopped = Stopped::new(engine(&daemon));
        if matches!(view.progress().work, Work::UserQueue(_)) {
            break stopped;
        }
        drop(stopped);
        busy.wait(busy.value);
    };
    // In the hardware queue and in the software queue behind it.
    let submit = Submit { queue: ordinary, buffer_va: memory.va, length: 0, flags: 0 };
    let queued: Vec<_> = (2..8).map(|slot| guest.send(slot, message::SUBMIT, &submit)).collect();
    until("the verdict", || guest.device_status() == DEVICE_HUNG);
    until("ABORT", || (busy.status(), idle.status()) == (ABORT, ABORT));
    assert_eq!(wait.finish(), Err(Status::DeviceLost));
    for buffer in queued {
        // Accepted before the verdict; its timeline goes on.
        buffer.finish().unwrap();
    }
    drop(stopped);
    let (other, its_context) = copy_guest(&vm);
    let mut queue = view_of(&other, its_context);
    queue.run(&CommandBuffer::new());
}

#[test]
fn tdr_19_an_engine_that_is_reset_too_often_is_lost() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    for _ in 0..5 {
        queue.run(&CommandBuffer::new());
        kill_engine_at_rest(&daemon);
    }
    queue.run(&CommandBuffer::new());
    kill_engine_at_rest(&daemon);
    until("ABORT", || queue.status() == ABORT);
    assert_eq!(guest.device_status(), DEVICE_RESET);
}

#[test]
fn tdr_22_exempt_work_may_stand_still() {
    let daemons = [(); 2].map(|()| Daemon::with(&["--tdr-timeout", "250", "--spin", "600000000"]));
    let stuck = |daemon: &Daemon, flags: u32| {
        let vm = daemon.vm(0);
        let (guest, context) = copy_guest(&vm);
        let view = EngineView::of(daemon);
        let memory = guest.vram(16 << 20);
        let half = memory.size() / 2;
        let mut queue = RawQueue::flagged(&guest, context, flags);
        let mut long = CommandBuffer::new();
        for _ in 0..7 {
            long.copy(memory.va, memory.va + half, half).unwrap();
        }
        assert_eq!(queue.connect(), Ok(CONNECTED));
        loop {
            for _ in 0..40 {
                queue.submit(&long);
            }
            let stopped = Stopped::new(engine(daemon));
            if matches!(view.progress().work, Work::UserQueue(_)) {
                assert_eq!(view.progress().is_exempt, flags != 0);
                return (guest, queue, stopped);
            }
            drop(stopped);
            queue.wait(queue.value);
        }
    };
    // The first stands still for longer than the second.
    let (exempt, queue, stopped) = stuck(&daemons[0], QUEUE_DISABLE_GPU_TIMEOUT);
    let (other, _queue, _stopped) = stuck(&daemons[1], 0);
    until("the verdict", || other.device_status() == DEVICE_HUNG);
    assert_eq!(exempt.device_status(), DEVICE_ACTIVE);
    drop(stopped);
    queue.wait(queue.value);
}

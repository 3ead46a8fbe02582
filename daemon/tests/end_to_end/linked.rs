//! Linked physical adapters: several engines, each with the same nodes (TDR-05 to TDR-10, MCDM-19 to MCDM-21).

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::native_fence::FenceKind;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::capset::MAX_ENGINES;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CREATE_CONTEXT;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::status::Status;
use rustix::process::Signal;
use serde_json::Value;

use crate::native_fences::process;
use crate::native_fences::refused;
use crate::operator::Operated;
use crate::processes::engine;
use crate::raw::RawGuest;
use crate::signals::Stopped;
use crate::signals::kill;
use crate::signals::signal;
use crate::support::Daemon;
use crate::support::NEVER;

pub(crate) const NODES: [Node; 2] = [Node::Compute, Node::Copy];

/// A kernel that counts in every word of a page.
pub(crate) const COUNT: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        data[id.x] = data[id.x] + 1u;
    }";

/// A user-mode queue on one engine.
pub(crate) fn queue_on(device: &Device, node: Node, engine: u32) -> (Context, UserQueue) {
    let context = device.create_context_on(node, engine).unwrap();
    assert_eq!((context.node(), context.engine()), (node, engine));
    let queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    (context, queue)
}

/// One run of a kernel over a page.
pub(crate) fn count(kernel: &Kernel, data: &Buffer) -> CommandBuffer {
    let mut commands = CommandBuffer::new();
    commands.dispatch(kernel, [16, 1, 1], &[data.binding(0)], &[]).unwrap();
    commands
}

pub(crate) fn run(queue: &mut UserQueue, commands: &CommandBuffer) {
    queue.submit(commands).unwrap().wait(Some(NEVER)).unwrap();
}

pub(crate) fn words(buffer: &Buffer) -> Vec<u32> {
    let mut bytes = [0; 4096];
    buffer.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The engines of the first vGPU, as the operator sees them.
pub(crate) fn engines(operated: &Operated) -> Vec<Value> {
    operated.ask(&["status"])["vgpus"][0]["session"]["engines"].as_array().unwrap().clone()
}

pub(crate) fn pids(operated: &Operated) -> Vec<Option<u64>> {
    engines(operated).iter().map(|engine| engine["pid"].as_u64()).collect()
}

// conformance: one table of nodes and engines is read, and each line is a property of it
#[test]
fn tdr_05_tdr_06_tdr_07_tdr_08_mcdm_21_every_linked_adapter_has_the_same_nodes() {
    for count in [1, 2, MAX_ENGINES] {
        let operated = Operated::with(1, &["--engines", &count.to_string()]);
        let (_vm, device) = operated.daemon.device();
        let capset = device.capset();
        // As many nodes as one physical adapter has, however many are linked (MCDM-22).
        assert_eq!(capset.node_count, 2);
        assert!(capset.nodes[..2].iter().all(|node| usize::try_from(node.engines).unwrap() == count));
        let places: Vec<(Value, Value)> = engines(&operated)
            .iter()
            .map(|engine| (engine["node"].clone(), engine["engine"].clone()))
            .collect();
        let wanted =
            (0..count).flat_map(|engine| ["compute", "copy"].map(|node| (node.into(), engine.into())));
        assert_eq!(places, wanted.collect::<Vec<_>>());
    }
}

#[test]
fn tdr_08_tdr_09_tdr_10_a_context_is_of_exactly_one_engine_that_there_is() {
    let daemon = Daemon::with(&["--engines", "2"]);
    let vm = daemon.vm(0);
    let guest = RawGuest::open(&vm);
    for node in NODES.map(Node::ordinal) {
        for (engine_affinity, is_valid) in [
            (1, true),
            (2, true),
            (0, false),
            (3, false),
            (4, false),
            (5, false),
            (1 << 31, false),
            (u32::MAX, false),
        ] {
            let create = CreateContext { node, engine_affinity, flags: 0, reserved: 0 };
            let created = guest.ask::<Created>(CREATE_CONTEXT, &create).map(|_| ());
            let wanted = if is_valid { Ok(()) } else { Err(Status::InvalidParameter) };
            assert_eq!(created, wanted, "{create:?}");
        }
    }
    let device = process(&vm);
    for engine in [2, 31, 32, u32::MAX] {
        let refusal = refused(device.create_context_on(Node::Copy, engine).unwrap_err());
        assert_eq!(refusal, Status::InvalidParameter, "engine {engine}");
    }
}

#[test]
fn tdr_08_contexts_of_both_engines_run_the_same_kernels_and_copies() {
    for model in ["dedicated", "global"] {
        let operated = Operated::with(1, &["--engines", "2", "--doorbell-model", model]);
        let (_vm, device) = operated.daemon.device();
        // Before the second engine is there, when it comes up, and after that.
        let before = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
        assert_eq!(pids(&operated).iter().flatten().count(), 1, "none starts before it is used");
        let data = device.create_buffer(4096).unwrap();
        let mut queues = [0, 1].map(|engine| queue_on(&device, Node::Compute, engine));
        let after = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
        let mut rounds = 0;
        for kernel in [&before, &after, &before] {
            for (_, queue) in &mut queues {
                run(queue, &count(kernel, &data));
                rounds += 1;
                assert!(words(&data).iter().all(|word| *word == rounds), "{model}, round {rounds}");
            }
        }
        let mut ordinary = [0, 1].map(|engine: usize| queues[engine].0.create_kernel_queue().unwrap());
        for queue in &mut ordinary {
            let ticket = queue.submit(&count(&after, &data)).unwrap();
            queue.wait(ticket, Some(NEVER)).unwrap();
            rounds += 1;
        }
        assert!(words(&data).iter().all(|word| *word == rounds), "{model}");

        let target = device.create_buffer(4096).unwrap();
        for engine in [0, 1] {
            let (_context, mut queue) = queue_on(&device, Node::Copy, engine);
            let mut commands = CommandBuffer::new();
            commands.fill(target.va(), 4096, engine + 100).unwrap();
            run(&mut queue, &commands);
            assert!(words(&target).iter().all(|word| *word == engine + 100), "{model}, engine {engine}");
        }
        let mut processes = pids(&operated);
        processes.sort_unstable();
        processes.dedup();
        assert_eq!(processes.iter().flatten().count(), 4, "each engine is a process of its own");
        device.check().unwrap();
    }
}

#[test]
fn a_kernel_that_is_refused_is_refused_once_and_one_that_is_destroyed_is_gone_from_every_engine() {
    let daemon = Daemon::with(&["--engines", "2"]);
    let (_vm, device) = daemon.device();
    let _both = [0, 1].map(|engine| device.create_context_on(Node::Compute, engine).unwrap());
    for _ in 0..3 {
        let refusal = refused(device.create_kernel(&KernelSource::wgsl("fn main( {")).unwrap_err());
        assert_eq!(refusal, Status::KernelRefused);
        drop(device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap());
    }
    let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    let commands = count(&kernel, &data);
    let (_context, mut queue) = queue_on(&device, Node::Compute, 1);
    run(&mut queue, &commands);
    drop(kernel);
    // It may have faulted before its submission returns.
    let outcome = queue.submit(&commands).and_then(|point| point.wait(Some(NEVER)));
    assert!(matches!(outcome, Err(DriverError::DeviceLost(_))), "a buffer that names it faults");
    assert!(words(&data).iter().all(|word| *word == 1));
}

#[test]
fn the_end_of_a_kernel_is_answered_when_its_engines_have_heard_of_it() {
    for is_killed in [false, true] {
        let operated = Operated::with(1, &[]);
        let guest = RawGuest::open(&operated.daemon.vm(0));
        let kernel = Named { handle: guest.kernel(COUNT) };
        let process = engine(&operated.daemon);
        let stopped = Stopped::new(process);
        let ended = guest.send(1, message::DESTROY_KERNEL, &kernel);
        assert_eq!(guest.name(message::DESTROY_KERNEL, kernel.handle), Err(Status::InvalidHandle));
        assert!(!ended.is_done(), "a ring could overtake the message");
        if is_killed {
            kill(process);
        }
        drop(stopped);
        assert_eq!(ended.finish(), Ok(Vec::new()));
        assert_eq!(guest.name(message::DESTROY_KERNEL, guest.kernel(COUNT)), Ok(()));
    }
}

#[test]
fn tdr_03_a_kernel_that_one_engine_does_not_compile_in_time_is_refused_and_the_other_engine_goes_on() {
    let operated = Operated::with(1, &["--engines", "2", "--compile-timeout", "500"]);
    let (_vm, device) = operated.daemon.device();
    let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    let mut queues = [0, 1].map(|engine| queue_on(&device, Node::Compute, engine));
    queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
    let before = pids(&operated);
    signal(u32::try_from(before[2].unwrap()).unwrap(), Signal::STOP);
    let refusal = refused(device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap_err());
    assert_eq!(refusal, Status::KernelRefused);
    let next = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    for kernel in [&kernel, &next] {
        queues.iter_mut().for_each(|(_, queue)| run(queue, &count(kernel, &data)));
    }
    assert!(words(&data).iter().all(|word| *word == 6));
    let after = pids(&operated);
    assert_eq!(after[0], before[0]);
    assert_ne!(after[2], before[2]);
}

#[test]
fn memory_that_is_mapped_and_unmapped_is_so_on_every_engine() {
    let daemon = Daemon::with(&["--engines", "2"]);
    let (_vm, device) = daemon.device();
    let mut queues = [0, 1].map(|engine| queue_on(&device, Node::Copy, engine));
    for round in 0..32 {
        // The same addresses, each round with other memory behind them.
        let kept: Vec<Buffer> = (0..round % 3).map(|_| device.create_buffer(4096).unwrap()).collect();
        let (from, to) = (device.create_buffer(4096).unwrap(), device.create_buffer(4096).unwrap());
        let mut fill = CommandBuffer::new();
        fill.fill(from.va(), 4096, round).unwrap();
        run(&mut queues[0].1, &fill);
        let mut copy = CommandBuffer::new();
        copy.copy(from.va(), to.va(), 4096).unwrap();
        run(&mut queues[1].1, &copy);
        assert!(words(&to).iter().all(|word| *word == round), "round {round}");
        drop(kept);
    }
}

#[test]
fn native_fences_work_between_engines() {
    let daemon = Daemon::with(&["--engines", "2"]);
    let vm = daemon.vm(0);
    // One process, and two.
    let (first, second) = (process(&vm), process(&vm));
    let fence = first.create_fence(FenceKind::Default, 0).unwrap();
    let opened = second.open_fence(fence.global()).unwrap();
    let fences = [&fence, &opened];
    for node in NODES {
        let mut queues = [queue_on(&first, node, 0), queue_on(&second, node, 1), queue_on(&first, node, 1)];
        let start = fence.value().unwrap();
        for (step, (waits, signals)) in (0u64..).zip([(0, 1), (1, 0), (0, 2), (2, 0)]) {
            let value = start + 1 + step;
            let of = |queue: usize| fences[queue % 2];
            let mut wait = CommandBuffer::new();
            wait.wait(of(waits).va(), value).unwrap();
            let point = queues[waits].1.submit(&wait).unwrap();
            let mut signal = CommandBuffer::new();
            signal.signal(of(signals).va(), value).unwrap();
            queues[signals].1.submit(&signal).unwrap();
            point.wait(Some(NEVER)).unwrap();
            assert_eq!(opened.value().unwrap(), value, "{node:?}");
        }
    }
    // The CPU signals to and waits for either engine.
    let value = fence.value().unwrap() + 1;
    let mut queues = [queue_on(&first, Node::Copy, 0), queue_on(&second, Node::Copy, 1)];
    for (fence, (_, queue)) in fences.iter().zip(&mut queues) {
        let mut both = CommandBuffer::new();
        both.wait(fence.va(), value).unwrap();
        queue.submit(&both).unwrap();
    }
    fence.signal(value).unwrap();
    queues.iter().for_each(|(_, queue)| queue.last().wait(Some(NEVER)).unwrap());
    let mut signal = CommandBuffer::new();
    signal.signal(opened.va(), value + 1).unwrap();
    queues[1].1.submit(&signal).unwrap();
    fence.wait(value + 1, Some(NEVER)).unwrap();
}

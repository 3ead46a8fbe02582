//! Linked physical adapters: several engines, each with the same nodes (TDR-05 to TDR-10, MCDM-19 to MCDM-21).

use std::fs;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

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
use campanile_protocol::control::message::CREATE_CONTEXT;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_HUNG;
use serde_json::Value;
use serde_json::json;

use crate::native_fences::process;
use crate::native_fences::refused;
use crate::operator::Operated;
use crate::raw::RawGuest;
use crate::support::Daemon;
use crate::support::Ends;
use crate::support::NEVER;
use crate::support::until;
use crate::tdr_resilience::Load;
use crate::tdr_support::ENDLESS;
use crate::tdr_support::hang_on;

const NODES: [Node; 2] = [Node::Compute, Node::Copy];

/// A kernel that counts in every word of a page.
const COUNT: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        data[id.x] = data[id.x] + 1u;
    }";

/// A user-mode queue on one engine.
fn queue_on(device: &Device, node: Node, engine: u32) -> (Context, UserQueue) {
    let context = device.create_context_on(node, engine).unwrap();
    assert_eq!((context.node(), context.engine()), (node, engine));
    let queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    (context, queue)
}

/// One run of a kernel over a page.
fn count(kernel: &Kernel, data: &Buffer) -> CommandBuffer {
    let mut commands = CommandBuffer::new();
    commands.dispatch(kernel, [16, 1, 1], &[data.binding(0)], &[]).unwrap();
    commands
}

fn run(queue: &mut UserQueue, commands: &CommandBuffer) {
    queue.submit(commands).unwrap().wait(Some(NEVER)).unwrap();
}

fn words(buffer: &Buffer) -> Vec<u32> {
    let mut bytes = [0; 4096];
    buffer.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The engines of the first vGPU, as the operator sees them.
fn engines(operated: &Operated) -> Vec<Value> {
    operated.ask(&["status"])["vgpus"][0]["session"]["engines"].as_array().unwrap().clone()
}

fn pids(operated: &Operated) -> Vec<Option<u64>> {
    engines(operated).iter().map(|engine| engine["pid"].as_u64()).collect()
}

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
    let point = queue.submit(&commands).unwrap();
    assert!(
        matches!(point.wait(Some(NEVER)), Err(DriverError::DeviceLost(_))),
        "a buffer that names it faults"
    );
    assert!(words(&data).iter().all(|word| *word == 1));
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

#[test]
fn tdr_03_tdr_08_a_hang_of_one_engine_is_none_of_the_other() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().to_str().unwrap();
    let operated = Operated::with(1, &["--engines", "2", "--tdr-timeout", "300", "--state-dir", folder]);
    let vm = operated.daemon.vm(0);
    let ends = AtomicBool::new(false);
    let (compute, copy) = (Load::new(), Load::new());
    thread::scope(|scope| {
        let _ends = Ends(&ends);
        scope.spawn(|| compute.run(&vm, Node::Compute, &ends));
        scope.spawn(|| copy.run(&vm, Node::Copy, &ends));
        compute.goes_on();
        copy.goes_on();
        // It is on both engines, and works on the second again after that was reset.
        let bystander = process(&vm);
        let kernel = bystander.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
        let data = bystander.create_buffer(4096).unwrap();
        let mut queues = [0, 1].map(|engine| queue_on(&bystander, Node::Compute, engine));
        queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
        let before = pids(&operated);
        let loss = hang_on(&process(&vm), 1, || {
            compute.goes_on();
            copy.goes_on();
        });
        assert_eq!((loss.status, loss.is_collateral), (DEVICE_HUNG, false));
        compute.goes_on();
        copy.goes_on();
        queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
        assert!(words(&data).iter().all(|word| *word == 4));
        let after = pids(&operated);
        assert_eq!((after[0], after[1]), (before[0], before[1]), "engine 0 goes on");
        assert_ne!(after[2], before[2], "compute@1 is another process");
        let path = state.path().join("reports").join(format!("{:012}.json", loss.report));
        until("the report", || path.exists());
        let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(
            (&report["node_ordinal"], &report["engine_ordinal"]),
            (&0.into(), &1.into()),
            "{report:#}"
        );
    });
    let counters = operated.ask(&["metrics"])["vgpus"][0]["counters"].clone();
    assert_eq!(
        (&counters["adapters_reset"], &counters["engines_reset"]),
        (&0.into(), &1.into()),
        "{counters}"
    );
}

#[test]
fn mcdm_19_mcdm_20_mcdm_21_saturating_engine_a_does_not_delay_engine_b() {
    // No turn ends, and nobody hangs: what waits for the engine that is held would wait for ever.
    let daemon = Daemon::with(&["--engines", "2", "--tdr-level", "0"]);
    let vm = daemon.vm(0);
    for (held, free) in [(0, 1), (1, 0)] {
        let (holder, other) = (process(&vm), process(&vm));
        let endless = holder.create_kernel(&KernelSource::wgsl(ENDLESS)).unwrap();
        let word = holder.create_buffer(4096).unwrap();
        let (_context, mut holding) = queue_on(&holder, Node::Compute, held);
        let mut free_queues = Vec::new();
        // Its own process, and one with another address space (MCDM-20).
        for device in [&holder, &other] {
            let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
            let data = device.create_buffer(4096).unwrap();
            free_queues.push((kernel, data, queue_on(device, Node::Compute, free)));
        }
        let mut commands = CommandBuffer::new();
        commands.dispatch(&endless, [1, 1, 1], &[word.binding(0)], &[]).unwrap();
        let point = holding.submit(&commands).unwrap();
        let counted = || word.memory().word(0).unwrap().load(Ordering::Relaxed);
        until("the kernel without end", || counted() & 0xffff_ffff != 0);
        for round in 1..=20 {
            for (kernel, data, (_, queue)) in &mut free_queues {
                run(queue, &count(kernel, data));
                assert!(words(data).iter().all(|word| *word == round));
            }
        }
        assert!(!point.is_reached(), "engine {held} was held all the time");
        word.write(4, &7u32.to_le_bytes()).unwrap();
        point.wait(Some(NEVER)).unwrap();
    }
}

#[test]
fn tdr_29_the_operator_resets_one_engine_of_one_physical_adapter() {
    let operated = Operated::with(1, &["--engines", "2"]);
    let (_vm, device) = operated.daemon.device();
    let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    let mut queues = [0, 1].map(|engine| queue_on(&device, Node::Compute, engine));
    queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
    let before = pids(&operated);
    let reset = operated.ask(&["reset", "--vgpu", "v0", "--node", "compute@1"]);
    assert_eq!(reset["engines_reset"], json!(["compute@1"]));
    queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
    let after = pids(&operated);
    assert_eq!(after[0], before[0]);
    assert_ne!(after[2], before[2]);
    let all = operated.ask(&["reset", "--vgpu", "v0"]);
    assert_eq!(all["engines_reset"], json!(["compute", "compute@1"]));
    queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
    assert!(words(&data).iter().all(|word| *word == 6));
    assert!(
        operated
            .refusal(&["reset", "--vgpu", "v0", "--node", "copy@2"])
            .contains("there is no engine copy@2")
    );
    assert!(operated.refusal(&["reset", "--vgpu", "v0", "--node", "copy@4"]).contains("is no engine"));
    let text = String::from_utf8(operated.run(&["status"]).stdout).unwrap();
    assert!(text.contains("compute@1"), "{text}");
}

#[test]
fn ums_123_ums_124_in_d3_no_engine_runs_and_all_come_back() {
    let operated = Operated::with(1, &["--engines", "2"]);
    let (_vm, device) = operated.daemon.device();
    let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    let mut queues = [0, 1].map(|engine| queue_on(&device, Node::Compute, engine));
    for round in 1..=3 {
        queues.iter_mut().for_each(|(_, queue)| run(queue, &count(&kernel, &data)));
        assert!(words(&data).iter().all(|word| *word == 2 * round));
        operated.ask(&["power", "--vgpu", "v0", "d3"]);
        assert_eq!(pids(&operated), [None; 4]);
    }
}

#[test]
fn more_engines_than_can_be_linked_are_refused_at_start() {
    for wrong in ["0", "5", "256"] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("v.sock");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(["serve", "--vram", "64M", "--engines", wrong, "--socket"]).arg(&socket);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{wrong} engines");
    }
}

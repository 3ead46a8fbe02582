//! Dispatches that are submitted together: in order, called off, and put aside.

use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::kernel::program::BindingPoint;
use campanile_host_gpu::node::buffer::Node;
use campanile_host_gpu::node::buffer::Step;
use campanile_host_gpu::node::chain::Room;
use campanile_host_gpu::node::packet::Packet;
use campanile_host_gpu::node::packet::decode;
use campanile_host_gpu::vulkan::chain::Link;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::gates::CHAIN;
use campanile_host_gpu::vulkan::import::Import;
use campanile_host_gpu::vulkan::options::Executor;
use campanile_host_gpu::vulkan::options::Options;
use campanile_host_gpu::vulkan::pipeline::Pipeline;
use campanile_host_gpu::vulkan::request::Bound;
use campanile_host_gpu::vulkan::request::DispatchError;
use campanile_host_gpu::vulkan::request::IN_FLIGHT;
use campanile_protocol::packet;
use campanile_protocol::packet::PacketHeader;
use zerocopy::IntoBytes;

use crate::bench::bind;
use crate::bench::memory;
use crate::bench::pipeline;
use crate::bench::set_word;
use crate::bench::with_driver;
use crate::bench::with_each_executor;
use crate::bench::with_gpu_executor;
use crate::bench::word;
use crate::scene::Scene;
use crate::scene::dispatch;
use crate::scene::dispatch_base;

/// Cell 0 becomes what depends on all that ran before; the grid and a constant are in it.
const ORDER: &str = "
var<immediate> more: u32;
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(1) fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if group.y == 0u { cells[0] = cells[0] * 31u + more + groups.y * 7u; }
}";

/// The same with buffers of two sets.
const TWO_SETS: &str = "
@group(0) @binding(3) var<storage, read_write> cells: array<u32>;
@group(1) @binding(0) var<uniform> more: vec4<u32>;
@compute @workgroup_size(1) fn main() { cells[0] = cells[0] * 31u + more.y; }";

/// Adds one to cell 0, after as many turns as cell 1 says.
const TURNS: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(1) fn main() {
    var x = cells[0];
    for (var i = 0u; i < cells[1]; i++) { x = x * 1664525u + 1013904223u; }
    cells[2] = x;
    cells[0] += 1u;
}";

/// Dispatches of one group of a kernel over the first 16 bytes of `import`.
fn links<'a>(kernel: &'a Pipeline, import: &'a Import, count: usize) -> Vec<Link<'a>> {
    let link = |_| Link {
        pipeline: kernel,
        bounds: vec![bind(0, import, 0, 16)],
        constants: &[],
        origin: [0; 3],
        grid: [1; 3],
    };
    (0..count).map(link).collect()
}

#[test]
fn each_dispatch_of_a_chain_sees_what_those_before_it_wrote() {
    with_each_executor(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        set_word(&seen, 0x100 / 4 + 1, 17);
        let (order, sets) = (pipeline(&driver, ORDER), pipeline(&driver, TWO_SETS));
        let constants: Vec<[u8; 4]> = (0..u32::MAX).map(u32::to_ne_bytes).take(CHAIN).collect();
        for round in 1..=3 {
            let mut chain = Vec::new();
            let mut expected = word(&seen, 0);
            for (index, constants) in (0_u32..).zip(&constants) {
                if index % 3 == round % 3 {
                    let binding = BindingPoint { set: 1, binding: 0, element: 0 };
                    let uniform = Bound { binding, ..bind(0, &import, 0x100, 16) };
                    let bounds = vec![bind(3, &import, 0, 4), uniform];
                    chain.push(Link {
                        pipeline: &sets,
                        bounds,
                        constants: &[],
                        origin: [0; 3],
                        grid: [1; 3],
                    });
                    expected = expected.wrapping_mul(31) + 17;
                } else {
                    // The grid is told to each by itself.
                    let bounds = vec![bind(0, &import, 0, 4)];
                    let height = 1 + index % 3;
                    chain.push(Link {
                        pipeline: &order,
                        bounds,
                        constants,
                        origin: [0; 3],
                        grid: [1, height, 1],
                    });
                    expected = expected.wrapping_mul(31).wrapping_add(index + height * 7);
                }
            }
            let ticket = driver.dispatch_chain(&chain).unwrap();
            driver.wait(ticket).unwrap();
            assert_eq!(driver.begun(&ticket, CHAIN).unwrap(), CHAIN);
            assert_eq!(word(&seen, 0), expected, "round {round}");
        }
    });
}

/// Adds one to the cell of its number, and to that 8 behind it where the kernel is told of so many groups.
const NUMBERS: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(1) fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    cells[group.x] += 1u;
    cells[8u + groups.x] += 1u;
}";

#[test]
fn groups_are_numbered_from_the_base_of_their_dispatch() {
    with_each_executor(|driver: Driver| {
        let scene = Scene::new();
        let mut node = scene.node(driver, &[NUMBERS], SLICE);
        let mut packets = dispatch_base(1, [5, 0, 0], [1; 3], 0, 64);
        packets.extend(dispatch_base(1, [3, 0, 0], [1; 3], 0, 64));
        // Alone at first, then in a chain.
        for times in 1..=3 {
            let mut buffer = scene.buffer(&packets);
            assert_eq!(scene.run(&mut buffer, &mut node, &mut || false), Step::Done);
            let cells: Vec<u32> = (0..10).map(|at| word(&scene.memory, at)).collect();
            assert_eq!(cells, [0, 0, 0, times, 0, times, 0, 0, 0, 2 * times]);
        }
        assert!(limit(&node) > 0);
        // Beyond what the device counts to.
        let mut beyond = scene.buffer(&dispatch_base(1, [u32::MAX, 0, 0], [1; 3], 0, 64));
        assert!(matches!(scene.run(&mut beyond, &mut node, &mut || false), Step::Fault(..)));
    });
}

#[test]
fn what_is_called_off_of_a_chain_never_runs_and_the_next_chain_runs_whole() {
    with_driver(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, TURNS);
        // Tens of milliseconds each.
        set_word(&seen, 1, 20_000_000);
        let ticket = driver.dispatch_chain(&links(&kernel, &import, CHAIN)).unwrap();
        let since = Instant::now();
        while driver.begun(&ticket, CHAIN).unwrap() == 0 {
            assert!(since.elapsed() < Duration::from_secs(60), "it never begins");
            thread::yield_now();
        }
        driver.call_off(&ticket);
        driver.wait(ticket).unwrap();
        let begun = driver.begun(&ticket, CHAIN).unwrap();
        assert!((1..CHAIN).contains(&begun), "{begun}");
        assert_eq!(word(&seen, 0) as usize, begun);
        set_word(&seen, 1, 1);
        let ticket = driver.dispatch_chain(&links(&kernel, &import, 5)).unwrap();
        driver.wait(ticket).unwrap();
        assert_eq!(word(&seen, 0) as usize, begun + 5);
    });
}

#[test]
fn chains_that_are_too_long_or_empty_or_wrong_are_refused_whole() {
    with_each_executor(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, TURNS);
        for count in [0, CHAIN + 1] {
            let refused = driver.dispatch_chain(&links(&kernel, &import, count)).unwrap_err();
            assert!(
                matches!(refused, DispatchError::Batch { given, most: CHAIN } if given == count),
                "{refused}"
            );
        }
        let mut wrong = links(&kernel, &import, 3);
        wrong[1].bounds = vec![bind(0, &import, 0, 0x2000)];
        assert!(matches!(driver.dispatch_chain(&wrong), Err(DispatchError::Outside { .. })));
        wrong[1].bounds.clear();
        assert!(matches!(driver.dispatch_chain(&wrong), Err(DispatchError::Missing { .. })));
        wrong[1].constants = &[1, 2, 3, 4];
        assert!(matches!(driver.dispatch_chain(&wrong), Err(DispatchError::Constants { .. })));
        wrong[1].grid = [u32::MAX; 3];
        assert!(matches!(driver.dispatch_chain(&wrong), Err(DispatchError::TooManyGroups { .. })));
        let ticket = driver.dispatch_chain(&links(&kernel, &import, 1)).unwrap();
        driver.wait(ticket).unwrap();
        assert_eq!(word(&seen, 0), 1, "nothing else ran");
    });
}

/// Dispatches of kernel 1, with a barrier behind every other one.
fn packets(count: usize) -> Vec<u8> {
    let mut packets = Vec::new();
    for index in 0..count {
        packets.extend(dispatch(1, [1; 3], 0, 16));
        if index % 2 == 0 {
            packets.extend(PacketHeader { opcode: packet::BARRIER, flags: 0, size: 8 }.as_bytes());
        }
    }
    packets
}

/// So long that the kernel, with few turns, is brief whatever else the machine does, and chains grow.
const SLICE: Duration = Duration::from_millis(400);

fn limit(node: &Node) -> usize {
    let Node::Compute(compute) = node else { unreachable!("a compute node") };
    compute.chain_room().dispatches
}

/// Whether a dispatch of kernel 1 may be part of a chain that has so much room, of which it takes its part.
fn fits(scene: &Scene, node: &Node, room: &mut Room) -> bool {
    let Node::Compute(compute) = node else { unreachable!("a compute node") };
    let packet = dispatch(1, [1; 3], 0, 16);
    let Ok((Packet::Dispatch(launch), _)) = decode(&packet) else { unreachable!("a dispatch") };
    compute.fits(scene.root(), &launch, room)
}

/// A node that knows that kernel 1 is brief.
fn warm(scene: &Scene, driver: Driver) -> Node {
    let mut node = scene.node(driver, &[TURNS], SLICE);
    let mut first = scene.buffer(&dispatch(1, [1; 3], 0x1000, 16));
    assert_eq!(scene.run(&mut first, &mut node, &mut || false), Step::Done);
    node
}

#[test]
fn brief_dispatches_run_together_and_pre_40_each_once_wherever_they_are_put_aside() {
    with_each_executor(|driver: Driver| {
        let scene = Scene::new();
        let options = Options { executor: Some(driver.executor()), ..Options::default() };
        let another = Driver::open(&options).expect("a second driver");
        let mut nodes = [warm(&scene, driver), warm(&scene, another)];
        let first = limit(&nodes[0]);
        let mut whole = scene.buffer(&packets(40));
        assert_eq!(scene.run(&mut whole, &mut nodes[0], &mut || false), Step::Done);
        assert_eq!(word(&scene.memory, 0), 40);
        assert!(limit(&nodes[0]) > first, "chains ran, and were short");
        let mut buffer = scene.buffer(&packets(40));
        let mut runs = 1;
        while scene.run(&mut buffer, &mut nodes[runs % 2], &mut || true) == Step::Paused {
            let saved = buffer.save();
            assert_eq!((saved.done_in_packet, saved.at > 0), (0, true));
            buffer = scene.buffer(&packets(40)).restore(saved).unwrap();
            runs += 1;
        }
        assert_eq!(word(&scene.memory, 0), 80);
    });
}

#[test]
fn pre_16_pre_25_the_dispatch_that_runs_finishes_and_what_is_behind_it_in_its_chain_does_not_start() {
    with_driver(|driver: Driver| {
        let scene = Scene::new();
        let mut node = warm(&scene, driver);
        // Tens of milliseconds each.
        set_word(&scene.memory, 1, 20_000_000);
        let count = limit(&node);
        let packets = packets(count);
        let mut buffer = scene.buffer(&packets);
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || true), Step::Paused);
        let saved = buffer.save();
        assert!((saved.at as usize) < packets.len(), "{} of {} bytes", saved.at, packets.len());
        let ran = word(&scene.memory, 0);
        assert!(ran > 0);
        // It goes on here too.
        set_word(&scene.memory, 1, 1);
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || false), Step::Done);
        assert_eq!(word(&scene.memory, 0) as usize, count);
    });
}

#[test]
fn a_kernel_that_becomes_dear_in_a_chain_is_brief_no_more() {
    with_each_executor(|driver: Driver| {
        let scene = Scene::new();
        let mut node = scene.node(driver, &[TURNS], Duration::from_millis(100));
        let is_brief = |node: &Node| fits(&scene, node, &mut Room { dispatches: 1, time: None });
        assert!(!is_brief(&node), "it never ran");
        let mut ran = 0;
        // On a busy machine it may take long at first.
        while !is_brief(&node) && ran < 100 {
            let mut first = scene.buffer(&dispatch(1, [1; 3], 0, 16));
            assert_eq!(scene.run(&mut first, &mut node, &mut || false), Step::Done);
            ran += 1;
        }
        set_word(&scene.memory, 1, 50_000_000);
        let mut dear = scene.buffer(&packets(4));
        assert_eq!(scene.run(&mut dear, &mut node, &mut || false), Step::Done);
        assert_eq!(word(&scene.memory, 0), ran + 4);
        assert!(!is_brief(&node));
    });
}

#[test]
fn a_packet_that_is_wrong_faults_behind_those_of_its_chain_that_are_right() {
    with_each_executor(|driver: Driver| {
        let scene = Scene::new();
        let mut node = warm(&scene, driver);
        let mut wrong = packets(3);
        // Of a kernel that is not there.
        wrong.extend(dispatch(9, [1; 3], 0, 16));
        wrong.extend(packets(1));
        let mut buffer = scene.buffer(&wrong);
        let step = scene.run(&mut buffer, &mut node, &mut || false);
        assert!(matches!(step, Step::Fault(..)), "{step:?}");
        assert_eq!(word(&scene.memory, 0), 3);
    });
}

#[test]
fn a_chain_on_a_gpu_cannot_be_called_off_and_says_how_far_it_is_and_how_long_each_of_it_took() {
    with_gpu_executor(|mut driver: Driver| {
        let (import, seen) = memory(&driver, 0x1000);
        let kernel = pipeline(&driver, TURNS);
        assert!(driver.can_chain() && !driver.can_call_off());
        // Milliseconds each.
        set_word(&seen, 1, 2_000_000);
        let begun = Instant::now();
        let ticket = driver.dispatch_chain(&links(&kernel, &import, CHAIN)).unwrap();
        driver.call_off(&ticket);
        let mut last = 0;
        while !driver.is_done(&ticket).unwrap() {
            let now = driver.begun(&ticket, CHAIN).unwrap();
            assert!((last..=CHAIN).contains(&now), "{now} after {last}");
            last = now;
            thread::yield_now();
        }
        let elapsed = begun.elapsed();
        driver.wait(ticket).unwrap();
        assert_eq!(driver.begun(&ticket, CHAIN).unwrap(), CHAIN);
        assert_eq!(word(&seen, 0) as usize, CHAIN, "all ran");
        let took = driver.ended(&ticket, CHAIN).unwrap().unwrap();
        assert_eq!(took.len(), CHAIN);
        assert!(took.iter().all(|took| !took.is_zero()), "{took:?}");
        assert!(took.iter().sum::<Duration>() <= elapsed, "{took:?} in {elapsed:?}");
        // Those after it in its slot and the other one have nothing of it.
        for _ in 0..IN_FLIGHT {
            let ticket = driver.dispatch_chain(&links(&kernel, &import, 1)).unwrap();
            driver.wait(ticket).unwrap();
            assert_eq!(driver.ended(&ticket, CHAIN).unwrap().map(|took| took.len()), Some(1));
        }
    });
}

#[test]
fn pre_05_chains_on_a_gpu_have_room_for_what_takes_half_a_slice_and_on_a_cpu_driver_for_any() {
    with_each_executor(|driver: Driver| {
        let (scene, executor) = (Scene::new(), driver.executor());
        let node = warm(&scene, driver);
        let Node::Compute(compute) = &node else { unreachable!("a compute node") };
        // It ran once, and no clock has measured it: it may take an eighth.
        let mut room = Room { dispatches: 100, ..compute.chain_room() };
        let fitting = (0..200).take_while(|_| fits(&scene, &node, &mut room)).count();
        assert_eq!(fitting, if executor == Executor::Gpu { 4 } else { 100 });
    });
}

#[test]
fn pre_16_on_a_gpu_what_was_submitted_runs_and_nothing_behind_it_starts() {
    with_gpu_executor(|driver: Driver| {
        let scene = Scene::new();
        let mut node = warm(&scene, driver);
        let (all, one) = (packets(60), dispatch(1, [1; 3], 0, 16).len());
        let mut buffer = scene.buffer(&all);
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || true), Step::Paused);
        let saved = buffer.save();
        let ran = word(&scene.memory, 0) as usize;
        assert!((1..60).contains(&ran), "{ran} ran");
        let at = saved.at as usize;
        let barriers = ran.div_ceil(2).min((at - ran * one) / 8);
        assert_eq!(at, ran * one + barriers * 8, "{ran} are done, no more and no less");
        assert_eq!(scene.run(&mut buffer, &mut node, &mut || false), Step::Done);
        assert_eq!(word(&scene.memory, 0), 60);
    });
}

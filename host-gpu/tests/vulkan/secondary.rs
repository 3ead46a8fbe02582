//! When a kernel is compiled for the second instance of a CPU device, too.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use campanile_host_gpu::kernel::name::KernelName;
use campanile_host_gpu::kernel::sanitizer::sanitize;
use campanile_host_gpu::kernel::source::Source;
use campanile_host_gpu::node::buffer::Node;
use campanile_host_gpu::node::buffer::Step;
use campanile_host_gpu::node::candidate::Candidate;
use campanile_host_gpu::node::candidate::Request;
use campanile_host_gpu::node::compute::ComputeNode;
use campanile_host_gpu::node::device_instance::Compiled;
use campanile_host_gpu::node::device_instance::DeviceInstance;
use campanile_host_gpu::vulkan::pipeline::Compiler;

use crate::bench::with_driver;
use crate::scene::Scene;
use crate::scene::dispatch;

/// Long enough to be measured, in slices as short as these are.
const TURNS: &str = "
@group(0) @binding(0) var<storage, read_write> cells: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var x = id.x;
    for (var i = 0u; i < 20000u; i++) { x = x * 1664525u + 1013904223u; }
    cells[id.x % 1024u] = x;
}";
const SLICE: Duration = Duration::from_micros(200);
/// Many slices.
const GROUPS: u32 = 100;

/// Adds kernel `handle` of the scene's address space, whose compilation is said to have taken `price`.
fn add(node: &mut ComputeNode, compiler: &Compiler, scene: &Scene, handle: u64, price: Duration) {
    let program = sanitize(&Source::wgsl(TURNS)).expect("a kernel");
    let pipeline = compiler.pipeline(&program).expect("a pipeline");
    let candidate = Some(Candidate::new(program, price));
    let name = KernelName { root: scene.root(), handle };
    node.add_kernel(name, Compiled { serial: 10 + handle, pipeline, candidate });
}

/// Runs a dispatch of a kernel to its end.
fn run(scene: &Scene, node: &mut Node, handle: u64, groups: u32) {
    let mut buffer = scene.buffer(&dispatch(handle, [groups, 1, 1], 0, 4096));
    assert_eq!(scene.run(&mut buffer, node, &mut || false), Step::Done);
}

/// Names and serials of what was asked for since this was last called.
fn asked(requests: &mpsc::Receiver<Request>) -> Vec<(u64, u64)> {
    requests.try_iter().map(|request| (request.name.handle, request.serial)).collect()
}

#[test]
fn a_kernel_is_compiled_for_the_second_instance_once_its_slices_have_earned_it() {
    with_driver(|driver| {
        let scene = Scene::new();
        let (compiler, secondary) = (driver.compiler(), driver.secondary().expect("a second device"));
        let mut node = ComputeNode::new(
            [driver, secondary].map(DeviceInstance::new).into(),
            Arc::clone(&scene.shared),
            SLICE,
        );
        let (sender, requests) = mpsc::sync_channel(1);
        node.ask_second_compiler(sender);
        for handle in [1, 3, 4] {
            add(&mut node, &compiler, &scene, handle, Duration::ZERO);
        }
        add(&mut node, &compiler, &scene, 2, Duration::MAX);
        let mut node = Node::Compute(Box::new(node));
        for handle in [1, 2, 3, 4] {
            run(&scene, &mut node, handle, 1);
        }
        assert_eq!(asked(&requests), [], "what runs whole has one queue to run on");
        run(&scene, &mut node, 2, GROUPS);
        assert_eq!(asked(&requests), [], "its compilation took longer than it has run");
        run(&scene, &mut node, 1, GROUPS);
        run(&scene, &mut node, 1, GROUPS);
        assert_eq!(asked(&requests), [(1, 11)], "once");
        run(&scene, &mut node, 3, GROUPS);
        run(&scene, &mut node, 4, GROUPS);
        assert_eq!(asked(&requests), [(3, 13)], "no more may wait");
        run(&scene, &mut node, 4, GROUPS);
        assert_eq!(asked(&requests), [(4, 14)], "with a later slice");
    });
}

#[test]
fn a_node_without_a_second_instance_keeps_no_program_for_one() {
    with_driver(|driver| {
        let scene = Scene::new();
        let compiler = driver.compiler();
        let mut node = ComputeNode::new(vec![DeviceInstance::new(driver)], Arc::clone(&scene.shared), SLICE);
        add(&mut node, &compiler, &scene, 1, Duration::ZERO);
        assert!(!format!("{node:?}").contains("Candidate"));
        let mut node = Node::Compute(Box::new(node));
        run(&scene, &mut node, 1, GROUPS);
    });
}

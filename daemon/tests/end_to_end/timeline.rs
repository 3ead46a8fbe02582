//! Who had an engine, and when, as the engine says: urgent work cuts into what runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_daemon::cli::gantt::Timeline;
use campanile_daemon::vgpu::control::history::BandName;
use campanile_daemon::vgpu::control::history::ContextHistory;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::Properties;
use campanile_guest_driver::transport::loopback::options::VmOptions;
use campanile_guest_driver::transport::loopback::vm::LoopbackVm;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::handshake::power;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use tempfile::TempDir;

use crate::operator::Operated;
use crate::processes::EngineView;
use crate::support::NEVER;
use crate::support::until;

/// Each group takes about 0.5 ms of a CPU, and counts itself.
const SLOW: &str = "
    var<immediate> turns: u32;
    @group(0) @binding(0) var<storage, read_write> count: atomic<u32>;
    @compute @workgroup_size(1) fn main(@builtin(workgroup_id) group: vec3<u32>) {
        var x = group.x;
        for (var i = 0u; i < turns; i++) { x = (x * 1664525u + 1013904223u) ^ (x >> 7u); }
        // Never so; the loop must not be dropped.
        if x == 0xffffffffu && turns == 0u { atomicAdd(&count, x); }
        atomicAdd(&count, 1u);
    }";
const TURNS: [u8; 4] = 130_000_u32.to_le_bytes();
const GROUPS: u32 = 3000;
/// The longest quantum and grace period that can be asked for: none is over before urgent work has come.
const LONGEST: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;

/// vGPUs of these names, whose guests may be urgent.
fn start(names: &[&str], arguments: &[&str]) -> (Operated, Vec<Arc<LoopbackVm>>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let socket = |name: &str| folder.path().join(name);
    let specs = names
        .iter()
        .map(|name| format!("--vgpu=name={name},socket={},vram=64M,bands=realtime", socket(name).display()));
    let specs: Vec<String> = specs.collect();
    let all: Vec<&str> = specs.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
    let operated = Operated::with(0, &all);
    let connect = |name: &&str| {
        let mut vm = None;
        until("the vGPU's socket", || {
            vm = LoopbackVm::connect(socket(name), &VmOptions::default()).ok();
            vm.is_some()
        });
        vm.unwrap()
    };
    let vms = names.iter().map(connect).collect();
    (operated, vms, folder)
}

fn context(device: &Device, band: Band) -> Context {
    let context = device.create_context(Node::Compute).unwrap();
    let patient =
        Properties { band, quantum: Some(LONGEST), grace_same: Some(LONGEST), ..Properties::default() };
    context.set_scheduling(&patient).unwrap();
    context
}

fn count(buffer: &Buffer) -> u32 {
    buffer.memory().word32(0).unwrap().load(Ordering::Acquire)
}

fn contexts(operated: &Operated, file: &str) -> (Vec<ContextHistory>, String) {
    let answer = operated.ask(&["timeline", "--vgpu", "u", "--svg", file]);
    let timeline: Timeline = serde_json::from_value(answer).unwrap();
    let [vgpu] = &timeline.vgpus[..] else { panic!("{timeline:?}") };
    assert_eq!((vgpu.name.as_str(), &vgpu.error), ("u", &None));
    let engine = vgpu.engines.iter().find(|engine| engine.node == "compute").unwrap();
    (engine.contexts.clone(), std::fs::read_to_string(file).unwrap())
}

/// Every tag is closed in turn, every attribute quoted, nothing stands open. Not all of XML: what pictures use.
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some(begin) = rest.find('<') {
        let text = &rest[..begin];
        assert!(!text.contains('>'), "{text:?}");
        for reference in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|name| reference.starts_with(name)), "{text}");
        }
        let end = begin + rest[begin..].find('>').unwrap();
        let tag = &rest[begin + 1..end];
        assert!(tag.matches('"').count().is_multiple_of(2) && !tag.contains(['<', '&']), "{tag}");
        let name = |tag: &str| tag.split_whitespace().next().unwrap().to_owned();
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed.to_owned())),
            None if tag.ends_with('/') => {}
            None => open.push(name(tag)),
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
}

#[test]
fn ums_98_a_notified_ring_of_a_realtime_context_switches_at_once_and_the_timeline_shows_it() {
    // An engine that went to sleep would have all doorbells say RETRY, also that of the urgent queue.
    let (operated, vms, folder) = start(&["u"], &["--spin", "600000000"]);
    let device = Device::open(vms[0].open("test").unwrap()).unwrap();
    let kernel = device.create_kernel(&KernelSource::wgsl(SLOW)).unwrap();
    let contexts_of = [Band::Normal, Band::Normal, Band::Realtime(3)].map(|band| context(&device, band));
    let counts = [0; 3].map(|_: i32| device.create_buffer(4096).unwrap());
    let [long, other, urgent] = [0, 1, 2].map(|index: usize| {
        let (mut commands, groups) = (CommandBuffer::new(), if index == 0 { GROUPS } else { 1 });
        let bindings = [counts[index].binding_range(0, 0, 4).unwrap()];
        commands.dispatch(&kernel, [groups, 1, 1], &bindings, &TURNS).unwrap();
        commands
    });
    // Nobody polls for the urgent queue: that it was rung is said in a message.
    let queue = |index: usize| -> UserQueue {
        let options = QueueOptions { notify: index == 2, ..QueueOptions::default() };
        contexts_of[index].create_user_queue(&options).unwrap()
    };
    let mut queues = [0, 1, 2].map(queue);
    // Begun and connected, so that nothing below waits for that.
    for (queue, commands) in queues.iter_mut().zip([&other, &other, &urgent]) {
        queue.submit(commands).unwrap().wait(Some(NEVER)).unwrap();
    }
    assert_eq!(queues[2].status(), Some(DoorbellStatus::ConnectedNotify));
    let mut came_first = 0;
    for _ in 0..ROUNDS {
        counts.iter().for_each(|buffer| buffer.write(0, &[0; 4]).unwrap());
        let long_done = queues[0].submit(&long).unwrap();
        until("the long dispatch", || count(&counts[0]) > 0);
        let other_done = queues[1].submit(&other).unwrap();
        queues[2].submit(&urgent).unwrap().wait(Some(NEVER)).unwrap();
        // The other one rang first, and waits for the end of a quantum.
        came_first += usize::from(count(&counts[1]) == 0 && count(&counts[0]) < GROUPS);
        other_done.wait(Some(NEVER)).unwrap();
        long_done.wait(Some(NEVER)).unwrap();
    }
    // Unless this test got no CPU for a quantum.
    assert!(came_first > 0, "urgent work waited for its turn in each of {ROUNDS} rounds");

    let file = folder.path().join("timeline.svg");
    let (contexts, svg) = contexts(&operated, file.to_str().unwrap());
    assert_eq!(contexts.len(), 3);
    let of_band = |band: BandName| {
        let its = move |context: &&ContextHistory| context.stretches.iter().all(|it| it.band == band);
        contexts.iter().filter(its)
    };
    let [urgent] = of_band(BandName::Realtime).collect::<Vec<_>>()[..] else { panic!("{contexts:?}") };
    let cut = |context: &ContextHistory| {
        let gaps = context.stretches.windows(2).filter(|pair| pair[0].preempted);
        let holds =
            |begin: u64, end: u64| urgent.stretches.iter().any(|it| begin <= it.begin_ns && it.end_ns <= end);
        gaps.filter(|pair| holds(pair[0].end_ns, pair[1].begin_ns)).count()
    };
    assert!(of_band(BandName::Normal).map(cut).sum::<usize>() >= came_first, "{contexts:?}");
    assert_well_formed(&svg);
    assert_eq!(svg.matches(r#"<g class="row">"#).count(), contexts.len(), "a row for each context");

    // A context that has ended keeps its stretches, without a name.
    drop(queues);
    drop(contexts_of);
    let mut text = String::new();
    until("contexts that ended", || {
        text = String::from_utf8(operated.run(&["timeline"]).stdout).unwrap();
        text.matches("ended, entry").count() == 3
    });
    assert!(text.contains("ENGINE TIME"), "{text}");
    assert!(operated.refusal(&["timeline", "--vgpu", "x"]).contains("there is no vGPU x"));
    let recent = operated.ask(&["timeline", "--last", "0"]);
    assert_eq!(recent["vgpus"][0]["engines"][0]["contexts"], serde_json::json!([]));
}

#[test]
fn pre_62_pre_63_realtime_work_is_seen_by_an_engine_that_waits_for_its_turn() {
    // NORMAL gets nothing while FOCUS has work, of whatever vGPU.
    let (operated, vms, _folder) = start(&["a", "b"], &["--normal-share", "0", "--spin", "600000000"]);
    let guest = |vgpu: usize, bands: &[Band], groups: u32| {
        let device = Device::open(vms[vgpu].open("test").unwrap()).unwrap();
        let kernel = device.create_kernel(&KernelSource::wgsl(SLOW)).unwrap();
        let counts = device.create_buffer(4096).unwrap();
        let mut commands = CommandBuffer::new();
        let bindings = [counts.binding_range(0, 0, 4).unwrap()];
        commands.dispatch(&kernel, [groups, 1, 1], &bindings, &TURNS).unwrap();
        let mut queue =
            |band: &Band| context(&device, *band).create_user_queue(&QueueOptions::default()).unwrap();
        let mut queues: Vec<UserQueue> = bands.iter().map(&mut queue).collect();
        for queue in &mut queues {
            queue.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
        }
        (device, kernel, counts, commands, queues)
    };
    let (_a, _kernel, count_of_a, long, mut focus) = guest(0, &[Band::Focus], GROUPS);
    let (_b, its_kernel, count_of_b, patient, mut queues) =
        guest(1, &[Band::Normal, Band::Realtime(0)], GROUPS);
    let mut short = CommandBuffer::new();
    short.dispatch(&its_kernel, [1; 3], &[count_of_b.binding_range(0, 0, 4).unwrap()], &TURNS).unwrap();
    let long_done = focus[0].submit(&long).unwrap();
    until("the long dispatch", || count(&count_of_a) > 0);
    // Its engine asks for the node, and waits.
    let patient_done = queues[0].submit(&patient).unwrap();
    let views = EngineView::all(&operated.daemon);
    for round in 0..5 {
        until("an engine that waits", || views.iter().any(|view| view.power() == power::NAPPING));
        // A wait that sleeps would wake it.
        queues[1].submit(&short).unwrap().spin().unwrap();
        assert!(count(&count_of_a) < GROUPS, "urgent work {round} came after all of the other's");
    }
    long_done.wait(Some(NEVER)).unwrap();
    patient_done.wait(Some(NEVER)).unwrap();
}

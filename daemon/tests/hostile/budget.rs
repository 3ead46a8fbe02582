//! Floods of every message that there is, against a daemon with a small budget: it does not grow, and all comes back.

use std::fs;
use std::path::Path;
use std::process::Command;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::away;
use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::memory;
use campanile_protocol::control::memory::List;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::DOORBELL_PRIVATE_BYTES;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::NATIVE_FENCE_DEFAULT;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::control::native_fence::OpenNativeFence;
use campanile_protocol::control::scheduling;
use campanile_protocol::control::scheduling::SetProcessClass;
use campanile_protocol::control::scheduling::SetSchedulingProperties;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use serde_json::Value;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::DATA_VA;
use crate::attacker::frame;
use crate::daemon::NEVER;
use crate::daemon::until;
use crate::packets::fill;
use crate::ring::PACKETS;
use crate::ring::Ring;
use crate::scene::Scene;

/// Bytes of the budget.
const BUDGET: u64 = 16 << 20;
/// What the daemon may grow besides: rings, allocator, what engines of its own say.
const SLACK: u64 = 24 << 20;
/// Where floods map.
const FLOOD_VA: u64 = 1 << 34;

/// Resident bytes of a process.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// How the budget of the first vGPU stands, as the operator sees it.
fn budget(control: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    let output = command.args(["ctl", "--json", "--control"]).arg(control).arg("status").output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let vgpus = answer.get("result").unwrap_or(&answer)["vgpus"].as_array().unwrap().clone();
    vgpus.iter().find(|vgpu| vgpu["name"] == "v0").unwrap()["budget"].clone()
}

/// Sends many messages as few commands, in slot 1; their answers overwrite each other.
fn pour(attacker: &Attacker, opcode: u32, count: u32, body: impl Fn(u32) -> Vec<u8>) {
    let mut frames = Vec::new();
    for index in 0..count {
        frames.extend(frame(opcode, 1, attacker.sequence(), &body(index)));
        if index + 1 == count || frames.len() + body(index).len() + size_of::<FrameHeader>() + 8 > 64 << 10 {
            attacker.context.submit(&frames, None).unwrap().wait(Some(NEVER)).unwrap();
            frames.clear();
        }
    }
}

/// What a process floods with.
struct Material {
    context: Handle,
    queue: Handle,
    user_queue: Handle,
    resource: u32,
    fence: NativeFenceOpened,
}

fn list<T: IntoBytes + zerocopy::Immutable>(argument: u32, entries: &[T]) -> Vec<u8> {
    let count = u32::try_from(entries.len()).unwrap();
    let mut bytes = [List { count, argument }.as_bytes(), entries.as_bytes()].concat();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn named(handle: Handle) -> Vec<u8> {
    Named { handle }.as_bytes().to_vec()
}

fn mapping(resource: u32, index: u64) -> MapMemory {
    MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va: FLOOD_VA + index * 4096, size: 4096 }
}

fn unmapping(index: u64) -> UnmapMemory {
    UnmapMemory { va: FLOOD_VA + index * 4096, size: 4096 }
}

type Body = Box<dyn Fn(u32) -> Vec<u8>>;

/// Every message that a process with a device can send: how often, and what. Those that end what others need come last.
fn floods(material: &Material) -> Vec<(u32, u32, Body)> {
    let &Material { context, queue, user_queue, resource, fence } = material;
    let always = |bytes: Vec<u8>| -> Body { Box::new(move |_| bytes.clone()) };
    let none = Handle::new(77, 77);
    let create_context = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
    let create_queue = CreateQueue { context, flags: 0, reserved: 0 };
    let doorbell = CreateDoorbell {
        queue: user_queue,
        ring_va: DATA_VA,
        control_va: DATA_VA,
        ring_resource: resource,
        control_resource: resource,
        ring_entries: 2,
        flags: 0,
        private_bytes: 0,
        reserved: 0,
        private_data: [0; DOORBELL_PRIVATE_BYTES],
    };
    let head = CreateKernel { language: LANGUAGE_WGSL, entry_bytes: 0, source_bytes: 8192, reserved: 0 };
    let kernel = [head.as_bytes(), &[b' '; 8192]].concat();
    let value = NativeFenceValue { fence: fence.fence, value: u64::MAX };
    let properties = SetSchedulingProperties {
        context,
        band: scheduling::BAND_NORMAL,
        realtime_level: 0,
        in_process_priority: 0,
        quantum: 1000,
        ..SetSchedulingProperties::read_from_bytes(&[0; size_of::<SetSchedulingProperties>()]).unwrap()
    };
    let class = SetProcessClass { class: scheduling::CLASS_NORMAL, reserved: 0 };
    let submit = Submit { queue, buffer_va: DATA_VA, length: 8, flags: 0 };
    let resources = vec![resource; 1000];
    let indices = |index: u32| (u64::from(index) * 64..u64::from(index) * 64 + 64).map(|at| (1 << 20) + at);
    vec![
        (message::CREATE_DEVICE, 20_000, always(vec![0; 24])),
        (message::QUERY_CAPS, 20_000, always(Vec::new())),
        (message::QUERY_PROFILE, 20_000, always(Vec::new())),
        (memory::QUERY_MEMORY, 2_000, always(Vec::new())),
        (memory::SET_PRIORITY, 2_000, always(list(memory::PRIORITY_LOW, &resources))),
        (memory::MAKE_RESIDENT, 4_000, always(list(0, &resources))),
        (memory::EVICT, 10_000, always(list(memory::EVICT_NOW, &resources))),
        (
            message::MAP_MEMORY,
            60_000,
            Box::new(move |index| mapping(resource, index.into()).as_bytes().to_vec()),
        ),
        (message::UNMAP_MEMORY, 60_000, Box::new(|index| unmapping(index.into()).as_bytes().to_vec())),
        (
            memory::MAP_LIST,
            1_000,
            Box::new(move |index| {
                list(0, &indices(index).map(|at| mapping(resource, at)).collect::<Vec<_>>())
            }),
        ),
        (
            memory::UNMAP_LIST,
            1_000,
            Box::new(move |index| list(0, &indices(index).map(unmapping).collect::<Vec<_>>())),
        ),
        (message::SUBMIT, 60_000, always(submit.as_bytes().to_vec())),
        (message::WAIT_FENCE, 20_000, always(WaitFence { queue, value: u64::MAX }.as_bytes().to_vec())),
        (message::CREATE_CONTEXT, 2_000, always(create_context.as_bytes().to_vec())),
        (message::CREATE_QUEUE, 20_000, always(create_queue.as_bytes().to_vec())),
        (message::CREATE_DOORBELL, 20_000, always(doorbell.as_bytes().to_vec())),
        (message::CONNECT_DOORBELL, 20_000, always(named(none))),
        (
            message::NOTIFY,
            20_000,
            always(Notify { queue: user_queue, flags: 0, reserved: 0 }.as_bytes().to_vec()),
        ),
        (message::CREATE_KERNEL, 5_000, always(kernel)),
        (message::DESTROY_KERNEL, 20_000, always(named(none))),
        (
            native_fence::CREATE_NATIVE_FENCE,
            20_000,
            Box::new(|index| {
                let va = (1 << 35) + u64::from(index) * 4096;
                let kind = NATIVE_FENCE_DEFAULT;
                CreateNativeFence { kind, reserved: 0, initial_value: 0, va }.as_bytes().to_vec()
            }),
        ),
        (
            native_fence::OPEN_NATIVE_FENCE,
            20_000,
            Box::new(move |index| {
                let va = (1 << 36) + u64::from(index) * 4096;
                OpenNativeFence { global: fence.global, va }.as_bytes().to_vec()
            }),
        ),
        (native_fence::WAIT_NATIVE_FENCE, 20_000, always(value.as_bytes().to_vec())),
        (native_fence::QUERY_NATIVE_FENCE, 20_000, always(named(fence.fence))),
        (native_fence::CLOSE_NATIVE_FENCE, 20_000, always(named(none))),
        (scheduling::SET_SCHEDULING_PROPERTIES, 20_000, always(properties.as_bytes().to_vec())),
        (scheduling::SET_PROCESS_CLASS, 20_000, always(class.as_bytes().to_vec())),
        (away::PARK_DEVICE, 20_000, always(Vec::new())),
        (message::SUSPEND_CONTEXT, 20_000, always(named(context))),
        (native_fence::SIGNAL_NATIVE_FENCE, 2_000, always(value.as_bytes().to_vec())),
        (message::DESTROY_DOORBELL, 20_000, always(named(none))),
        (message::DESTROY_QUEUE, 20_000, always(named(user_queue))),
        (message::DESTROY_CONTEXT, 20_000, always(named(none))),
        (message::RESUME_CONTEXT, 20_000, always(named(context))),
        (message::DESTROY_DEVICE, 1, always(Vec::new())),
    ]
}

/// Every code that the daemon knows, of a process with a device.
fn known_codes(attacker: &Attacker) -> Vec<u32> {
    let is_known = |opcode: &u32| {
        let status = attacker.status(*opcode, &[]);
        if *opcode == message::DESTROY_DEVICE {
            assert_eq!(attacker.open_device(&attacker.create_device()), Some(Status::Ok));
        }
        status != Status::UnknownMessage
    };
    (0..512).filter(is_known).collect()
}

#[test]
fn mcdm_06_every_message_in_a_flood_leaves_the_daemon_within_its_budget_and_others_at_work() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let mut scene =
        Scene::with(&["--tdr-debug", "3", "--vm-budget", "16M", "--control", control.to_str().unwrap()]);
    let before = budget(&control);
    assert_eq!(before["limit"]["bytes"], BUDGET);
    let attacker = scene.attacker();
    let codes = known_codes(&attacker);
    let (_blob, packets) = attacker.memory(DATA_VA, 64 << 10);
    packets.write(0, &fill(DATA_VA + 4096, 4096, 1)).unwrap();
    let blob = attacker.context.create_blob(BlobMemory::Vram, 4096).unwrap();
    let context = attacker.create_context();
    let queue = attacker.create_queue(context, 0).queue;
    let user_queue = attacker.create_queue(context, QUEUE_USER_MODE_SUBMISSION).queue;
    let create = CreateNativeFence { kind: NATIVE_FENCE_DEFAULT, reserved: 0, initial_value: 0, va: 1 << 33 };
    let (status, fence) = attacker.message(native_fence::CREATE_NATIVE_FENCE, create.as_bytes());
    assert_eq!(status, Status::Ok);
    let fence = NativeFenceOpened::read_from_bytes(&fence).unwrap();
    // Paging operations and buffers wait behind what a suspended context has.
    assert_eq!(attacker.named(message::SUSPEND_CONTEXT, context), Status::Ok);
    let submit = Submit { queue, buffer_va: DATA_VA, length: 8, flags: 0 };
    pour(&attacker, message::SUBMIT, 1, |_| submit.as_bytes().to_vec());
    let material = Material { context, queue, user_queue, resource: blob.resource_id(), fence };
    let floods = floods(&material);
    let mut listed: Vec<u32> = floods.iter().map(|(opcode, ..)| *opcode).collect();
    listed.sort_unstable();
    assert_eq!(listed, codes, "a message that is not listed here may be one more list without an end");
    let resident_before = resident(scene.daemon.pid());
    for (opcode, count, body) in &floods {
        pour(&attacker, *opcode, *count, body);
        scene.unharmed();
        let grown = resident(scene.daemon.pid()).saturating_sub(resident_before);
        assert!(grown < BUDGET + SLACK, "message {opcode}: the daemon has grown by {grown} bytes");
        let held = budget(&control)["held"]["bytes"].as_u64().unwrap();
        assert!(held <= BUDGET, "message {opcode}: {held} bytes are held");
    }
    assert!(budget(&control)["refused"].as_u64().unwrap() > 0);
    drop((attacker, blob, _blob, packets));
    until("all of it comes back", || budget(&control)["held"] == before["held"]);
    scene.unharmed();
}

#[test]
fn evictions_behind_a_suspended_context_are_refused_and_done_when_it_runs_again() {
    let mut scene = Scene::with(&["--tdr-debug", "3", "--vm-budget", "16M"]);
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    ring.run_first(&attacker, &fill(ring.va + (64 << 10), 4096, 1));
    let queue = attacker.create_queue(ring.context, 0).queue;
    let blob = attacker.context.create_blob(BlobMemory::Vram, 4096).unwrap();
    assert_eq!(attacker.named(message::SUSPEND_CONTEXT, ring.context), Status::Ok);
    let submit = Submit { queue, buffer_va: ring.va + PACKETS, length: 0, flags: 0 };
    pour(&attacker, message::SUBMIT, 1, |_| submit.as_bytes().to_vec());
    let evict = list(memory::EVICT_NOW, &vec![blob.resource_id(); 1000]);
    let before = resident(scene.daemon.pid());
    pour(&attacker, memory::EVICT, 10_000, |_| evict.clone());
    assert_eq!(attacker.status(memory::EVICT, &evict), Status::OutOfResources);
    let grown = resident(scene.daemon.pid()).saturating_sub(before);
    assert!(grown < BUDGET + SLACK, "the daemon has grown by {grown} bytes");
    scene.unharmed();
    assert_eq!(attacker.named(message::RESUME_CONTEXT, ring.context), Status::Ok);
    until("what waited is done", || attacker.status(memory::EVICT, &evict) == Status::Ok);
    assert!(attacker.is_active());
    scene.unharmed();
}

//! Devices that go on under the next daemon when theirs is killed, and which of them do not.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_test_vmm::fuse::context::FuseContext;
use campanile_test_vmm::options::DeviceKind;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;

use crate::killed::Kept;
use crate::killed::fill;
use crate::killed::occupy;
use crate::killed::table;
use crate::served::NEVER;
use crate::served::until;

const BYTES: u64 = 4096;
const SIZE: usize = 4096;

/// Adds one to each word, and takes its time for that.
const COUNT: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        var x = data[id.x];
        for (var i = 0u; i < 2000u; i++) { x = x * 5u + 1u; x = x - 4u * data[id.x] - 1u; data[id.x] = x; x = data[id.x]; }
        data[id.x] = x + 1u;
    }";

/// Of each checkpoint of a daemon whether it holds. What is asked over the control socket is asked of sessions, so that another one is due.
fn held(daemon: Pid) -> Vec<bool> {
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.as_raw_nonzero())).unwrap();
    // A daemon may have several descriptors of one.
    let words: BTreeMap<u64, bool> = open
        .filter_map(|file| {
            let path = file.unwrap().path();
            let is_one = fs::read_link(&path)
                .is_ok_and(|link| link.to_str().is_some_and(|it| it.contains("campanile-checkpoint")));
            let mut word = [0; 8];
            let inode = fs::metadata(&path).ok()?.ino();
            // One that the daemon closes meanwhile is none of its checkpoints any more.
            let file = is_one.then(|| fs::File::open(path).ok())??;
            file.read_exact_at(&mut word, 16).unwrap();
            Some((inode, u64::from_le_bytes(word) > 0))
        })
        .collect();
    words.into_values().collect()
}

fn holds(daemon: Pid) -> bool {
    let held = held(daemon);
    !held.is_empty() && held.iter().all(|holds| *holds)
}

/// Kills the daemon when its checkpoints hold, and waits until the next one serves.
pub(crate) fn kill(kept: &Kept) {
    let daemon = kept.daemon().unwrap();
    until("checkpoints that hold", || holds(daemon));
    kill_process(daemon, Signal::KILL).unwrap();
    until("the next daemon", || kept.daemon().is_some_and(|next| next != daemon));
}

/// Devices of a vGPU that were lost since its daemon was started.
pub(crate) fn lost(kept: &Kept, vgpu: usize) -> u64 {
    kept.0.ask(&["metrics"])["vgpus"][vgpu]["counters"]["devices_lost"].as_u64().unwrap()
}

fn open(vm: &Arc<LoopbackVm>) -> Device {
    Device::open(vm.open("test").unwrap()).unwrap()
}

fn words(buffer: &Buffer) -> Vec<u32> {
    let mut bytes = [0; SIZE];
    buffer.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Has a queue fill a buffer with a value.
fn put(queue: &mut UserQueue, buffer: &Buffer, value: u32) {
    let mut commands = CommandBuffer::new();
    commands.fill(buffer.va(), BYTES, value).unwrap();
    queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
    assert_eq!(words(buffer), vec![value; 1024]);
}

#[test]
fn cont_21_devices_go_on_with_all_they_have_where_a_daemon_is_killed_that_is_asked_nothing() {
    let fs = table("f", "front = \"fs\"\naperture = \"16M\"\n");
    let kept = Kept::begin(&format!("{}{fs}", table("a", "")));
    let vm = kept.connect("a");
    let options = VmOptions { device: DeviceKind::Fs, aperture: 16 << 20, ..VmOptions::default() };
    let other = LoopbackVm::connect(kept.0.folder.file("f.sock"), &options).unwrap();
    let devices = [open(&vm), open(&vm), Device::open(FuseContext::open(&other).unwrap()).unwrap()];
    let mut all: Vec<_> = devices
        .iter()
        .map(|device| {
            let (still, filled) =
                (device.create_buffer(BYTES).unwrap(), device.create_buffer(BYTES).unwrap());
            let guests = device.create_guest_buffer(BYTES).unwrap();
            still.write(0, &[7; SIZE]).unwrap();
            let context = device.create_context(Node::Copy).unwrap();
            let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
            put(&mut queue, &filled, 1);
            put(&mut queue, &guests, 1);
            (still, filled, guests, context, queue)
        })
        .collect();
    for round in 2..5 {
        kill(&kept);
        for (device, (still, filled, guests, context, queue)) in devices.iter().zip(&mut all) {
            assert_eq!(words(filled), vec![round - 1; 1024]);
            put(queue, filled, round);
            put(queue, guests, round);
            assert_eq!(words(still), vec![0x0707_0707; 1024]);
            let mut by_kernel = context.create_kernel_queue().unwrap();
            let mut commands = CommandBuffer::new();
            commands.copy(still.va(), guests.va(), BYTES).unwrap();
            let ticket = by_kernel.submit(&commands).unwrap();
            by_kernel.wait(ticket, Some(NEVER)).unwrap();
            assert_eq!(words(guests), words(still));
            fill(device, 99, true).unwrap();
        }
    }
    assert_eq!([0, 1].map(|vgpu| lost(&kept, vgpu)), [0, 0]);
}

#[test]
fn cont_21_user_mode_work_that_is_under_way_when_the_daemon_is_killed_is_done_once() {
    const BUFFERS: u32 = 200;
    let kept = Kept::begin(&table("a", ""));
    let vm = kept.connect("a");
    let device = open(&vm);
    let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let context = device.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let data = device.create_buffer(BYTES).unwrap();
    let mut commands = CommandBuffer::new();
    for _ in 0..4 {
        commands.dispatch(&kernel, [16, 1, 1], &[data.binding(0)], &[]).unwrap().barrier().unwrap();
    }
    let mut kills = 0;
    for round in 1..=3 {
        let points: Vec<_> = (0..BUFFERS).map(|_| queue.submit(&commands).unwrap()).collect();
        points[0].wait(Some(NEVER)).unwrap();
        kill(&kept);
        kills += u32::from(!points[BUFFERS as usize - 1].is_reached());
        points[BUFFERS as usize - 1].wait(Some(NEVER)).unwrap();
        assert_eq!(words(&data), vec![4 * BUFFERS * round; 1024], "round {round}");
    }
    assert!(kills > 0, "all work was done before a daemon was killed");
}

#[test]
fn cont_21_kernel_mode_work_that_is_under_way_when_the_daemon_is_killed_is_done_once() {
    const BUFFERS: u32 = 100;
    let kept = Kept::begin(&table("a", ""));
    let vm = kept.connect("a");
    let device = open(&vm);
    let kernel = device.create_kernel(&KernelSource::wgsl(COUNT)).unwrap();
    let mut queue = device.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let data = device.create_buffer(BYTES).unwrap();
    // Long ones, so that nothing is asked for a while.
    let mut commands = CommandBuffer::new();
    for _ in 0..100 {
        commands.dispatch(&kernel, [16, 1, 1], &[data.binding(0)], &[]).unwrap().barrier().unwrap();
    }
    // What is behind them waits for a word.
    let word = device.create_buffer(BYTES).unwrap();
    let mut waiting = device.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
    let mut waits = CommandBuffer::new();
    waits.wait(word.va(), 1).unwrap().fill(word.va() + 8, 8, 5).unwrap();
    let waits = waiting.submit(&waits).unwrap();
    let mut kills = 0;
    for round in 1..=3 {
        let tickets: Vec<_> = (0..BUFFERS / 25).map(|_| queue.submit(&commands).unwrap()).collect();
        kill(&kept);
        let last = *tickets.last().unwrap();
        kills += u32::from(!queue.is_done(last));
        queue.wait(last, Some(NEVER)).unwrap();
        assert_eq!(words(&data), vec![4 * BUFFERS * round; 1024], "round {round}");
    }
    assert!(kills > 0, "all work was done before a daemon was killed");
    word.write(0, &1u64.to_le_bytes()).unwrap();
    waiting.wait(waits, Some(NEVER)).unwrap();
    assert_eq!(words(&word)[..3], [1, 0, 5], "one that waits for a word goes on with that");
    assert_eq!(lost(&kept, 0), 0);
}

#[test]
fn cont_21_a_vm_that_is_paused_has_all_it_had_under_the_next_daemon() {
    let kept = Kept::begin(&table("a", ""));
    let vm = kept.connect("a");
    let device = open(&vm);
    let [buffer, word] = [(); 2].map(|()| device.create_buffer(BYTES).unwrap());
    let mut queue =
        device.create_context(Node::Copy).unwrap().create_user_queue(&QueueOptions::default()).unwrap();
    put(&mut queue, &buffer, 1);
    let mut waiting = device.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
    let mut waits = CommandBuffer::new();
    waits.wait(word.va(), 1).unwrap().fill(word.va() + 8, 8, 5).unwrap();
    let all = vm.free_descriptors();
    // A command of the guest's that is in flight until the buffer is done.
    let waits = waiting.submit(&waits).unwrap();
    assert!(vm.free_descriptors() < all);
    // A keeper gives one up that is killed more often.
    for value in 2..4 {
        let stopped = vm.stop().unwrap();
        kill(&kept);
        kill(&kept);
        vm.cont(&stopped).unwrap();
        assert_eq!(words(&buffer), vec![value - 1; 1024]);
        put(&mut queue, &buffer, value);
    }
    word.write(0, &1u64.to_le_bytes()).unwrap();
    waiting.wait(waits, Some(NEVER)).unwrap();
    assert_eq!(words(&word)[..3], [1, 0, 5]);
    assert_eq!(lost(&kept, 0), 0);
}

#[test]
fn cont_21_a_vm_whose_state_was_asked_for_is_written_no_more_since_it_may_go_on_elsewhere() {
    let config = format!("state-dir = \"@/state\"\n{}{}", table("a", ""), table("b", ""));
    let kept = Kept::begin(&config);
    let [saves, stops] = ["a", "b"].map(|name| kept.connect(name));
    let [device, other] = [open(&saves), open(&stops)];
    let daemon = kept.daemon().unwrap();
    until("checkpoints that hold", || holds(daemon));
    let saved = saves.save().unwrap();
    let stopped = stops.stop().unwrap();
    // What is asked of both has that of the one that was only stopped written anew, over and over: there is as much time for the other's.
    let rounds = [(); 3].map(|()| {
        kept.0.ask(&["metrics"]);
        until("a checkpoint of the VM that was only stopped", || held(daemon).contains(&true));
        held(daemon).iter().filter(|holds| **holds).count()
    });
    stops.cont(&stopped).unwrap();
    saves.go_on(&saved).unwrap();
    assert_eq!(rounds, [1; 3], "checkpoints of both that hold");
    for device in [&device, &other] {
        fill(device, 1, true).unwrap();
    }
    until("checkpoints that hold", || holds(daemon));
}

#[test]
fn cont_21_what_does_not_stop_in_time_costs_its_own_device_and_no_others() {
    let kept = Kept::begin(&table("a", ""));
    let vm = kept.connect("a");
    let [idle, hangs] = [open(&vm), open(&vm)];
    let buffer = idle.create_buffer(BYTES).unwrap();
    let mut queue =
        idle.create_context(Node::Copy).unwrap().create_user_queue(&QueueOptions::default()).unwrap();
    put(&mut queue, &buffer, 1);
    let _endless = occupy(&hangs);
    kill(&kept);
    put(&mut queue, &buffer, 2);
    assert!(matches!(hangs.check(), Err(DriverError::DeviceLost(_))));
    fill(&open(&vm), 3, true).unwrap();
}

#[test]
fn cont_21_a_state_that_the_next_daemon_cannot_take_over_costs_the_devices_and_not_the_vm() {
    let kept = Kept::begin(&table("a", ""));
    let vm = kept.connect("a");
    let device = open(&vm);
    fill(&device, 1, true).unwrap();
    let config = kept.0.folder.config();
    let text = fs::read_to_string(&config).unwrap();
    // What a state says cannot change.
    fs::write(&config, format!("{text}single-use = true\n")).unwrap();
    kill(&kept);
    assert!(matches!(fill(&device, 2, true), Err(DriverError::DeviceLost(_))));
    fill(&device.recreate().unwrap(), 3, true).unwrap();
    assert!(vm.is_connected());
    assert_eq!(lost(&kept, 0), 1);
}

//! Local memory in the device's own, which no CPU reaches (`--local-memory device`).

use std::fs;
use std::os::unix::fs::MetadataExt;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::Eviction;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::queue::ring;

use crate::linked::queue_on;
use crate::linked::run;
use crate::operator::Operated;
use crate::paging::hidden;
use crate::processes::kill_engine_at_rest;
use crate::raw_queue::ENTRIES;
use crate::raw_queue::RawRing;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;
use crate::tdr_support::hang;

const MIB: u64 = 1 << 20;
const IN_DEVICE: &[&str] = &["--local-memory", "device", "--spin", "600000000"];
const ADD: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        data[id.x] = data[id.x] + id.x;
    }";

/// A guest process with a queue on a node, and a buffer that its CPU sees.
pub(crate) struct Guest {
    pub(crate) device: Device,
    pub(crate) queue: UserQueue,
    pub(crate) staging: Buffer,
}

/// A kernel that adds its index to each word.
pub(crate) fn add() -> KernelSource<'static> {
    KernelSource::wgsl(ADD)
}

impl Guest {
    pub(crate) fn on(device: Device, node: Node) -> Self {
        let context = device.create_context(node).unwrap();
        let queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        let staging = device.create_buffer(MIB).unwrap();
        Self { device, queue, staging }
    }

    pub(crate) fn run(&mut self, commands: &CommandBuffer) {
        self.queue.submit(commands).unwrap().wait(Some(NEVER)).unwrap();
    }

    /// The words of a buffer.
    pub(crate) fn words(&mut self, buffer: &LocalBuffer) -> Vec<u32> {
        let mut words = Vec::new();
        let mut at = 0;
        while at < buffer.size() {
            let length = MIB.min(buffer.size() - at);
            self.run(&copy(buffer.va() + at, self.staging.va(), length));
            let mut bytes = vec![0; usize::try_from(length).unwrap()];
            self.staging.read(0, &mut bytes).unwrap();
            words.extend(
                bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])),
            );
            at += length;
        }
        words
    }

    pub(crate) fn is_all(&mut self, buffer: &LocalBuffer, value: u32) -> bool {
        self.words(buffer).iter().all(|word| *word == value)
    }

    pub(crate) fn add(&mut self, buffer: &LocalBuffer) {
        let kernel = self.device.create_kernel(&KernelSource::wgsl(ADD)).unwrap();
        let groups = u32::try_from(buffer.size() / 256).unwrap();
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [groups, 1, 1], &[buffer.binding(0)], &[]).unwrap();
        self.run(&commands);
    }
}

/// Bytes that the daemon's files of this name have on the host.
fn bytes_of_file(daemon: &Daemon, name: &str) -> u64 {
    let folder = format!("/proc/{}/fd", daemon.pid());
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = all.filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains(name)));
    named.map(|path| fs::metadata(path).unwrap().blocks() * 512).max().unwrap()
}

#[test]
fn kernels_and_copies_of_both_nodes_work_on_a_devices_own_memory() {
    let operated = Operated::with(1, IN_DEVICE);
    let (vm, device) = operated.daemon.device();
    let mut compute = Guest::on(device, Node::Compute);
    let ram = compute.device.create_guest_buffer(MIB).unwrap();
    let big = compute.device.create_local_buffer(8 * MIB).unwrap();
    assert!(compute.is_all(&big, 0), "all memory begins as zeroes");
    compute.run(&fill(big.va(), big.size(), 7));
    compute.add(&big);
    let expected = |at: usize| 7 + u32::try_from(at).unwrap();
    assert!(compute.words(&big).iter().enumerate().all(|(at, word)| *word == expected(at)));
    // From guest RAM and back, of odd lengths at odd places.
    ram.write(0, &[0x5a; 4096]).unwrap();
    compute.run(&copy(ram.va() + 1, big.va() + 4099, 1001));
    compute.run(&copy(big.va() + 4099, ram.va() + 8192, 1001));
    let mut bytes = [0; 1002];
    ram.read(8192, &mut bytes).unwrap();
    assert!(bytes[..1001].iter().all(|byte| *byte == 0x5a) && bytes[1001] == 0);
    // Where a kernel's grid is read from it.
    let grid = compute.device.create_local_buffer(4096).unwrap();
    let one = compute.device.create_local_buffer(MIB).unwrap();
    let kernel = compute.device.create_kernel(&KernelSource::wgsl(ADD)).unwrap();
    let mut commands = CommandBuffer::new();
    commands.fill(grid.va(), 4, 2).unwrap().fill(grid.va() + 4, 8, 1).unwrap().barrier().unwrap();
    commands.dispatch_indirect(&kernel, grid.va(), &[one.binding(0)], &[]).unwrap();
    compute.run(&commands);
    let words = compute.words(&one);
    assert_eq!((words[127], words[128]), (127, 0), "two groups of 64");
    // Another node, with the same memory: within it, also where both sides have bytes in common.
    let context = compute.device.create_context(Node::Copy).unwrap();
    let mut copies = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut run = |commands: &CommandBuffer| copies.submit(commands).unwrap().wait(Some(NEVER)).unwrap();
    run(&copy(big.va(), one.va(), MIB));
    assert!(compute.words(&one).iter().enumerate().skip(2048).all(|(at, word)| *word == expected(at)));
    run(&fill(one.va(), MIB, 9));
    assert!(compute.is_all(&one, 9));
    // None of that is in the file of video memory.
    let memory = operated.ask(&["status"])["vgpus"][0]["session"]["memory"].clone();
    assert_eq!(memory["local_in"], "device");
    assert!(memory["local"].as_u64().unwrap() - memory["local_free"].as_u64().unwrap() >= 9 * MIB);
    assert!(bytes_of_file(&operated.daemon, "campanile-vram") < 8 * MIB);
    drop(vm);
}

#[test]
fn tdr_08_linked_adapters_on_one_device_have_its_memory_in_common_wherever_it_moves() {
    let arguments = [IN_DEVICE, &["--engines", "2"]].concat();
    let operated = Operated::with_specs(&["vram=32M,vram-max=96M"], &arguments);
    let (_vm, device) = operated.daemon.device();
    let mut first = Guest::on(device, Node::Compute);
    let (_context, mut second) = queue_on(&first.device, Node::Compute, 1);
    let kernel = first.device.create_kernel(&add()).unwrap();
    let buffer = first.device.create_local_buffer(4 * MIB).unwrap();
    first.run(&fill(buffer.va(), buffer.size(), 3));
    let groups = u32::try_from(buffer.size() / 256).unwrap();
    for round in 1..=3 {
        let mut commands = CommandBuffer::new();
        commands.dispatch(&kernel, [groups, 1, 1], &[buffer.binding(0)], &[]).unwrap();
        run(&mut second, &commands);
        first.add(&buffer);
        let expected = |at: usize| 3 + 2 * round * u32::try_from(at).unwrap();
        assert!(first.words(&buffer).iter().enumerate().all(|(at, word)| *word == expected(at)), "{round}");
        // It comes back for the second one's work.
        first.device.evict(&[&buffer], Eviction::Now).unwrap();
    }
    let others: Vec<LocalBuffer> =
        (0..4).map(|_| first.device.create_local_buffer(8 * MIB).unwrap()).collect();
    for other in &others {
        assert!(first.is_all(other, 0), "what an adapter has left there");
        run(&mut second, &fill(other.va(), other.size(), 5));
    }
    assert!(others.iter().all(|other| first.is_all(other, 5)));
    let memory = operated.ask(&["status"])["vgpus"][0]["session"]["memory"].clone();
    assert_eq!(memory["local_in"], "device");
}

#[test]
fn local_memory_is_the_hosts_where_nothing_else_is_said_and_the_driver_runs_on_cpus() {
    let operated = Operated::with(1, &["--local-memory", "auto"]);
    let (_vm, _device) = operated.daemon.device();
    assert_eq!(operated.ask(&["status"])["vgpus"][0]["session"]["memory"]["local_in"], "host");
}

#[test]
fn what_was_in_a_devices_memory_is_zero_for_the_next_process_and_for_the_next_vm() {
    let daemon = Daemon::with(IN_DEVICE);
    for _vm in 0..2 {
        for _process in 0..2 {
            let vm = daemon.vm(0);
            let mut guest = Guest::on(Device::open(vm.open("test").unwrap()).unwrap(), Node::Copy);
            let all: Vec<LocalBuffer> =
                (0..8).map(|_| guest.device.create_local_buffer(4 * MIB).unwrap()).collect();
            for buffer in &all {
                assert!(guest.is_all(buffer, 0));
                guest.run(&fill(buffer.va(), buffer.size(), 0x5a5a_5a5a));
            }
        }
    }
}

#[test]
fn what_processes_have_in_a_devices_memory_outlives_the_engine_that_another_hung() {
    let daemon = Daemon::with(&[IN_DEVICE, &["--tdr-timeout", "300"]].concat());
    let vm = daemon.vm(0);
    let mut bystander = Guest::on(Device::open(vm.open("bystander").unwrap()).unwrap(), Node::Compute);
    let buffer = bystander.device.create_local_buffer(8 * MIB).unwrap();
    bystander.run(&fill(buffer.va(), buffer.size(), 3));
    bystander.add(&buffer);
    hang(&Device::open(vm.open("hanging").unwrap()).unwrap());
    let expected = |at: usize, times: u32| 3 + times * u32::try_from(at).unwrap();
    assert!(bystander.words(&buffer).iter().enumerate().all(|(at, word)| *word == expected(at, 1)));
    bystander.add(&buffer);
    assert!(bystander.words(&buffer).iter().enumerate().all(|(at, word)| *word == expected(at, 2)));
    bystander.device.check().unwrap();
}

#[test]
fn what_is_evicted_from_a_devices_memory_comes_back_as_it_was_and_moves_for_what_is_long() {
    let operated = Operated::with_specs(&["vram=32M,vram-max=96M"], IN_DEVICE);
    let (_vm, device) = operated.daemon.device();
    let mut guest = Guest::on(device, Node::Copy);
    let buffers: Vec<LocalBuffer> =
        (0..10).map(|_| guest.device.create_local_buffer(5 * MIB).unwrap()).collect();
    for (value, buffer) in (1u32..).zip(&buffers) {
        assert!(guest.is_all(buffer, 0));
        guest.run(&fill(buffer.va(), buffer.size(), value));
    }
    guest.device.evict(&[&buffers[9]], Eviction::Now).unwrap();
    for (value, buffer) in (1u32..).zip(&buffers) {
        assert!(guest.is_all(buffer, value), "buffer {value}");
    }
    let info = guest.device.memory_info().unwrap();
    assert!(info.evictions >= 8 && info.restores >= 8, "{info:?}");
    drop(buffers);
    let free = || guest.device.memory_info().unwrap().local_free;
    until("local memory that is zero again", || free() == 16 * MIB);
}

#[test]
fn what_lies_in_a_devices_memory_outlives_the_copy_engine_which_moves_it() {
    let daemon = Daemon::with_specs(&["vram=32M,vram-max=96M"], IN_DEVICE);
    let (_vm, device) = daemon.device();
    let mut guest = Guest::on(device, Node::Copy);
    let buffers: Vec<LocalBuffer> =
        (0..6).map(|_| guest.device.create_local_buffer(5 * MIB).unwrap()).collect();
    for _round in 0..2 {
        for (value, buffer) in (1u32..).zip(&buffers) {
            guest.run(&fill(buffer.va(), buffer.size(), value));
        }
        kill_engine_at_rest(&daemon);
        for (value, buffer) in (1u32..).zip(&buffers) {
            assert!(guest.is_all(buffer, value), "buffer {value}");
        }
    }
    guest.device.check().unwrap();
}

#[test]
fn what_engines_poll_may_not_lie_in_a_devices_memory() {
    let daemon = Daemon::with(IN_DEVICE);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let ring_va = 1 << 32;
    let bytes = (u64::from(ENTRIES) * ring::RING_ENTRY_BYTES).next_multiple_of(PAGE_SIZE);
    let resource = hidden(&guest, bytes, ring_va);
    let (visible, queue) = (RawRing::new(&guest), guest.queue(context, QUEUE_USER_MODE_SUBMISSION).unwrap());
    let create = CreateDoorbell { ring_va, ring_resource: resource, ..visible.doorbell(queue.queue) };
    let refused = guest.ask::<DoorbellCreated>(message::CREATE_DOORBELL, &create);
    assert_eq!(refused.map(|_| ()), Err(Status::InvalidResource));
    let seen = visible.doorbell(queue.queue);
    assert!(guest.ask::<DoorbellCreated>(message::CREATE_DOORBELL, &seen).is_ok());
}

#[test]
fn a_process_reaches_nothing_of_anothers_in_a_devices_memory() {
    let daemon = Daemon::with(IN_DEVICE);
    let vm = daemon.vm(0);
    let mut owner = Guest::on(Device::open(vm.open("owner").unwrap()).unwrap(), Node::Copy);
    let secret = owner.device.create_local_buffer(MIB).unwrap();
    owner.run(&fill(secret.va(), MIB, 0x5ec7_e700));
    let mut other = Guest::on(Device::open(vm.open("other").unwrap()).unwrap(), Node::Copy);
    assert!(other.device.map_resource(secret.resource_id(), MIB).is_err());
    let commands = copy(secret.va(), other.staging.va(), 4096);
    let refused = other.queue.submit(&commands).and_then(|point| point.wait(Some(NEVER)));
    assert!(matches!(refused, Err(DriverError::DeviceLost(_))), "{refused:?}");
    let mut bytes = [0; 4096];
    other.staging.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4096]);
    assert!(owner.is_all(&secret, 0x5ec7_e700));
}

#[test]
fn what_cannot_be_with_a_devices_memory_is_refused_in_words() {
    for (arguments, option) in [
        (&["--engines", "2", "--vulkan-device", "a,b"][..], "--vulkan-device"),
        (&["--dirty-tracking", "write-protect"], "--dirty-tracking write-protect"),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(["serve", "--socket", "/tmp/nowhere", "--vram", "64M", "--local-memory", "device"]);
        let output = command.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("--local-memory device"), "{said}");
        assert!(said.contains(option), "{said}");
    }
}

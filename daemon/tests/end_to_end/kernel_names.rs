//! Kernels of a device that ended while they were compiled: what an engine says of them is not said of another's.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::reply::KernelCreated;
use campanile_protocol::control::status::Status;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::raw::RawGuest;
use crate::support::Daemon;

/// A kernel of `size` statements, with so many threads in a group.
fn kernel(threads: u32, size: u32) -> String {
    let mut text = format!(
        "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
         @compute @workgroup_size({threads}) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
             var a = id.x;\n"
    );
    for step in 0..size {
        writeln!(text, "if (a % {}u == 1u) {{ a = a * {}u + data[a % 64u]; }}", step + 2, step + 3).unwrap();
    }
    text + "data[id.x] = a; }"
}

fn create(text: &str) -> Vec<u8> {
    create_named("", text)
}

fn create_named(entry: &str, text: &str) -> Vec<u8> {
    let [entry_bytes, source_bytes] = [entry, text].map(|part| u32::try_from(part.len()).unwrap());
    let head = CreateKernel { language: LANGUAGE_WGSL, entry_bytes, source_bytes, reserved: 0 };
    [head.as_bytes(), entry.as_bytes(), text.as_bytes()].concat()
}

/// Engines of the daemon, in order.
pub(crate) fn engines(daemon: &Daemon) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", daemon.pid());
    // Each thread has children of its own.
    let tasks = fs::read_dir(Path::new(&path).parent().unwrap().parent().unwrap()).unwrap();
    let mut all: Vec<u32> = tasks
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("children")).ok())
        .flat_map(|pids| pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>())
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn a_name_that_no_entry_point_can_have_is_refused_and_nothing_else_happens() {
    let daemon = Daemon::steady(7);
    let vm = daemon.vm(0);
    let other = RawGuest::open(&vm);
    other.context(Node::Compute);
    other.kernel(&kernel(1, 0));
    let hostile = RawGuest::open(&vm);
    hostile.context(Node::Compute);
    let before = engines(&daemon);
    assert!(!before.is_empty());
    let text = kernel(64, 0);
    let longest = "x".repeat(256);
    for name in ["\x01".repeat(40 << 10), "x".repeat(257), "ma\nin".to_owned(), "\u{9b}".to_owned()] {
        let asked = hostile.call(message::CREATE_KERNEL, &*create_named(&name, &text));
        assert_eq!(asked.unwrap_err(), Status::InvalidParameter, "{} bytes", name.len());
    }
    assert_eq!(
        hostile.call(message::CREATE_KERNEL, &*create_named(&longest, &text)).unwrap_err(),
        Status::KernelRefused,
        "no entry point has this name, and one might"
    );
    hostile.call(message::CREATE_KERNEL, &*create_named("main", &text)).unwrap();
    other.kernel(&kernel(32, 1));
    assert_eq!(engines(&daemon), before, "no engine was replaced");
    // A VM that hung too often opens no device.
    RawGuest::open(&vm).context(Node::Compute);
}

#[test]
fn a_kernel_is_not_answered_for_by_one_of_a_device_that_has_ended() {
    let daemon = Daemon::steady(7);
    let vm = daemon.vm(0);
    let other = RawGuest::open(&vm);
    other.context(Node::Compute);
    other.kernel(&kernel(1, 0));
    let memory = other.memory(BlobMemory::Vram, 4096);
    let gone = RawGuest::open(&vm);
    gone.context(Node::Compute);
    // It takes much longer to compile than all that follows up to its answer.
    let asked = gone.send(1, message::CREATE_KERNEL, &*create(&kernel(64, 150)));
    gone.call(message::DESTROY_DEVICE, &()).unwrap();
    assert_eq!(asked.finish(), Err(Status::DeviceLost));
    // Engines pass barriers in order: when this is unmapped, the address space of the other is free for the next.
    other.unmap(&memory);
    let next = RawGuest::open(&vm);
    next.context(Node::Compute);
    let answer = next.call(message::CREATE_KERNEL, &*create(&kernel(32, 1))).unwrap();
    assert_eq!(KernelCreated::read_from_bytes(&answer).unwrap().workgroup, [32, 1, 1]);
}

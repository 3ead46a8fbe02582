//! Tiny kernels by the hundred thousand: daemon and engine stay as large as the budget lets them become.

use std::fs;
use std::sync::Arc;

use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::Transport;
use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAGIC;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use crate::kernel_names::engines;
use crate::raw::RawGuest;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

const TINY: &str = "@compute @workgroup_size(1) fn main() {}";
/// What the daemon may grow: its budget, rings and allocator.
const DAEMON: u64 = 24 << 20;
/// What the engine may grow: what all kernels are charged, three quarters of the budget, and its driver and allocator.
const ENGINE: u64 = 28 << 20;

fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Sends many messages as few commands, in slot 20; their answers overwrite each other.
fn pour(guest: &RawGuest, opcode: u32, bodies: impl Iterator<Item = Vec<u8>>) {
    let mut bodies = bodies.peekable();
    let (mut frames, mut sequence) = (Vec::new(), 1 << 32);
    while let Some(body) = bodies.next() {
        let size = (size_of::<FrameHeader>() + body.len()).next_multiple_of(8);
        sequence += 1;
        let header =
            FrameHeader { magic: MAGIC, size: u32::try_from(size).unwrap(), opcode, slot: 20, sequence };
        let end = frames.len() + size;
        frames.extend([header.as_bytes(), &body].concat());
        frames.resize(end, 0);
        if bodies.peek().is_none() || frames.len() > 60 << 10 {
            guest.transport().submit(&frames, None).unwrap().wait(Some(NEVER)).unwrap();
            frames.clear();
        }
    }
}

/// Waits until an engine has done all that it was asked to: it compiles and forgets in order.
fn settle(guest: &Arc<RawGuest>, last: Handle) {
    until("the engine has heard of all kernels", || {
        guest.name(message::DESTROY_KERNEL, last) != Err(Status::Busy)
    });
}

#[test]
fn tiny_kernels_by_the_hundred_thousand_leave_daemon_and_engine_within_bounds() {
    let daemon = Daemon::with(&["--vm-budget", "16M"]);
    let vm = daemon.vm(0);
    let other = RawGuest::open(&vm);
    other.context(Node::Compute);
    other.kernel(TINY);
    let engine = engines(&daemon);
    assert_eq!(engine.len(), 1);
    let sizes = || [daemon.pid(), engine[0]].map(resident);
    let before = sizes();
    let within = |what: &str| {
        let now = sizes();
        let [grown, of_engine] = [0, 1].map(|at| now[at].saturating_sub(before[at]));
        assert!(grown < DAEMON, "{what}: the daemon has grown by {grown} bytes");
        assert!(of_engine < ENGINE, "{what}: the engine has grown by {of_engine} bytes");
    };
    let source_bytes = u32::try_from(TINY.len()).unwrap();
    let head = CreateKernel { language: LANGUAGE_WGSL, entry_bytes: 0, source_bytes, reserved: 0 };
    let create = [head.as_bytes(), TINY.as_bytes()].concat();
    let hostile: Vec<Arc<RawGuest>> = (0..10).map(|_| RawGuest::open(&vm)).collect();
    for guest in &hostile {
        pour(guest, message::CREATE_KERNEL, std::iter::repeat_n(create.clone(), 10_000));
        within("while it compiles");
    }
    settle(&hostile[0], Handle::new(0, 1));
    within("without ends");
    until("what the daemon holds for one VM is used up", || {
        other.call(message::CREATE_KERNEL, &*create) == Err(Status::OutOfResources)
    });
    within("with all kernels that there can be");
    for _ in 0..3 {
        let names = (1..1024).map(|index| Named { handle: Handle::new(index, 1) }.as_bytes().to_vec());
        pour(&hostile[0], message::DESTROY_KERNEL, names);
        pour(&hostile[0], message::CREATE_KERNEL, std::iter::repeat_n(create.clone(), 100));
        within("with ends");
    }
    drop(hostile);
    until("all of it comes back", || other.call(message::CREATE_KERNEL, &*create).is_ok());
    within("when all have ended");
    assert_eq!(engines(&daemon), engine, "no engine was replaced");
}

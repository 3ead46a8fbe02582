//! The copy node: rings, doorbells and packets without Vulkan.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;

use crate::support::Daemon;
use crate::support::NEVER;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from(index * 7 % 251).unwrap()).collect()
}

#[test]
fn ums_01_work_runs_without_a_control_message() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let source = device.create_buffer(1 << 20).unwrap();
    let target = device.create_buffer(1 << 20).unwrap();
    source.write(0, &pattern(1 << 20)).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    queue.connect().unwrap();
    let mut commands = CommandBuffer::new();
    commands.copy(source.va(), target.va(), 1 << 20).unwrap();
    let before = device.control_commands();
    let reconnects = queue.reconnects();
    let point = queue.submit(&commands).unwrap();
    point.spin().unwrap();
    assert_eq!(
        device.control_commands() - before,
        queue.reconnects() - reconnects,
        "control messages other than reconnects"
    );
    let mut copied = vec![0; 1 << 20];
    target.read(0, &mut copied).unwrap();
    assert_eq!(copied, pattern(1 << 20));
    point.wait(Some(NEVER)).unwrap();
}

#[test]
fn ums_02_both_kinds_of_queue_work_at_the_same_time() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let buffer = device.create_buffer(8192).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut kernel = context.create_kernel_queue().unwrap();
    for round in 1..200u32 {
        let mut first = CommandBuffer::new();
        first.fill(buffer.va(), 4096, round).unwrap();
        let mut second = CommandBuffer::new();
        second.fill(buffer.va() + 4096, 4096, round ^ 0xffff).unwrap();
        let point = user.submit(&first).unwrap();
        let ticket = kernel.submit(&second).unwrap();
        point.wait(Some(NEVER)).unwrap();
        kernel.wait(ticket, Some(NEVER)).unwrap();
        let mut bytes = [0; 8192];
        buffer.read(0, &mut bytes).unwrap();
        assert!(bytes[..4096].chunks_exact(4).all(|word| word == round.to_le_bytes()));
        assert!(bytes[4096..].chunks_exact(4).all(|word| word == (round ^ 0xffff).to_le_bytes()));
    }
}

/// Rounds of pauses around the spin budget: each ring meets the engine somewhere on its way to sleep.
#[test]
fn ums_122_work_rung_while_the_engine_goes_to_sleep_is_never_lost() {
    let daemon = Daemon::with(&["--spin", "50"]);
    let (_vm, device) = daemon.device();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let empty = CommandBuffer::new();
    for round in 0..6000u32 {
        let pause = std::time::Duration::from_micros(u64::from(round * 7 % 240));
        let begun = std::time::Instant::now();
        while begun.elapsed() < pause {
            std::hint::spin_loop();
        }
        // Polls the fence alone: a wait through the daemon would wake the engine.
        let point = queue.submit(&empty).unwrap();
        let rung = std::time::Instant::now();
        while !point.is_reached() {
            assert!(
                rung.elapsed() < NEVER,
                "round {round}: the ring was lost, the doorbell reads {:?}",
                queue.status()
            );
        }
    }
    assert!(queue.reconnects() > 100, "the engine slept between rings, {} times", queue.reconnects());
}

#[test]
fn timestamps_rise_on_every_node() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let times = device.create_buffer(16).unwrap();
    for node in [Node::Copy, Node::Compute] {
        let context = device.create_context(node).unwrap();
        let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        let mut commands = CommandBuffer::new();
        commands.timestamp(times.va()).unwrap().timestamp(times.va() + 8).unwrap();
        queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
        let [first, second] = [0, 8].map(|at| times.memory().word(at).unwrap().swap(0, Ordering::Relaxed));
        assert!(0 < first && first <= second, "{node:?}: {first} ns, then {second} ns");
    }
}

//! Ends in mid work: of a process, of a device, of a VM's use of the vGPU.

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::status::Status;
use rustix::process::Signal;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::DATA_VA;
use crate::bystander::Bystander;
use crate::daemon::NEVER;
use crate::daemon::until;
use crate::packets::copy;
use crate::packets::fill;
use crate::packets::wait;
use crate::processes::signal;
use crate::ring::Ring;
use crate::scene::Scene;

/// Gives the engine work on both ways: a copy that takes a while, and waits for a word that nobody writes.
fn busy(attacker: &Attacker) -> Ring {
    let ring = Ring::new(attacker);
    let (big, size) = (1 << 32, 4 << 20);
    let (_blob, _memory) = attacker.memory(big, 2 * size);
    let packets = [copy(big, big + size, size), wait(ring.va + (64 << 10), 1)].concat();
    ring.run_first(attacker, &packets);
    let queue = attacker.create_queue(ring.context, 0).queue;
    let length = packets.len().try_into().unwrap();
    let submit = Submit { queue, buffer_va: ring.va + crate::ring::PACKETS, length, flags: 0 };
    for slot in 2..8 {
        attacker.start(message::SUBMIT, slot, submit.as_bytes());
    }
    ring
}

#[test]
fn processes_that_end_in_mid_work_leave_nothing_behind() {
    let mut scene = Scene::new();
    for _ in 0..20 {
        busy(&scene.attacker());
        scene.neighbour.as_mut().unwrap().compute();
    }
    let attacker = scene.attacker();
    let most = 48 << 20;
    until("the video memory of those that ended", || {
        attacker.context.create_blob(BlobMemory::Vram, most).is_ok()
    });
    scene.unharmed();
}

#[test]
fn a_device_that_ends_while_its_engine_starts_leaves_no_fence_open() {
    let mut scene = Scene::new();
    let neighbour = scene.give_neighbour_up();
    let create = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
    for round in 0..10 {
        let other = scene.daemon.engine(1);
        for engine in scene.daemon.children().into_iter().filter(|engine| *engine != other) {
            signal(engine, Signal::KILL);
        }
        until("the engine is lost", || neighbour.is_lost());
        let attacker = scene.attacker();
        let messages = [
            attacker.start(message::CREATE_CONTEXT, 2, create.as_bytes()),
            attacker.start(message::CREATE_CONTEXT, 3, create.as_bytes()),
            attacker.start(message::DESTROY_DEVICE, 4, &[]),
        ];
        for (_, submission) in &messages {
            submission.wait(Some(NEVER)).unwrap();
        }
        // What the old device asked for is not done to the next.
        assert_eq!(attacker.open_device(&attacker.create_device()), Some(Status::Ok));
        attacker.create_context();
        for (slot, (sequence, _)) in (2..).zip(messages).take(2) {
            let (status, _) = attacker.response(slot, sequence);
            assert!(matches!(status, Status::DeviceLost | Status::Ok), "round {round}: {status:?}");
        }
    }
    Bystander::new(&scene.vm).compute();
    scene.unharmed();
}

#[test]
fn a_device_reset_in_mid_work_leaves_a_device_like_new() {
    let mut scene = Scene::new();
    scene.give_neighbour_up();
    for round in 0..5 {
        let attacker = scene.attacker();
        busy(&attacker);
        scene.vm.reset_device().unwrap();
        drop(attacker);
        let after = scene.attacker();
        let most = after.context.create_blob(BlobMemory::Vram, 48 << 20).unwrap();
        after.context.destroy_blob(most).unwrap();
        let ring = Ring::new(&after);
        ring.run_first(&after, &fill(DATA_VA + (64 << 10), 4096, round));
        ring.reached(&after, 1);
        // The kernel-mode way, too.
        Bystander::new(&scene.vm).compute();
    }
    scene.unharmed();
}

#[test]
fn what_a_lost_device_left_queued_does_not_touch_the_next() {
    let mut scene = Scene::new();
    for _ in 0..20 {
        let attacker = scene.attacker();
        let ring = busy(&attacker);
        let queue = attacker.create_queue(ring.context, 0).queue;
        let nowhere = Submit { queue, buffer_va: 1 << 38, length: 8, flags: 0 };
        for slot in 10..20 {
            attacker.start(message::SUBMIT, slot, nowhere.as_bytes());
        }
        // In error, or not yet: its end comes in between.
        assert_eq!(attacker.status(message::DESTROY_DEVICE, &[]), Status::Ok);
        assert_eq!(attacker.open_device(&attacker.create_device()), Some(Status::Ok));
        let ring = Ring::at(&attacker, 1 << 34);
        ring.run_first(&attacker, &fill(ring.va + (64 << 10), 4096, 1));
        ring.reached(&attacker, 1);
        scene.neighbour.as_mut().unwrap().compute();
        assert!(attacker.is_active());
    }
    scene.unharmed();
}

//! Engines that are killed or stand still: another process takes their place, and who did nothing wrong goes on.

use std::sync::atomic::Ordering;

use campanile_protocol::control::message;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_RESET;

use crate::bystander::Bystander;
use crate::daemon::until;
use crate::packets::fill;
use crate::packets::wait;
use crate::processes::lose_engine;
use crate::ring::Ring;
use crate::scene::Scene;
use crate::signals::kill_at_rest;
use crate::signals::stop_at_rest;

#[test]
fn an_engine_that_is_killed_is_replaced_and_its_devices_go_on() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let word = 64 << 10;
    ring.run_first(&attacker, &wait(ring.va + word, 1));
    kill_at_rest(scene.daemon.engine(0));
    scene.unharmed();
    ring.memory.word(word).unwrap().store(1, Ordering::Release);
    ring.reached(&attacker, 1);
    assert!(attacker.is_active());
    Bystander::new(&scene.vm).compute();
    scene.unharmed();
}

#[test]
fn what_is_left_of_a_lost_engine_does_not_touch_its_successor() {
    let mut scene = Scene::new();
    let old = scene.attacker();
    let old_ring = Ring::new(&old);
    scene.give_neighbour_up();
    lose_engine(&scene.daemon, || !old.is_active());
    assert_eq!(old.fault(), DEVICE_RESET);
    // The new engine's first queue has the number that the old one's had.
    let new = scene.attacker();
    let new_ring = Ring::new(&new);
    new_ring.run_first(&new, &fill(new_ring.va + (64 << 10), 4096, 1));
    new_ring.reached(&new, 1);
    assert_eq!(old.named(message::CONNECT_DOORBELL, old_ring.bell.doorbell), Status::DeviceLost);
    assert_eq!(old.named(message::DESTROY_DOORBELL, old_ring.bell.doorbell), Status::Ok);
    assert_eq!(old.named(message::DESTROY_QUEUE, old_ring.queue.queue), Status::Ok);
    assert_eq!(old.status(message::DESTROY_DEVICE, &[]), Status::Ok);
    new_ring.write(1, &new_ring.entry(0, 2));
    new_ring.ring(&new, 2);
    new_ring.reached(&new, 2);
    assert!(new.is_active());
    scene.unharmed();
}

#[test]
fn an_engine_that_stands_still_with_its_node_is_replaced_for_who_waits() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let (mark, word) = (64 << 10, 65 << 10);
    ring.run_first(&attacker, &[fill(ring.va + mark, 8, 7), wait(ring.va + word, 1)].concat());
    until("the engine has the node", || {
        ring.memory.word(mark).unwrap().load(Ordering::Acquire) == 7 << 32 | 7
    });
    let engine = scene.daemon.engine(0);
    let _stopped = stop_at_rest(engine);
    scene.other_vm.compute();
    // It ran nobody's work: it waited for a word.
    scene.unharmed();
    assert!(!scene.daemon.children().contains(&engine));
    ring.memory.word(word).unwrap().store(1, Ordering::Release);
    ring.reached(&attacker, 1);
    scene.unharmed();
}

#[test]
fn engines_killed_again_and_again_are_started_again_and_the_log_stays_short() {
    let mut scene = Scene::new();
    scene.give_neighbour_up();
    let kill = || {
        let attacker = scene.attacker();
        Ring::new(&attacker);
        lose_engine(&scene.daemon, || !attacker.is_active());
    };
    kill();
    let before = scene.daemon.footprint();
    for _ in 0..40 {
        kill();
    }
    let after = scene.daemon.footprint();
    assert!(after.0 <= before.0 + 2, "{before:?} descriptors and mappings became {after:?}");
    assert!(after.1 <= before.1 + 8, "{before:?} descriptors and mappings became {after:?}");
    let lines = scene.daemon.log().lines().filter(|line| line.contains(" v0: ")).count();
    assert!(lines < 100, "{lines} lines about engines");
    scene.unharmed();
}

//! VMMs that hang up, say nothing, or talk nonsense.

use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use campanile_guest_driver::transport::error::TransportError;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;

use crate::attacker::Attacker;
use crate::bystander::Bystander;
use crate::daemon::until;
use crate::packets::copy;
use crate::ring::ENTRIES;
use crate::ring::Ring;
use crate::scene::Scene;

/// A vhost-user header: request, flags, size.
fn header(request: u32, flags: u32, size: u32) -> Vec<u8> {
    [request, flags, size].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The first vGPU serves a VM again.
fn serves_again(scene: &mut Scene) {
    scene.vm = scene.daemon.vm(0);
    scene.neighbour = Some(Bystander::new(&scene.vm));
    scene.unharmed();
}

fn free_the_socket(scene: &mut Scene) {
    let old = scene.give_neighbour_up();
    scene.vm.hang_up();
    drop(old);
}

/// Keeps an engine busy for a while: some GiB of copies.
fn busy(attacker: &Attacker, ring: &Ring) {
    let half = crate::ring::BYTES / 4;
    let packets = copy(ring.va + half, ring.va + 2 * half, half).repeat(1000);
    ring.packets(&packets);
    for index in 0..u64::from(ENTRIES) {
        ring.write(index, &ring.entry(packets.len(), index + 1));
    }
    ring.ring(attacker, u64::from(ENTRIES));
}

#[test]
fn a_front_end_that_hangs_up_in_mid_message_makes_room_for_the_next() {
    let mut scene = Scene::new();
    free_the_socket(&mut scene);
    for message in [
        vec![],
        vec![1],
        header(1, 1, 0)[..5].to_vec(),
        header(5, 1, 4096),
        [header(5, 1, 40), vec![0; 17]].concat(),
    ] {
        let mut stream = UnixStream::connect(scene.daemon.socket(0)).unwrap();
        stream.write_all(&message).unwrap();
        scene.unharmed();
        drop(stream);
        serves_again(&mut scene);
        free_the_socket(&mut scene);
    }
    serves_again(&mut scene);
}

#[test]
fn a_front_end_that_says_nothing_holds_up_only_its_own_vgpu() {
    let mut scene = Scene::new();
    free_the_socket(&mut scene);
    let silent = UnixStream::connect(scene.daemon.socket(0)).unwrap();
    for _ in 0..5 {
        scene.unharmed();
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(silent);
    serves_again(&mut scene);
}

#[test]
fn garbage_on_the_socket_ends_only_its_connection() {
    let mut scene = Scene::new();
    free_the_socket(&mut scene);
    let mut noise = 12345u32;
    for round in 0..200 {
        let mut stream = UnixStream::connect(scene.daemon.socket(0)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut random = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            noise >> 8
        };
        let mut bytes = match round % 4 {
            0 => vec![],
            1 => header(random() % 50, 1, random() % 64),
            2 => header(random() % 50, 9, 8),
            _ => header(random() % 50, random(), random()),
        };
        bytes.extend((0..random() % 400).map(|_| u8::try_from(random() & 0xff).unwrap()));
        // The daemon may hang up first.
        let _sent = stream.write_all(&bytes);
        let _answer = stream.read(&mut [0; 64]);
    }
    serves_again(&mut scene);
}

#[test]
fn a_second_front_end_waits_for_the_first_to_go() {
    let mut scene = Scene::new();
    let options = VmOptions { message_timeout: Duration::from_millis(300), ..VmOptions::default() };
    let second = LoopbackVm::connect(scene.daemon.socket(0), &options);
    assert!(matches!(second, Err(TransportError::Timeout { .. })), "{second:?}");
    scene.unharmed();
    free_the_socket(&mut scene);
    serves_again(&mut scene);
}

#[test]
fn a_front_end_that_hangs_up_in_mid_work_leaves_no_engine_behind() {
    let mut scene = Scene::new();
    for _ in 0..5 {
        let attacker = scene.attacker();
        let ring = Ring::new(&attacker);
        busy(&attacker, &ring);
        let engine = scene.daemon.engine(0);
        assert!(scene.daemon.children().contains(&engine));
        free_the_socket(&mut scene);
        until("the engine is gone", || !scene.daemon.children().contains(&engine));
        scene.unharmed();
        serves_again(&mut scene);
    }
    let (descriptors, _) = scene.daemon.footprint();
    for _ in 0..20 {
        free_the_socket(&mut scene);
        serves_again(&mut scene);
    }
    let (after, _) = scene.daemon.footprint();
    assert!(after <= descriptors + 8, "{descriptors} descriptors became {after}");
}

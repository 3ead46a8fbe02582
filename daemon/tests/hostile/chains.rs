//! Descriptor chains that no driver makes (virtio 1.3, 2.7).

use campanile_protocol::virtio_gpu::command::GET_DISPLAY_INFO;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::response;
use campanile_test_vmm::raw::RawDescriptor;
use campanile_test_vmm::raw::RawRam;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::daemon::NEVER;
use crate::scene::Scene;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Where the answer goes.
const ANSWER: u64 = 1024;

fn readable(ram: &RawRam, length: u32) -> RawDescriptor {
    RawDescriptor { address: ram.address(), length, flags: NEXT, next: 1 }
}

fn writable(ram: &RawRam) -> RawDescriptor {
    RawDescriptor { address: ram.address() + ANSWER, length: 1024, flags: WRITE, next: 0 }
}

/// What the device wrote, if anything.
fn answer(scene: &Scene, ram: &RawRam, chain: &[RawDescriptor]) -> Option<u32> {
    let wrote = scene.vm.raw().chain(0, chain).unwrap().wait(Some(NEVER)).unwrap();
    let mut bytes = [0; size_of::<Header>()];
    ram.memory().read(ANSWER, &mut bytes).unwrap();
    (wrote > 0).then(|| Header::read_from_bytes(&bytes).unwrap().kind)
}

#[test]
fn a_truncated_command_is_refused() {
    let mut scene = Scene::new();
    let ram = scene.vm.raw().ram(4096).unwrap();
    let header = Header { kind: GET_DISPLAY_INFO, ..Header::default() };
    ram.memory().write(0, header.as_bytes()).unwrap();
    for length in 1..24 {
        let chain = [readable(&ram, length), writable(&ram)];
        assert_eq!(answer(&scene, &ram, &chain), Some(response::ERR_UNSPEC), "{length} bytes");
    }
    assert_eq!(answer(&scene, &ram, &[readable(&ram, 24), writable(&ram)]), Some(response::OK_DISPLAY_INFO));
    scene.unharmed();
}

#[test]
fn a_request_of_more_than_the_limit_is_refused() {
    let mut scene = Scene::new();
    let ram = scene.vm.raw().ram(12 << 20).unwrap();
    let whole = [readable(&ram, 12 << 20), writable(&ram)];
    assert_eq!(answer(&scene, &ram, &whole), Some(response::ERR_UNSPEC));
    let mut pieces: Vec<RawDescriptor> =
        (1..13).map(|next| RawDescriptor { next, ..readable(&ram, 1 << 20) }).collect();
    pieces.push(writable(&ram));
    assert_eq!(answer(&scene, &ram, &pieces), Some(response::ERR_UNSPEC));
    scene.unharmed();
}

#[test]
fn a_looped_chain_is_given_back() {
    let mut scene = Scene::new();
    let ram = scene.vm.raw().ram(4096).unwrap();
    assert_eq!(answer(&scene, &ram, &[RawDescriptor { next: 0, ..readable(&ram, 24) }]), None);
    let two = [readable(&ram, 24), RawDescriptor { next: 0, ..readable(&ram, 24) }];
    assert_eq!(answer(&scene, &ram, &two), None);
    let write = RawDescriptor { flags: WRITE | NEXT, next: 1, ..writable(&ram) };
    assert!(matches!(answer(&scene, &ram, &[readable(&ram, 24), write]), None | Some(response::ERR_UNSPEC)));
    scene.unharmed();
}

#[test]
fn descriptors_that_break_a_rule_are_refused() {
    let mut scene = Scene::new();
    let ram = scene.vm.raw().ram(4096).unwrap();
    let outside = RawDescriptor { address: 1 << 50, ..readable(&ram, 24) };
    let wraps = RawDescriptor { address: u64::MAX - 8, ..readable(&ram, 24) };
    let huge = RawDescriptor { length: u32::MAX, ..readable(&ram, 24) };
    let empty = readable(&ram, 0);
    for first in [outside, wraps, huge, empty] {
        assert_eq!(answer(&scene, &ram, &[first, writable(&ram)]), Some(response::ERR_UNSPEC), "{first:?}");
    }
    let late = [
        RawDescriptor { flags: WRITE | NEXT, next: 1, ..writable(&ram) },
        RawDescriptor { flags: 0, ..readable(&ram, 24) },
    ];
    assert_eq!(answer(&scene, &ram, &late), Some(response::ERR_UNSPEC), "readable after writable");
    let astray = RawDescriptor { flags: WRITE | NEXT, next: 60_000, ..writable(&ram) };
    let _answered_or_given_back = answer(&scene, &ram, &[readable(&ram, 24), astray]);
    // No room for an answer: the chain comes back without one.
    let tight = RawDescriptor { length: 4, ..writable(&ram) };
    let _cut = answer(&scene, &ram, &[readable(&ram, 24), tight]);
    assert_eq!(answer(&scene, &ram, &[RawDescriptor { flags: 0, ..readable(&ram, 24) }]), None);
    let outside = RawDescriptor { address: 1 << 50, ..writable(&ram) };
    assert_eq!(answer(&scene, &ram, &[readable(&ram, 24), outside]), None);
    scene.unharmed();
}

#[test]
fn indirect_tables_that_break_a_rule_are_given_back() {
    let mut scene = Scene::new();
    let ram = scene.vm.raw().ram(1 << 20).unwrap();
    let table = |length, flags| RawDescriptor { address: ram.address() + 4096, length, flags, next: 0 };
    // An entry that is a table itself, and points to itself.
    let mut nested = (ram.address() + 4096).to_le_bytes().to_vec();
    nested.extend(16u32.to_le_bytes());
    nested.extend(INDIRECT.to_le_bytes());
    nested.extend([0; 2]);
    ram.memory().write(4096, &nested).unwrap();
    for descriptor in [
        table(16, INDIRECT),
        table(0, INDIRECT),
        table(17, INDIRECT),
        table(u32::MAX, INDIRECT),
        table(512 << 10, INDIRECT),
        table(16, INDIRECT | NEXT),
        table(16, INDIRECT | WRITE),
    ] {
        assert_eq!(answer(&scene, &ram, &[descriptor]), None, "{descriptor:?}");
    }
    // A table that loops in itself.
    let mut looped = ram.address().to_le_bytes().to_vec();
    looped.extend(24u32.to_le_bytes());
    looped.extend(NEXT.to_le_bytes());
    looped.extend([0; 2]);
    ram.memory().write(4096, &looped).unwrap();
    assert_eq!(answer(&scene, &ram, &[table(16, INDIRECT)]), None);
    scene.unharmed();
}

#[test]
fn a_ring_whose_index_jumps_stops_alone() {
    let mut scene = Scene::new();
    drop(scene.give_neighbour_up());
    scene.vm.raw().head(0, 60_000).unwrap();
    scene.vm.raw().head(0, 256).unwrap();
    scene.vm.raw().advance(0, 5_000).unwrap();
    scene.unharmed();
    scene.vm.reset_device().unwrap();
    let attacker = scene.attacker();
    assert!(attacker.is_active());
    scene.unharmed();
}

#[test]
fn commands_on_the_cursor_queue_are_refused() {
    let mut scene = Scene::new();
    let ram = scene.vm.raw().ram(4096).unwrap();
    ram.memory().write(0, Header { kind: GET_DISPLAY_INFO, ..Header::default() }.as_bytes()).unwrap();
    let chain = [readable(&ram, 24), writable(&ram)];
    scene.vm.raw().chain(1, &chain).unwrap().wait(Some(NEVER)).unwrap();
    let mut bytes = [0; size_of::<Header>()];
    ram.memory().read(ANSWER, &mut bytes).unwrap();
    assert_eq!(Header::read_from_bytes(&bytes).unwrap().kind, response::ERR_UNSPEC);
    scene.unharmed();
}

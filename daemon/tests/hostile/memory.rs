//! Lists of mappings and residency requests that cannot be.

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::memory;
use campanile_protocol::control::memory::List;
use campanile_protocol::control::memory::MAX_LIST;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use crate::attacker::DATA_VA;
use crate::attacker::PAGE_VA;
use crate::packets::copy;
use crate::ring::Ring;
use crate::scene::Scene;

fn list<T: IntoBytes + Immutable>(argument: u32, entries: &[T]) -> Vec<u8> {
    let count = u32::try_from(entries.len()).unwrap();
    let mut body = [List { count, argument }.as_bytes(), entries.as_bytes()].concat();
    body.resize(body.len().next_multiple_of(8), 0);
    body
}

#[test]
fn lists_that_are_not_what_they_say_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let (blob, _memory) = attacker.memory(DATA_VA, 8192);
    let opcodes =
        [memory::MAP_LIST, memory::UNMAP_LIST, memory::MAKE_RESIDENT, memory::EVICT, memory::SET_PRIORITY];
    for opcode in opcodes {
        for count in [0, 1, 3, MAX_LIST, MAX_LIST + 1, u32::MAX] {
            let mut body = List { count, argument: 0 }.as_bytes().to_vec();
            body.extend([0xff; 24]);
            assert_eq!(attacker.status(opcode, &body), Status::InvalidParameter, "{opcode} {count}");
        }
        assert_eq!(attacker.status(opcode, &[]), Status::InvalidParameter);
    }
    let own = blob.resource_id();
    for opcode in [memory::MAKE_RESIDENT, memory::EVICT] {
        assert_eq!(attacker.status(opcode, &list(0x8000_0000, &[own])), Status::InvalidParameter);
        assert_eq!(attacker.status(opcode, &list(0, &[own, 77_777])), Status::InvalidResource);
        let mut odd = list(0, &[own]);
        odd[12] = 1;
        assert_eq!(attacker.status(opcode, &odd), Status::InvalidParameter, "what comes behind is zero");
    }
    for priority in [0, 1, u32::MAX] {
        assert_eq!(attacker.status(memory::SET_PRIORITY, &list(priority, &[own])), Status::InvalidParameter);
    }
    scene.unharmed();
}

#[test]
fn a_list_is_mapped_and_unmapped_whole_or_not_at_all() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let (blob, _memory) = attacker.memory(DATA_VA, 8192);
    let base = 1 << 32;
    let map = |va| MapMemory { resource: blob.resource_id(), flags: 1, offset: 0, va, size: 4096 };
    let unmap = |va| UnmapMemory { va, size: 4096 };
    for wrong in [base, base + 4096, DATA_VA + 4096, PAGE_VA, 0, u64::MAX - 4095, base + 1] {
        let entries = [map(base), map(base + 4096), map(wrong)];
        assert_eq!(
            attacker.status(memory::MAP_LIST, &list(0, &entries)),
            Status::InvalidAddress,
            "{wrong:#x}"
        );
    }
    // Nothing of those was left.
    assert_eq!(attacker.status(memory::UNMAP_LIST, &list(0, &[unmap(base)])), Status::InvalidAddress);
    let entries = [map(base), map(base + 4096)];
    assert_eq!(attacker.status(memory::MAP_LIST, &list(0, &entries)), Status::Ok);
    for wrong in [unmap(base), unmap(base + 8192), UnmapMemory { va: DATA_VA, size: 4096 }] {
        let entries = [unmap(base), unmap(base + 4096), wrong];
        assert_eq!(attacker.status(memory::UNMAP_LIST, &list(0, &entries)), Status::InvalidAddress);
    }
    let page = UnmapMemory { va: PAGE_VA, size: DEVICE_PAGE_BYTES };
    assert_eq!(attacker.status(memory::UNMAP_LIST, &list(0, &[unmap(base), page])), Status::Busy);
    let entries = [unmap(base), unmap(base + 4096)];
    assert_eq!(attacker.status(memory::UNMAP_LIST, &list(0, &entries)), Status::Ok);
    scene.unharmed();
}

#[test]
fn memory_that_is_evicted_mapped_moved_and_freed_under_a_running_queue_harms_its_owner_alone() {
    let mut scene = Scene::with(&["--tdr-debug", "3"]);
    for round in 0..10u64 {
        let attacker = scene.attacker();
        let ring = Ring::new(&attacker);
        let (from, size) = (1 << 32, 2 << 20);
        let blob = attacker.context.create_blob(BlobMemory::Vram, 2 * size).unwrap();
        let resource = blob.resource_id();
        assert_eq!(attacker.map(resource, 0, from, 2 * size), Status::Ok);
        // The same bytes at a second address, written through both.
        assert_eq!(attacker.map(resource, 0, from << 1, 2 * size), Status::Ok);
        let packets = [copy(from, from + size, size), copy((from << 1) + size, from << 1, size)].concat();
        ring.run_first(&attacker, &packets);
        for _ in 0..round {
            let now = list(memory::EVICT_NOW, &[resource]);
            assert_eq!(attacker.status(memory::EVICT, &now), Status::Ok);
            assert_eq!(attacker.status(memory::MAKE_RESIDENT, &list(0, &[resource])), Status::Ok);
            assert_eq!(attacker.status(memory::EVICT, &list(0, &[resource])), Status::Ok);
        }
        assert_eq!(attacker.status(memory::EVICT, &list(memory::EVICT_NOW, &[resource])), Status::Ok);
        attacker.context.destroy_blob(blob).unwrap();
        // Its queue still runs, or its device is lost by the unmap: both are its own affair.
        assert_eq!(attacker.unmap(from, 2 * size), Status::Ok);
        scene.neighbour.as_mut().unwrap().compute();
    }
    scene.unharmed();
}

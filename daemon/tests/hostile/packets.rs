//! DMA buffers that break a rule: the device that submitted them is in error, and nobody else.

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_DMA_FAULT;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_protocol::handle::Handle;
use campanile_protocol::packet;
use campanile_protocol::packet::Copy;
use campanile_protocol::packet::Dispatch;
use campanile_protocol::packet::Fence;
use campanile_protocol::packet::Fill;
use campanile_protocol::packet::PacketHeader;
use campanile_protocol::packet::Timestamp;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::DATA_VA;
use crate::ring::BYTES;
use crate::ring::PACKETS;
use crate::ring::Ring;
use crate::scene::Scene;

/// Where a buffer that may only be read is mapped.
const READ_ONLY: u64 = 1 << 33;

fn packet(opcode: u16, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(size_of::<PacketHeader>() + body.len()).unwrap();
    [PacketHeader { opcode, flags: 0, size }.as_bytes(), body].concat()
}

/// A fill.
pub(crate) fn fill(target_va: u64, size: u64, value: u32) -> Vec<u8> {
    packet(packet::FILL, Fill { target_va, size, value, reserved: 0 }.as_bytes())
}

/// A copy.
pub(crate) fn copy(source_va: u64, target_va: u64, size: u64) -> Vec<u8> {
    packet(packet::COPY, Copy { source_va, target_va, size }.as_bytes())
}

/// A wait.
pub(crate) fn wait(va: u64, value: u64) -> Vec<u8> {
    packet(packet::FENCE_WAIT, Fence { va, value }.as_bytes())
}

fn signal(va: u64) -> Vec<u8> {
    packet(packet::FENCE_SIGNAL, Fence { va, value: 1 }.as_bytes())
}

fn ready(scene: &Scene) -> (Attacker, Ring) {
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let blob = attacker.context.create_blob(BlobMemory::Vram, 4096).unwrap();
    let map = MapMemory { resource: blob.resource_id(), flags: 0, offset: 0, va: READ_ONLY, size: 4096 };
    assert_eq!(attacker.status(message::MAP_MEMORY, map.as_bytes()), Status::Ok);
    (attacker, ring)
}

/// Runs each by the doorbell and by SUBMIT, each on a device of its own, and wants that device status.
fn faults(scene: &mut Scene, expected: u64, cases: &[Vec<u8>]) {
    for (index, packets) in cases.iter().enumerate() {
        let (attacker, ring) = ready(scene);
        ring.run_first(&attacker, packets);
        assert_eq!(attacker.fault(), expected, "case {index} by doorbell");
        assert_eq!(ring.status(&attacker), DoorbellStatus::DisconnectedAbort);
        assert_eq!(attacker.word(ring.queue.fence_offset), 0, "case {index}: the fence rose");
        assert_eq!(attacker.named(message::CONNECT_DOORBELL, ring.bell.doorbell), Status::DeviceLost);

        let (attacker, ring) = ready(scene);
        let queue = attacker.create_queue(ring.context, 0);
        ring.packets(packets);
        let length = u32::try_from(packets.len()).unwrap();
        let submit = Submit { queue: queue.queue, buffer_va: DATA_VA + PACKETS, length, flags: 0 };
        assert_eq!(attacker.status(message::SUBMIT, submit.as_bytes()), Status::Ok);
        assert_eq!(attacker.fault(), expected, "case {index} by SUBMIT");
        assert_eq!(attacker.word(queue.fence_offset), 0, "case {index}: the fence rose");
        assert_eq!(ring.status(&attacker), DoorbellStatus::DisconnectedAbort);
    }
    scene.unharmed();
}

#[test]
fn packets_that_lie_about_their_size_stop_their_device() {
    let mut scene = Scene::new();
    let sized = |size, bytes: usize| {
        let mut packet = PacketHeader { opcode: packet::NOP, flags: 0, size }.as_bytes().to_vec();
        packet.resize(bytes, 0);
        packet
    };
    let mut cases: Vec<Vec<u8>> =
        [0, 4, 7, 12, 32, u32::MAX, u32::MAX - 7].map(|size| sized(size, 24)).into();
    cases.push(packet(packet::COPY, &[0; 16]));
    cases.push(packet(packet::COPY, &[0; 32]));
    cases.push(packet(packet::FILL, &[]));
    cases.push(packet(packet::BARRIER, &[0; 8]));
    cases.push(packet(packet::FENCE_SIGNAL, &[0; 8]));
    cases.push(packet(packet::TIMESTAMP, &[0; 16]));
    cases.push([packet(packet::NOP, &[0; 8]), vec![0; 8]].concat());
    faults(&mut scene, DEVICE_DMA_FAULT, &cases);
}

#[test]
fn unknown_packets_and_flags_stop_their_device() {
    let mut scene = Scene::new();
    let mut cases: Vec<Vec<u8>> = [9, 10, 0x100, u16::MAX].map(|opcode| packet(opcode, &[0; 24])).into();
    cases.push(PacketHeader { opcode: packet::NOP, flags: 1, size: 8 }.as_bytes().to_vec());
    faults(&mut scene, DEVICE_DMA_FAULT, &cases);
}

#[test]
fn stores_to_what_may_only_be_read_stop_their_device() {
    let mut scene = Scene::new();
    let cases = [
        copy(DATA_VA, READ_ONLY, 4096),
        fill(READ_ONLY, 4096, 1),
        signal(READ_ONLY),
        packet(packet::TIMESTAMP, Timestamp { va: READ_ONLY }.as_bytes()),
    ];
    faults(&mut scene, DEVICE_PAGE_FAULT, &cases);
}

#[test]
fn transfers_that_overflow_or_overlap_stop_their_device() {
    let mut scene = Scene::new();
    let inside = DATA_VA + (64 << 10);
    let cases = [
        copy(inside, inside + 4096, 8192),
        copy(inside + 4096, inside, 8192),
        copy(inside, inside, 8),
        copy(u64::MAX, inside, 8),
        copy(inside, u64::MAX - 3, 8),
        copy(inside, inside + (32 << 10), u64::MAX),
        fill(inside + 2, 4, 1),
        fill(inside, 6, 1),
    ];
    faults(&mut scene, DEVICE_DMA_FAULT, &cases);
}

#[test]
fn fences_at_misaligned_words_stop_their_device() {
    let mut scene = Scene::new();
    let inside = DATA_VA + (64 << 10);
    let mut cases = Vec::new();
    for offset in [1, 2, 4, 7] {
        cases.extend([signal(inside + offset), wait(inside + offset, 1)]);
        cases.push(packet(packet::TIMESTAMP, Timestamp { va: inside + offset }.as_bytes()));
    }
    faults(&mut scene, DEVICE_DMA_FAULT, &cases);
}

#[test]
fn a_dispatch_on_the_copy_node_stops_its_device() {
    let mut scene = Scene::new();
    let dispatch = |binding_count, constant_bytes| {
        let head = Dispatch {
            kernel: Handle::new(0, 1),
            groups: [1; 3],
            binding_count,
            constant_bytes,
            reserved: 0,
        };
        packet(packet::DISPATCH, head.as_bytes())
    };
    let cases = [
        dispatch(0, 0),
        dispatch(1, 0),
        dispatch(u32::MAX, 0),
        dispatch(0, u32::MAX),
        dispatch(16, 3),
        packet(packet::DISPATCH, &[0; 8]),
        packet(packet::DISPATCH_INDIRECT, &[0xff; 24]),
    ];
    faults(&mut scene, DEVICE_DMA_FAULT, &cases);
}

#[test]
fn buffers_that_cannot_be_fetched_stop_their_device() {
    let mut scene = Scene::new();
    for buffer_va in [1 << 34, DATA_VA + BYTES - 8, 0, (1 << 39) - 8, u64::MAX - 7] {
        let (attacker, ring) = ready(&scene);
        let queue = attacker.create_queue(ring.context, 0).queue;
        let submit = Submit { queue, buffer_va, length: 64, flags: 0 };
        assert_eq!(attacker.status(message::SUBMIT, submit.as_bytes()), Status::Ok);
        assert_eq!(attacker.fault(), DEVICE_PAGE_FAULT, "{buffer_va:#x}");
    }
    scene.unharmed();
}

#[test]
fn transfers_outside_the_address_space_stop_their_device() {
    let mut scene = Scene::new();
    let end = 1 << 39;
    let cases = [
        fill(0, 4096, 1),
        fill(4096, 4, 1),
        fill(end - 4096, 8192, 1),
        fill(end, 4096, 1),
        fill(1 << 62, 4096, 1),
        fill(DATA_VA + BYTES - 4, 8, 1),
        copy(0, DATA_VA, 4096),
        copy(DATA_VA, 0, 4096),
        copy(DATA_VA + BYTES - 4096, DATA_VA, 4100),
        copy(DATA_VA, end - 4096, 8192),
        copy(1 << 62, DATA_VA, 4096),
    ];
    faults(&mut scene, DEVICE_PAGE_FAULT, &cases);
    scene.unharmed();
}

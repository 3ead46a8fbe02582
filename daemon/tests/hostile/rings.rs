//! Rings that no driver writes (UMS-93).

use std::sync::atomic::Ordering;

use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_REQUIRE_SECONDARY;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_DMA_FAULT;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_protocol::handle::Handle;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::DATA_VA;
use crate::daemon::NEVER;
use crate::packets::fill;
use crate::packets::wait;
use crate::ring::ENTRIES;
use crate::ring::Ring;
use crate::ring::doorbell;
use crate::scene::Scene;

fn stopped(attacker: &Attacker, ring: &Ring, expected: u64, what: &str) {
    assert_eq!(attacker.fault(), expected, "{what}");
    assert_eq!(ring.status(attacker), DoorbellStatus::DisconnectedAbort, "{what}");
    assert_eq!(attacker.named(message::CONNECT_DOORBELL, ring.bell.doorbell), Status::DeviceLost, "{what}");
    // As after any loss: destroy, open anew, go on (UMS-100).
    assert_eq!(attacker.named(message::DESTROY_DOORBELL, ring.bell.doorbell), Status::Ok);
    assert_eq!(attacker.status(message::DESTROY_DEVICE, &[]), Status::Ok);
    assert_eq!(attacker.open_device(&attacker.create_device()), Some(Status::Ok));
    let ring = Ring::new(attacker);
    ring.run_first(attacker, &fill(ring.va + (64 << 10), 4096, 3));
    ring.reached(attacker, 1);
}

/// What is done to an entry, in words and in code, and the device status that follows.
type Case = (&'static str, fn(RingEntry) -> RingEntry, u64);

#[test]
fn write_pointers_that_jump_stop_their_device() {
    let mut scene = Scene::new();
    for write_pointer in [u64::from(ENTRIES) + 1, 1 << 32, u64::MAX, u64::MAX / 2] {
        let attacker = scene.attacker();
        let ring = Ring::new(&attacker);
        ring.ring(&attacker, write_pointer);
        stopped(&attacker, &ring, DEVICE_DMA_FAULT, "forwards");
    }
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    for index in 0..4 {
        ring.write(index, &ring.entry(0, index + 1));
    }
    ring.ring(&attacker, 4);
    ring.reached(&attacker, 4);
    ring.ring(&attacker, 3);
    stopped(&attacker, &ring, DEVICE_DMA_FAULT, "backwards");
    scene.unharmed();
}

#[test]
fn ring_entries_that_break_a_rule_stop_their_device() {
    let mut scene = Scene::new();
    let cases: [Case; 12] = [
        ("flags", |entry| RingEntry { flags: 1, ..entry }, DEVICE_DMA_FAULT),
        ("reserved", |entry| RingEntry { reserved: 1, ..entry }, DEVICE_DMA_FAULT),
        ("too long", |entry| RingEntry { length: (64 << 10) + 8, ..entry }, DEVICE_DMA_FAULT),
        ("much too long", |entry| RingEntry { length: u32::MAX, ..entry }, DEVICE_DMA_FAULT),
        ("length of no words", |entry| RingEntry { length: 12, ..entry }, DEVICE_DMA_FAULT),
        (
            "misaligned",
            |entry| RingEntry { buffer_va: entry.buffer_va + 4, length: 8, ..entry },
            DEVICE_DMA_FAULT,
        ),
        ("fence value 0", |entry| RingEntry { fence_value: 0, ..entry }, DEVICE_DMA_FAULT),
        ("null", |entry| RingEntry { buffer_va: 0, length: 8, ..entry }, DEVICE_PAGE_FAULT),
        ("not mapped", |entry| RingEntry { buffer_va: 1 << 34, length: 8, ..entry }, DEVICE_PAGE_FAULT),
        (
            "past the end",
            |entry| RingEntry { buffer_va: (1 << 39) - 8, length: 16, ..entry },
            DEVICE_PAGE_FAULT,
        ),
        ("outside", |entry| RingEntry { buffer_va: u64::MAX - 7, length: 8, ..entry }, DEVICE_PAGE_FAULT),
        (
            "over the edge",
            |entry| RingEntry { buffer_va: DATA_VA + crate::ring::BYTES - 8, length: 16, ..entry },
            DEVICE_PAGE_FAULT,
        ),
    ];
    for (what, change, expected) in cases {
        let attacker = scene.attacker();
        let ring = Ring::new(&attacker);
        ring.write(0, &change(ring.entry(0, 1)));
        ring.ring(&attacker, 1);
        stopped(&attacker, &ring, expected, what);
    }
    scene.unharmed();
}

#[test]
fn fence_values_that_do_not_rise_stop_their_device() {
    let mut scene = Scene::new();
    for second in [0, 1, 5, 4] {
        let attacker = scene.attacker();
        let ring = Ring::new(&attacker);
        ring.write(0, &ring.entry(0, 5));
        ring.write(1, &ring.entry(0, second));
        ring.ring(&attacker, 2);
        stopped(&attacker, &ring, DEVICE_DMA_FAULT, "not risen");
    }
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    ring.write(0, &ring.entry(0, u64::MAX));
    ring.ring(&attacker, 1);
    ring.reached(&attacker, u64::MAX);
    ring.write(1, &ring.entry(0, 1));
    ring.ring(&attacker, 2);
    stopped(&attacker, &ring, DEVICE_DMA_FAULT, "after the last value there is");
    scene.unharmed();
}

#[test]
fn scribbled_words_of_the_device_page_harm_only_their_owner() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    for value in [u64::MAX, 0, 0x5555_5555_5555_5555] {
        for offset in (0..device_page::DEVICE_PAGE_BYTES).step_by(8) {
            attacker.page.word(offset).unwrap().store(value, Ordering::SeqCst);
        }
        let _whatever =
            attacker.start(message::CONNECT_DOORBELL, 1, ring.bell.doorbell.as_bytes()).1.wait(Some(NEVER));
        scene.unharmed();
    }
    let sequence = attacker.sequence();
    let bytes = crate::attacker::frame(message::DESTROY_DEVICE, 1, sequence, &[]);
    assert_eq!(
        crate::wire::submit(&scene.vm, attacker.id(), bytes.len(), &bytes),
        campanile_protocol::virtio_gpu::response::OK_NODATA
    );
    assert_eq!(attacker.response(1, sequence).0, Status::Ok);
    scene.unharmed();
}

#[test]
fn a_wait_that_never_ends_holds_up_nobody_and_ends_with_its_device() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    ring.run_first(&attacker, &wait(ring.va + (64 << 10), 1));
    let until = WaitFence { queue: ring.queue.queue, value: 1 };
    let (_, waiting) = attacker.start(message::WAIT_FENCE, 9, until.as_bytes());
    scene.unharmed();
    assert!(!waiting.is_done());
    assert_eq!(attacker.status(message::DESTROY_DEVICE, &[]), Status::Ok);
    waiting.wait(Some(NEVER)).unwrap();
    scene.unharmed();
}

#[test]
fn waits_for_a_queue_that_is_destroyed_are_answered() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let ordinary = attacker.create_queue(ring.context, 0).queue;
    for queue in [ordinary, ring.queue.queue] {
        let (sequence, waiting) =
            attacker.start(message::WAIT_FENCE, 9, WaitFence { queue, value: 99 }.as_bytes());
        if queue == ring.queue.queue {
            assert_eq!(attacker.named(message::DESTROY_DOORBELL, ring.bell.doorbell), Status::Ok);
        }
        assert_eq!(attacker.named(message::DESTROY_QUEUE, queue), Status::Ok);
        waiting.wait(Some(NEVER)).unwrap();
        assert_eq!(attacker.response(9, sequence).0, Status::InvalidHandle);
    }
    scene.unharmed();
}

#[test]
fn a_thirty_third_wait_is_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let forever = WaitFence { queue: ring.queue.queue, value: 7 };
    let waits: Vec<_> =
        (0..32).map(|_| attacker.start(message::WAIT_FENCE, 9, forever.as_bytes()).1).collect();
    assert_eq!(attacker.status(message::WAIT_FENCE, forever.as_bytes()), Status::OutOfResources);
    ring.write(0, &ring.entry(0, 7));
    ring.ring(&attacker, 1);
    for wait in waits {
        wait.wait(Some(NEVER)).unwrap();
    }
    assert_eq!(attacker.status(message::WAIT_FENCE, forever.as_bytes()), Status::Ok);
    scene.unharmed();
}

#[test]
fn a_ring_unmapped_under_its_queue_stops_its_device() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    ring.run_first(&attacker, &fill(ring.va + (64 << 10), 4096, 3));
    ring.reached(&attacker, 1);
    assert_eq!(attacker.unmap(ring.va, crate::ring::BYTES), Status::Ok);
    ring.write(1, &ring.entry(0, 2));
    ring.ring(&attacker, 2);
    assert_eq!(attacker.fault(), DEVICE_PAGE_FAULT);
    scene.unharmed();
}

#[test]
fn doorbells_that_cannot_be_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let (blob, _memory) = attacker.memory(DATA_VA, crate::ring::BYTES);
    let (other, _memory) = attacker.memory(1 << 32, 8192);
    let read_only = MapMemory { resource: blob.resource_id(), flags: 0, offset: 0, va: 1 << 33, size: 8192 };
    assert_eq!(attacker.status(message::MAP_MEMORY, read_only.as_bytes()), Status::Ok);
    let context = attacker.create_context();
    let queue = attacker.create_queue(context, QUEUE_USER_MODE_SUBMISSION).queue;
    let right = doorbell(queue, &blob, DATA_VA);
    let last = DATA_VA + crate::ring::BYTES;
    let resource = Status::InvalidResource;
    let cases = [
        (CreateDoorbell { ring_entries: 0, ..right }, Status::InvalidParameter),
        (CreateDoorbell { ring_entries: 1, ..right }, Status::InvalidParameter),
        (CreateDoorbell { ring_entries: 3, ..right }, Status::InvalidParameter),
        (CreateDoorbell { ring_entries: 1 << 17, ..right }, Status::InvalidParameter),
        (CreateDoorbell { ring_entries: u32::MAX, ..right }, Status::InvalidParameter),
        (CreateDoorbell { flags: 1 << 31, ..right }, Status::InvalidParameter),
        (CreateDoorbell { reserved: 1, ..right }, Status::InvalidParameter),
        (CreateDoorbell { private_bytes: u32::MAX, ..right }, Status::InvalidParameter),
        (CreateDoorbell { flags: DOORBELL_REQUIRE_SECONDARY, ..right }, Status::NotSupported),
        (CreateDoorbell { queue: Handle::NONE, ..right }, Status::InvalidHandle),
        (CreateDoorbell { queue: Handle::new(queue.index(), 77), ..right }, Status::InvalidHandle),
        (CreateDoorbell { ring_resource: 0, ..right }, resource),
        (CreateDoorbell { control_resource: u32::MAX, ..right }, resource),
        (CreateDoorbell { ring_resource: other.resource_id(), ..right }, Status::InvalidAddress),
        (CreateDoorbell { control_resource: other.resource_id(), ..right }, Status::InvalidAddress),
        (CreateDoorbell { ring_va: right.ring_va + 8, ..right }, Status::InvalidAddress),
        (CreateDoorbell { control_va: right.control_va + 8, ..right }, Status::InvalidAddress),
        (CreateDoorbell { ring_va: 0, ..right }, Status::InvalidAddress),
        (CreateDoorbell { ring_va: last - 64, ..right }, Status::InvalidAddress),
        (CreateDoorbell { ring_va: u64::MAX - 63, ..right }, Status::InvalidAddress),
        (CreateDoorbell { control_va: 1 << 39, ..right }, Status::InvalidAddress),
        (CreateDoorbell { control_va: 1 << 33, ..right }, Status::InvalidAddress),
    ];
    for (create, expected) in cases {
        assert_eq!(attacker.status(message::CREATE_DOORBELL, create.as_bytes()), expected, "{create:?}");
    }
    assert_eq!(attacker.status(message::CREATE_DOORBELL, right.as_bytes()), Status::Ok);
    assert_eq!(attacker.status(message::CREATE_DOORBELL, right.as_bytes()), Status::Busy);
    scene.unharmed();
}

//! Doorbells from create to destroy.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::reply::DoorbellCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::handle::Handle;
use campanile_protocol::queue::ring;

use crate::processes::EngineView;
use crate::raw::RawGuest;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::ENTRIES;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::RawRing;
use crate::raw_queue::copy_guest;
use crate::support::Daemon;
use crate::support::until;

/// Of 64 MiB of video memory, while somebody has the first nobody gets the second.
pub(crate) const BIG: u64 = 24 << 20;
pub(crate) const MOST: u64 = 48 << 20;

pub(crate) fn create(guest: &RawGuest, doorbell: &CreateDoorbell) -> Result<DoorbellCreated, Status> {
    guest.ask(message::CREATE_DOORBELL, doorbell)
}

pub(crate) fn user_queue(guest: &RawGuest, context: Handle) -> Handle {
    guest.queue(context, QUEUE_USER_MODE_SUBMISSION).unwrap().queue
}

// conformance: one answer is read, and each line is a field of it
#[test]
fn ums_31_ums_32_ums_40_ums_43_create_gives_places_in_the_device_page() {
    let daemon = Daemon::dedicated(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let ring = RawRing::new(&guest);
    let private_data = *b"sixteen bytes in";
    let mut given = Vec::new();
    for _ in 0..3 {
        let doorbell =
            CreateDoorbell { private_bytes: 16, private_data, ..ring.doorbell(user_queue(&guest, context)) };
        let made = create(&guest, &doorbell).unwrap();
        assert_ne!(made.doorbell, Handle::NONE);
        assert_eq!(made.private_data, private_data);
        assert!(made.summary_bit.is_power_of_two());
        given.extend([made.cell_offset, made.status_offset, made.last_queued_offset]);
    }
    // Not null, inside, 64 bits each, and nobody else's.
    assert!(given.iter().all(|place| *place != 0 && place % 8 == 0 && place + 8 <= DEVICE_PAGE_BYTES));
    let count = given.len();
    given.sort_unstable();
    given.dedup();
    assert_eq!(given.len(), count);
    let more = CreateDoorbell { private_bytes: 17, ..ring.doorbell(user_queue(&guest, context)) };
    assert_eq!(create(&guest, &more), Err(Status::InvalidParameter));
}

#[test]
fn ums_40_a_ring_control_holds_write_and_read_pointer_wherever_it_lies() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    assert_eq!(ring::CONTROL_WRITE_POINTER, 0);
    // With an allocation of its own, and behind the ring in one with it.
    for shares in [false, true] {
        let mut memory = RawRing::new(&guest);
        if shares {
            memory.ring = guest.vram(8192);
            memory.control = RawRing::new(&guest).ring;
        }
        let queue = guest.queue(context, QUEUE_USER_MODE_SUBMISSION).unwrap();
        let mut doorbell = memory.doorbell(queue.queue);
        if shares {
            doorbell.control_resource = doorbell.ring_resource;
            doorbell.control_va = memory.ring.va + 4096;
        }
        let bell = create(&guest, &doorbell).unwrap();
        let mut made =
            RawQueue { guest: guest.clone(), created: queue, bell, ring: memory, written: 0, value: 0 };
        made.put(&CommandBuffer::new());
        let (control, at) = if shares { (&made.ring.ring, 4096) } else { (&made.ring.control, 0) };
        control.word(at + ring::CONTROL_WRITE_POINTER).store(1, Ordering::Release);
        assert_eq!(made.connect(), Ok(CONNECTED));
        made.wait(1);
        assert_eq!(control.word(at + ring::CONTROL_READ_POINTER).load(Ordering::Acquire), 1);
    }
}

#[test]
fn ums_33_a_create_takes_no_physical_doorbell() {
    let daemon = Daemon::steady(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut connected = RawQueue::new(&guest, context);
    assert_eq!(connected.connect(), Ok(CONNECTED));
    let slot = EngineView::of(&daemon).slot(0);
    let more: Vec<RawQueue> = (0..5).map(|_| RawQueue::new(&guest, context)).collect();
    assert!(more.iter().all(|queue| queue.status() == RETRY));
    assert_eq!((connected.status(), EngineView::of(&daemon).slot(0)), (CONNECTED, slot));
    connected.run(&CommandBuffer::new());
}

#[test]
fn ums_34_ums_35_ums_36_before_the_first_connect_a_ring_reaches_nothing() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut other = RawQueue::new(&guest, context);
    assert_eq!(other.connect(), Ok(CONNECTED));
    let mut new = RawQueue::new(&guest, context);
    assert_eq!(new.status(), RETRY);
    assert_eq!(new.bell.summary_bit, other.bell.summary_bit);
    for _ in 0..ENTRIES {
        assert_eq!(new.submit(&CommandBuffer::new()), RETRY);
        other.run(&CommandBuffer::new());
    }
    assert_eq!((new.fence(), new.read_pointer(), new.status()), (0, 0, RETRY));
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
    // It was good work all the while.
    assert_eq!(new.connect(), Ok(CONNECTED));
    new.wait(u64::from(ENTRIES));
}

#[test]
fn ums_34_ums_36_a_new_doorbell_knows_nothing_of_what_was_rung_in_its_place_before() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut neighbour = RawQueue::new(&guest, context);
    assert_eq!(neighbour.connect(), Ok(CONNECTED));
    for _ in 0..20 {
        let mut old = RawQueue::new(&guest, context);
        assert_eq!(old.connect(), Ok(CONNECTED));
        for _ in 0..5 {
            old.run(&CommandBuffer::new());
        }
        guest.name(message::DESTROY_DOORBELL, old.bell.doorbell).unwrap();
        guest.name(message::DESTROY_QUEUE, old.created.queue).unwrap();
        let mut new = RawQueue::new(&guest, context);
        assert_eq!(
            (new.bell.cell_offset, new.bell.status_offset),
            (old.bell.cell_offset, old.bell.status_offset)
        );
        assert_eq!(new.connect(), Ok(CONNECTED));
        // The rings of a neighbour have the engine read its cell.
        for _ in 0..5 {
            neighbour.run(&CommandBuffer::new());
        }
        assert_eq!((guest.device_status(), new.fence()), (DEVICE_ACTIVE, 0));
        new.run(&CommandBuffer::new());
        guest.name(message::DESTROY_DOORBELL, new.bell.doorbell).unwrap();
        guest.name(message::DESTROY_QUEUE, new.created.queue).unwrap();
    }
}

#[test]
fn ums_37_a_create_that_fails_leaves_nothing_behind() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let queue = user_queue(&guest, context);
    let good = RawRing::new(&guest);
    for round in 0..20 {
        let big = guest.unmapped_memory(BlobMemory::GuestRam, 4096);
        guest.map(&big, 0).unwrap();
        let ring = guest.vram(BIG);
        let mut doorbell = good.doorbell(queue);
        doorbell.ring_resource = ring.resource();
        doorbell.ring_va = ring.va;
        // The ring is fine. The control is not: it cannot be written.
        doorbell.control_resource = big.resource();
        doorbell.control_va = big.va;
        assert_eq!(create(&guest, &doorbell), Err(Status::InvalidAddress), "round {round}");
        assert!(!guest.can_have(MOST));
        guest.unmap(&ring);
        guest.free(ring);
        until("the memory of a ring that no doorbell has", || guest.can_have(MOST));
    }
    assert!(create(&guest, &good.doorbell(queue)).is_ok(), "the queue has none yet");
}

#[test]
fn ums_39_ring_and_control_must_be_mapped_for_the_gpu() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let (stranger, _) = copy_guest(&vm);
    let queue = user_queue(&guest, context);
    let good = RawRing::new(&guest).doorbell(queue);
    let hidden = guest.unmapped_memory(BlobMemory::Vram, 4096);
    let read_only = guest.unmapped_memory(BlobMemory::Vram, 4096);
    guest.map(&read_only, 0).unwrap();
    let theirs = stranger.vram(4096);
    let bad = [
        (
            CreateDoorbell { ring_resource: hidden.resource(), ring_va: hidden.va, ..good },
            Status::InvalidAddress,
        ),
        (
            CreateDoorbell { control_resource: hidden.resource(), control_va: hidden.va, ..good },
            Status::InvalidAddress,
        ),
        // Mapped, but it is other memory than the one named.
        (CreateDoorbell { ring_resource: good.control_resource, ..good }, Status::InvalidAddress),
        (CreateDoorbell { control_resource: hidden.resource(), ..good }, Status::InvalidAddress),
        (CreateDoorbell { ring_resource: theirs.resource(), ..good }, Status::InvalidResource),
        (CreateDoorbell { control_resource: theirs.resource(), ..good }, Status::InvalidResource),
        (
            CreateDoorbell { control_resource: read_only.resource(), control_va: read_only.va, ..good },
            Status::InvalidAddress,
        ),
        (CreateDoorbell { ring_va: good.ring_va + 4, ..good }, Status::InvalidAddress),
        (CreateDoorbell { control_va: good.control_va + 4096 - 64, ..good }, Status::InvalidAddress),
        (CreateDoorbell { ring_entries: 1 << 16, ..good }, Status::InvalidAddress),
        (CreateDoorbell { ring_entries: 48, ..good }, Status::InvalidParameter),
        (CreateDoorbell { ring_entries: 0, ..good }, Status::InvalidParameter),
        (CreateDoorbell { ring_va: u64::MAX - 63, ..good }, Status::InvalidAddress),
    ];
    for (index, (doorbell, status)) in bad.iter().enumerate() {
        assert_eq!(create(&guest, doorbell), Err(*status), "case {index}");
    }
    guest.map(&hidden, MAP_WRITABLE).unwrap();
    let now_good = CreateDoorbell { control_resource: hidden.resource(), control_va: hidden.va, ..good };
    assert!(create(&guest, &now_good).is_ok());
}

#[test]
fn ums_41_ums_44_flags_that_nobody_has_are_refused() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let ring = RawRing::new(&guest);
    let good = ring.doorbell(user_queue(&guest, context));
    assert_eq!(
        create(&guest, &CreateDoorbell { flags: 1, ..good }),
        Err(Status::NotSupported),
        "a secondary VA"
    );
    // Bits 1 and 2 are a hint and the mode.
    for bit in 3..32 {
        assert_eq!(
            create(&guest, &CreateDoorbell { flags: 1 << bit, ..good }),
            Err(Status::InvalidParameter)
        );
    }
    assert_eq!(create(&guest, &CreateDoorbell { reserved: 1, ..good }), Err(Status::InvalidParameter));
    assert!(create(&guest, &good).is_ok());
}

#[test]
fn ums_42_ums_45_ums_84_a_queue_has_one_doorbell_and_may_get_another_with_a_larger_ring() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    for _ in 0..5 {
        queue.run(&CommandBuffer::new());
    }
    let larger = RawRing { ring: guest.vram(1 << 16), ..RawRing::new(&guest) };
    let resized =
        CreateDoorbell { flags: 2, ring_entries: ENTRIES * 4, ..larger.doorbell(queue.created.queue) };
    assert_eq!(create(&guest, &resized), Err(Status::Busy));
    guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell).unwrap();
    queue.bell = create(&guest, &resized).unwrap();
    queue.ring = larger;
    queue.written = 0;
    assert_eq!((queue.status(), queue.fence()), (RETRY, 5), "the fence goes on");
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    assert_eq!(queue.fence(), 6);
    // It is still the same queue: its fence does not start anew with the ring.
    guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell).unwrap();
    let again = RawRing::new(&guest);
    queue.bell = create(&guest, &again.doorbell(queue.created.queue)).unwrap();
    queue.ring = again;
    queue.written = 0;
    queue.value = 0;
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.submit(&CommandBuffer::new());
    until("the end of a device whose fence would go back", || guest.device_status() != DEVICE_ACTIVE);
    assert_eq!(queue.fence(), 6);
}

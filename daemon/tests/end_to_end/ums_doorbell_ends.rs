//! Doorbells that are destroyed.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::error::TransportError;
use campanile_protocol::control::message;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use crate::processes::EngineView;
use crate::raw::RawGuest;
use crate::raw::submit_frame;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::RawRing;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;
use crate::ums_doorbells::BIG;
use crate::ums_doorbells::MOST;
use crate::ums_doorbells::create;
use crate::ums_doorbells::user_queue;

#[test]
fn ums_78_ums_80_a_destroy_succeeds_in_every_state_and_its_handle_is_dead() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let fresh = RawQueue::new(&guest, context);
    let connected = RawQueue::new(&guest, context);
    assert_eq!(connected.connect(), Ok(CONNECTED));
    let aborted = RawQueue::new(&guest, context);
    for queue in [&fresh, &connected] {
        guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell).unwrap();
        for opcode in [message::DESTROY_DOORBELL, message::CONNECT_DOORBELL] {
            assert_eq!(guest.name(opcode, queue.bell.doorbell), Err(Status::InvalidHandle));
        }
    }
    // Another lives where the dead one did, and has another name.
    let next = RawQueue::new(&guest, context);
    assert_eq!(guest.name(message::CONNECT_DOORBELL, connected.bell.doorbell), Err(Status::InvalidHandle));
    assert_eq!((next.status(), next.connect()), (RETRY, Ok(CONNECTED)));
    for nobody in [Handle::NONE, Handle(u64::MAX), Handle::new(700, 1)] {
        assert_eq!(guest.name(message::DESTROY_DOORBELL, nobody), Err(Status::InvalidHandle));
    }
    guest.lose(context);
    guest.name(message::DESTROY_DOORBELL, aborted.bell.doorbell).unwrap();
    assert_eq!(guest.name(message::DESTROY_DOORBELL, aborted.bell.doorbell), Err(Status::InvalidHandle));
}

#[test]
fn ums_79_ums_82_a_doorbell_keeps_its_ring_until_it_is_destroyed() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    // Once the ring, once the control is the memory that cannot be had twice.
    for is_ring in [true, false] {
        let mut ring = RawRing::new(&guest);
        let big = guest.vram(BIG);
        let other = std::mem::replace(if is_ring { &mut ring.ring } else { &mut ring.control }, big);
        let bell = create(&guest, &ring.doorbell(user_queue(&guest, context))).unwrap();
        guest.name(message::CONNECT_DOORBELL, bell.doorbell).unwrap();
        assert_eq!(view.slots_in_use().len(), 1);
        let big = std::mem::replace(if is_ring { &mut ring.ring } else { &mut ring.control }, other);
        guest.unmap(&big);
        guest.free(big);
        guest.round_trip();
        assert!(!guest.can_have(MOST), "the engine may still read it");
        guest.name(message::DESTROY_DOORBELL, bell.doorbell).unwrap();
        assert!(view.slots_in_use().is_empty(), "the physical doorbell is free");
        until("the memory of a doorbell that is gone", || guest.can_have(MOST));
    }
}

#[test]
fn ums_81_a_destroyed_doorbell_leaves_its_ring_to_the_guest() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut gone = RawQueue::new(&guest, context);
    assert_eq!(gone.connect(), Ok(CONNECTED));
    gone.run(&CommandBuffer::new());
    guest.name(message::DESTROY_DOORBELL, gone.bell.doorbell).unwrap();
    guest.name(message::DESTROY_QUEUE, gone.created.queue).unwrap();
    let mut other = RawQueue::new(&guest, context);
    assert_eq!(other.connect(), Ok(CONNECTED));
    let copied = guest.vram(4096);
    for memory in [&gone.ring.ring, &gone.ring.control] {
        memory.word(256).store(0x5eed, Ordering::Release);
        other.run(&copy(memory.va, copied.va, 512));
        assert_eq!(copied.word(256).load(Ordering::Relaxed), 0x5eed, "for CPU and GPU as before");
    }
    let RawRing { ring, control, .. } = gone.ring;
    for memory in [ring, control] {
        guest.unmap(&memory);
        guest.free(memory);
    }
}

#[test]
fn ums_17_no_two_processes_share_a_page_of_doorbells() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (first, context) = copy_guest(&vm);
    let second = RawGuest::open(&vm);
    let mut queue = RawQueue::new(&first, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    // A process can neither open a device over the page of another, nor name it in any other way.
    let over = second.device_over(first.page_resource());
    let third = vm.open("third").unwrap();
    let refused = submit_frame(&third, 0, 1, message::CREATE_DEVICE, over.as_bytes()).wait(Some(NEVER));
    assert!(matches!(refused, Err(TransportError::Refused { .. })), "{refused:?}");
    let ring = RawRing::new(&second);
    let mut doorbell = ring.doorbell(user_queue(&second, second.context(Node::Copy)));
    doorbell.ring_resource = first.page_resource();
    assert_eq!(create(&second, &doorbell), Err(Status::InvalidResource));
    // What one does to its own page moves nothing of the other's.
    let status = queue.status();
    for offset in (0..DEVICE_PAGE_BYTES).step_by(8) {
        second.word(offset).store(0x4141_4141_4141_4141, Ordering::Relaxed);
    }
    assert_eq!(queue.status(), status);
    queue.run(&CommandBuffer::new());
}

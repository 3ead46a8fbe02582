//! Doorbells that end while work is pending.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;

use crate::operator::Operated;
use crate::processes::engine;
use crate::raw::RawCall;
use crate::raw::RawGuest;
use crate::raw::RawMemory;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::support::Daemon;

/// A bound that no test lives to see.
const NO_BOUND: [&str; 4] = ["--tdr-timeout", "3600000", "--spin", "600000000"];

fn destroy(queue: &RawQueue, slot: u32) -> RawCall {
    queue.guest.send(slot, message::DESTROY_DOORBELL, &Named { handle: queue.bell.doorbell })
}

fn is_destroyed(call: RawCall) -> bool {
    call.finish() == Ok(Vec::new())
}

/// Work that ends when a word is written.
fn gated(guest: &Arc<RawGuest>, queue: &mut RawQueue) -> RawMemory {
    let gate = guest.vram(4096);
    assert_eq!(queue.submit(&wait_for(gate.va, 1)), CONNECTED);
    gate
}

fn open(gate: &RawMemory) {
    gate.word(0).store(1, Ordering::Release);
}

#[test]
fn ums_126_a_doorbell_ends_when_what_was_rung_is_done() {
    let daemon = Daemon::with(&NO_BOUND);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    let gate = gated(&guest, &mut queue);
    for _ in 0..8 {
        assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED);
    }
    let end = destroy(&queue, 1);
    guest.round_trip();
    assert!(!end.is_done(), "its work is not done");
    assert_eq!(queue.status(), RETRY, "disconnected first");
    assert_eq!(queue.connect(), Err(Status::Busy));
    assert_eq!(guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell), Err(Status::Busy));
    assert_eq!(guest.name(message::DESTROY_QUEUE, queue.created.queue), Err(Status::Busy));
    open(&gate);
    assert!(is_destroyed(end));
    assert_eq!((queue.fence(), queue.read_pointer()), (9, 9));
    guest.name(message::DESTROY_QUEUE, queue.created.queue).unwrap();
}

#[test]
fn ums_87_pending_is_what_last_queued_says_that_completed_has_not_reached() {
    let daemon = Daemon::with(&NO_BOUND);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    // The same work, the same end: only the word differs.
    for (last_queued, is_pending) in [(0, false), (1, true)] {
        let mut queue = RawQueue::new(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        let gate = gated(&guest, &mut queue);
        guest.word(queue.bell.last_queued_offset).store(last_queued, Ordering::Release);
        let end = destroy(&queue, 1);
        guest.round_trip();
        if is_pending {
            assert!(!end.is_done());
            open(&gate);
        }
        assert!(is_destroyed(end));
    }
}

#[test]
fn ums_127_the_wait_for_work_that_never_ends_is_bounded() {
    let daemon = Daemon::with(&["--tdr-timeout", "500", "--spin", "600000000"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    let mut other = RawQueue::new(&guest, context);
    assert_eq!((queue.connect(), other.connect()), (Ok(CONNECTED), Ok(CONNECTED)));
    let _gate = gated(&guest, &mut queue);
    let before = engine(&daemon);
    assert!(is_destroyed(destroy(&queue, 1)));
    assert_eq!(queue.fence(), 0);
    other.run(&CommandBuffer::new());
    assert_eq!((engine(&daemon), guest.device_status()), (before, DEVICE_ACTIVE), "no reset, nobody lost");
}

#[test]
fn ums_88_ums_148_a_last_queued_that_nothing_was_rung_for_costs_neither_time_nor_a_neighbour() {
    let operated = Operated::with(1, &NO_BOUND);
    let daemon = &operated.daemon;
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let (neighbour, its_context) = copy_guest(&vm);
    let mut other = RawQueue::new(&neighbour, its_context);
    assert_eq!(other.connect(), Ok(CONNECTED));
    other.run(&CommandBuffer::new());
    let before = engine(daemon);
    for ahead in [1, 2, u64::MAX] {
        let mut queue = RawQueue::new(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
        guest.word(queue.bell.last_queued_offset).store(1u64.saturating_add(ahead), Ordering::Release);
        assert!(is_destroyed(destroy(&queue, 1)));
    }
    // Never connected: what is in its ring reaches nobody.
    let mut silent = RawQueue::new(&guest, context);
    silent.put(&CommandBuffer::new());
    silent.store_write_pointer();
    assert!(is_destroyed(destroy(&silent, 1)));
    assert_eq!(silent.fence(), 0);
    // Ahead, with real work before: that is waited for, and no longer.
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    let gate = gated(&guest, &mut queue);
    guest.word(queue.bell.last_queued_offset).store(u64::MAX, Ordering::Release);
    let end = destroy(&queue, 1);
    guest.round_trip();
    assert!(!end.is_done());
    open(&gate);
    assert!(is_destroyed(end));
    assert_eq!(queue.fence(), 1);
    // One that goes back is an error of its guest: counted, and nothing is waited for.
    let errors = || operated.counter(0, "last_queued_errors");
    assert_eq!(errors(), 0, "running ahead is none");
    for round in 1..=3 {
        let mut queue = RawQueue::new(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
        queue.run(&CommandBuffer::new());
        guest.word(queue.bell.last_queued_offset).store(round % 2, Ordering::Release);
        assert!(is_destroyed(destroy(&queue, 1)));
        assert_eq!(errors(), round);
    }
    other.run(&CommandBuffer::new());
    assert_eq!(engine(daemon), before);
    assert_eq!((guest.device_status(), neighbour.device_status()), (DEVICE_ACTIVE, DEVICE_ACTIVE));
}

#[test]
fn a_device_that_is_lost_ends_its_doorbells_that_wait() {
    let daemon = Daemon::with(&NO_BOUND);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    let _gate = gated(&guest, &mut queue);
    let end = destroy(&queue, 1);
    guest.round_trip();
    assert!(!end.is_done());
    guest.lose(context);
    assert!(is_destroyed(end));
}

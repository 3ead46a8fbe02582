//! From ring to engine: what is stored, in which order, and what the engine makes of it.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_DMA_FAULT;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_protocol::handle::Handle;
use campanile_protocol::packet::MAX_DMA_BUFFER;
use campanile_protocol::queue::ring;
use campanile_protocol::queue::ring::RingEntry;
use zerocopy::FromBytes;

use crate::processes::engine;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::CONNECTED_NOTIFY;
use crate::raw_queue::ENTRIES;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::signals::Stopped;
use crate::spy::open_overheard;
use crate::support::Daemon;
use crate::support::Ends;
use crate::support::NEVER;
use crate::support::until;

#[test]
fn ums_84_progress_fences_rise() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    for (good, bad) in [(5, 5), (5, 4), (u64::MAX, 1), (5, 0)] {
        let (guest, context) = copy_guest(&vm);
        let mut queue = RawQueue::new(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.put_entry(&RingEntry { fence_value: good, ..RingEntry::default() });
        queue.ring();
        queue.wait(good);
        queue.put_entry(&RingEntry { fence_value: bad, ..RingEntry::default() });
        queue.ring();
        until("the end of the device", || guest.device_status() != DEVICE_ACTIVE);
        assert_eq!((guest.device_status(), queue.fence()), (DEVICE_DMA_FAULT, good));
    }
}

#[test]
fn ums_85_ums_86_last_queued_is_stored_before_the_work_can_be_seen() {
    let daemon = Daemon::dedicated(4);
    let vm = daemon.vm(0);
    let (device, seen) = open_overheard(&vm);
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let page = seen.page();
    let ring = queue.ring().memory().clone();
    let done = AtomicBool::new(false);
    let looks = thread::scope(|scope| {
        let observer = scope.spawn(|| {
            let write_pointer = ring.word(ring::CONTROL_WRITE_POINTER).unwrap();
            let cell = page.word(device_page::cell(0)).unwrap();
            let fence = page.word(device_page::fence(0)).unwrap();
            let last_queued = page.word(device_page::last_queued(0)).unwrap();
            let mut looks = 0u64;
            while !done.load(Ordering::Acquire) {
                // What comes later is read first: it never is ahead of what must come before it.
                let done = fence.load(Ordering::Acquire);
                let rung = cell.load(Ordering::Acquire);
                let written = write_pointer.load(Ordering::Acquire);
                let mut entry = [0; size_of::<RingEntry>()];
                if written > 0 {
                    ring.read(4096 + (written - 1) % 256 * ring::RING_ENTRY_BYTES, &mut entry).unwrap();
                }
                let queued = last_queued.load(Ordering::Acquire);
                // Not done before rung: the look that ends a connect sees the write pointer, and may see it first.
                assert!(
                    done <= written && rung <= written && written <= queued,
                    "{done} {rung} {written} {queued}"
                );
                let entry = RingEntry::read_from_bytes(&entry).unwrap();
                assert!(entry.fence_value >= written, "entry {entry:?} behind write pointer {written}");
                looks += 1;
            }
            looks
        });
        let _ends = Ends(&done);
        for _ in 0..20_000 {
            queue.submit(&CommandBuffer::new()).unwrap();
        }
        queue.last().wait(Some(NEVER)).unwrap();
        done.store(true, Ordering::Release);
        observer.join().unwrap()
    });
    assert!(looks > 0);
    assert_eq!(page.word(device_page::last_queued(0)).unwrap().load(Ordering::Acquire), 20_000);
}

#[test]
fn ums_89_a_ring_is_a_store_of_the_write_pointer() {
    let daemon = Daemon::dedicated(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    // Three entries are there; the value rung says how many of them count.
    for _ in 0..3 {
        queue.put(&CommandBuffer::new());
    }
    queue.store_cell(2);
    queue.wait(2);
    let mut other = RawQueue::new(&guest, context);
    queue.store_write_pointer();
    assert_eq!(other.connect(), Ok(CONNECTED));
    other.run(&CommandBuffer::new());
    assert_eq!((queue.fence(), queue.read_pointer()), (2, 2), "the third was not rung");
    queue.store_cell(3);
    queue.wait(3);
    // The driver stores all 64 bits of the same value.
    let (device, seen) = open_overheard(&vm);
    let context = device.create_context(Node::Copy).unwrap();
    let mut driven = context.create_user_queue(&QueueOptions::default()).unwrap();
    let page = seen.page();
    let cell = page.word(device_page::cell(0)).unwrap();
    for count in 1..=20 {
        cell.store(u64::MAX, Ordering::Relaxed);
        driven.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
        let written = driven.ring().memory().word(ring::CONTROL_WRITE_POINTER).unwrap();
        assert_eq!((cell.load(Ordering::Acquire), written.load(Ordering::Acquire)), (count, count));
    }
}

#[test]
fn ums_90_a_driver_obeys_the_status_it_reads_after_each_ring() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (device, seen) = open_overheard(&vm);
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let page = seen.page();
    let status = page.word(device_page::status(0)).unwrap();
    let mut submit = || {
        seen.take_opcodes();
        let submitted = queue.submit(&CommandBuffer::new());
        (seen.take_opcodes(), submitted)
    };
    // RETRY, as it is in the beginning: connect, and ring again.
    let (sent, submitted) = submit();
    assert_eq!(sent, [message::CONNECT_DOORBELL]);
    submitted.unwrap().wait(Some(NEVER)).unwrap();
    // RETRY, taken away by another.
    let (guest, raw_context) = copy_guest(&vm);
    let thief = RawQueue::new(&guest, raw_context);
    assert_eq!(thief.connect(), Ok(CONNECTED));
    let (sent, submitted) = submit();
    assert_eq!(sent, [message::CONNECT_DOORBELL]);
    submitted.unwrap().wait(Some(NEVER)).unwrap();
    // NOTIFY: a message after every ring.
    status.store(CONNECTED_NOTIFY, Ordering::Release);
    for _ in 0..3 {
        let (sent, submitted) = submit();
        assert_eq!(sent, [message::NOTIFY]);
        submitted.unwrap().wait(Some(NEVER)).unwrap();
    }
    // CONNECTED: nothing.
    status.store(CONNECTED, Ordering::Release);
    let (sent, submitted) = submit();
    assert!(sent.is_empty(), "{sent:?}");
    submitted.unwrap().wait(Some(NEVER)).unwrap();
    // ABORT: the end.
    status.store(ABORT, Ordering::Release);
    let (sent, submitted) = submit();
    assert!(sent.is_empty(), "{sent:?}");
    assert!(matches!(submitted, Err(DriverError::DeviceLost(_))));
}

#[test]
fn ums_91_a_repeated_ring_runs_nothing_twice() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let (source, target) = (guest.vram(4096), guest.vram(4096));
    let mut queue = RawQueue::new(&guest, context);
    let mut other = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    for round in 1..=20 {
        source.word(0).store(round, Ordering::Release);
        queue.run(&copy(source.va, target.va, 8));
        source.word(0).store(u64::MAX, Ordering::Release);
        for _ in 0..10 {
            assert_eq!(queue.ring(), CONNECTED);
        }
        // Also the rounds that a guest makes which reads RETRY.
        assert_eq!(other.connect(), Ok(CONNECTED));
        assert_eq!(queue.ring(), RETRY);
        other.run(&CommandBuffer::new());
        assert_eq!(queue.connect(), Ok(CONNECTED));
        assert_eq!(queue.ring(), CONNECTED);
        queue.run(&CommandBuffer::new());
        assert_eq!(target.word(0).load(Ordering::Acquire), round);
        assert_eq!(queue.read_pointer(), queue.written);
    }
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

#[test]
fn ums_93_ums_101_a_bad_ring_faults_its_own_device_alone() {
    let daemon = Daemon::steady(8);
    let vm = daemon.vm(0);
    let (neighbour, neighbours) = copy_guest(&vm);
    let mut works = RawQueue::new(&neighbour, neighbours);
    assert_eq!(works.connect(), Ok(CONNECTED));
    let empty = RingEntry { fence_value: 10, ..RingEntry::default() };
    let theirs = works.ring.ring.va;
    // A write pointer, with what the entries before it are, and the status of a device that rang so.
    let cases: [(u64, RingEntry, u64); 10] = [
        (u64::from(ENTRIES) + 2, empty, DEVICE_DMA_FAULT),
        (u64::MAX, empty, DEVICE_DMA_FAULT),
        (0, empty, DEVICE_DMA_FAULT),
        (2, RingEntry { flags: 1, ..empty }, DEVICE_DMA_FAULT),
        (2, RingEntry { reserved: 1, ..empty }, DEVICE_DMA_FAULT),
        (2, RingEntry { length: MAX_DMA_BUFFER + 8, ..empty }, DEVICE_DMA_FAULT),
        (2, RingEntry { length: 12, buffer_va: 1 << 24, ..empty }, DEVICE_DMA_FAULT),
        (2, RingEntry { length: 8, buffer_va: (1 << 24) + 4, ..empty }, DEVICE_DMA_FAULT),
        (2, RingEntry { length: 8, buffer_va: 1 << 40, ..empty }, DEVICE_PAGE_FAULT),
        (2, RingEntry { length: 8, buffer_va: theirs + (1 << 30), ..empty }, DEVICE_PAGE_FAULT),
    ];
    for (index, (write_pointer, entry, status)) in cases.into_iter().enumerate() {
        let (guest, context) = copy_guest(&vm);
        let mut queue = RawQueue::new(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
        queue.put_entry(&entry);
        queue.written = write_pointer;
        queue.ring();
        until("the end of a device that broke a rule", || queue.status() == ABORT);
        assert_eq!(
            (guest.device_status(), queue.fence(), queue.read_pointer()),
            (status, 1, 1),
            "case {index}"
        );
        assert_eq!(works.status(), CONNECTED);
        works.run(&CommandBuffer::new());
        assert_eq!(neighbour.device_status(), DEVICE_ACTIVE);
    }
}

#[test]
fn ums_94_ums_96_notify_is_a_ping_for_any_queue() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let ordinary = guest.queue(context, 0).unwrap().queue;
    let mut user = RawQueue::new(&guest, context);
    let notify = |queue, flags, reserved| guest.call(message::NOTIFY, &Notify { queue, flags, reserved });
    for connects in 0..2 {
        for queue in [ordinary, user.created.queue] {
            assert_eq!(notify(queue, 0, 0), Ok(Vec::new()), "connected {connects} times");
        }
        assert_eq!((user.fence(), user.read_pointer()), (0, 0));
        user.connect().unwrap();
    }
    user.run(&CommandBuffer::new());
    assert_eq!(notify(user.created.queue, 0, 0), Ok(Vec::new()));
    assert_eq!((user.fence(), user.read_pointer(), user.status()), (1, 1, CONNECTED), "it moves no data");
    for bit in 0..32 {
        assert_eq!(notify(ordinary, 1 << bit, 0), Err(Status::InvalidParameter));
        assert_eq!(notify(ordinary, 0, 1 << bit), Err(Status::InvalidParameter));
    }
    for nobody in [Handle::NONE, Handle(u64::MAX), user.bell.doorbell, Handle::new(900, 1)] {
        if nobody != ordinary && nobody != user.created.queue {
            assert_eq!(notify(nobody, 0, 0), Err(Status::InvalidHandle));
        }
    }
}

#[test]
fn ums_146_work_that_was_rung_survives_that_its_ring_moves() {
    // In a device's own memory no engine polls a ring: what moves there is not run.
    let daemon = Daemon::with(&["--doorbells", "1", "--spin", "600000000", "--local-memory", "host"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let gate = guest.vram(4096);
    let thief = RawQueue::new(&guest, context);
    for round in 1..=10 {
        let mut queue = RawQueue::new(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        let mut behind = CommandBuffer::new();
        behind.signal(gate.va + 8, round).unwrap();
        behind.wait(gate.va, round).unwrap();
        assert_eq!(queue.submit(&behind), CONNECTED);
        until("work under way", || gate.word(8).load(Ordering::Acquire) == round);
        let stands_still = Stopped::new(engine(&daemon));
        // Once with more work behind it, rung before the engine could look.
        let expected = 1 + round % 2;
        if expected == 2 {
            assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED);
        }
        let sent = vm.commands_sent();
        let RawQueue { ring, created, .. } = queue;
        thread::scope(|scope| {
            // The guest gives up what its CPU sees of the ring control, which goes elsewhere under the engine's hands.
            scope.spawn(|| guest.free(ring.control));
            until("the move to begin", || vm.commands_sent() >= sent + 2);
            guest.round_trip();
            assert_eq!(thief.connect(), Ok(CONNECTED));
            gate.word(0).store(round, Ordering::Release);
            drop(stands_still);
        });
        until("work in a ring that moved", || guest.load(created.fence_offset) == expected);
    }
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

//! Progress fences as native fences.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_protocol::control::message;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::queue::ring::RingEntry;

use crate::processes::EngineView;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::ENTRIES;
use crate::raw_queue::RawQueue;
use crate::raw_queue::RawRing;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::signals::Stopped;
use crate::support::Daemon;
use crate::support::Ends;
use crate::support::until;

#[test]
fn ums_131_ums_133_ums_135_monitored_value_is_one_less_than_the_first_waiter_wants() {
    let daemon = Daemon::steady(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    // In the engine's block, where no guest process sees it.
    let entry = view.slot(0).queue();
    assert_eq!(view.monitored(entry), u64::MAX, "nobody waits");
    let monitors = |value: u64| until("MonitoredValue", || view.monitored(entry) == value);
    let fifth = guest.wait_fence(1, queue.created.queue, 5);
    monitors(4);
    let third = guest.wait_fence(2, queue.created.queue, 3);
    monitors(2);
    let fourth = guest.wait_fence(3, queue.created.queue, 4);
    guest.round_trip();
    assert_eq!(view.monitored(entry), 2, "the smallest counts");
    for _ in 0..2 {
        queue.run(&CommandBuffer::new());
    }
    guest.round_trip();
    assert!(!third.is_done() && !fourth.is_done() && !fifth.is_done());
    queue.run(&CommandBuffer::new());
    assert_eq!(third.finish(), Ok(Vec::new()));
    monitors(3);
    queue.run(&CommandBuffer::new());
    queue.run(&CommandBuffer::new());
    assert_eq!((fourth.finish(), fifth.finish()), (Ok(Vec::new()), Ok(Vec::new())));
    monitors(u64::MAX);
}

#[test]
fn ums_132_a_progress_fence_is_never_torn() {
    let daemon = Daemon::steady(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    let done = AtomicBool::new(false);
    let (reader, at) = (Arc::clone(&guest), queue.created.fence_offset);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let value = reader.load(at);
                assert_eq!(value >> 32, value & 0xffff_ffff, "half of one value, half of another");
            }
        });
        let _ends = Ends(&done);
        let both = |half: u64| half << 32 | half;
        for half in 1..=20_000 {
            queue.put_entry(&RingEntry { fence_value: both(half), ..RingEntry::default() });
            assert_eq!(queue.ring(), CONNECTED);
            if half % u64::from(ENTRIES) == 0 {
                queue.wait(both(half));
            }
        }
    });
}

#[test]
fn ums_134_a_signal_interrupts_only_past_the_monitored_value() {
    let daemon = Daemon::steady(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    guest.round_trip();
    let stands_still = Stopped::new(daemon.pid());
    for _ in 0..100 {
        queue.run(&CommandBuffer::new());
        assert!(!view.asks_for_attention(), "nobody waits");
    }
    drop(stands_still);
    let call = guest.wait_fence(1, queue.created.queue, queue.value + 10);
    guest.round_trip();
    let stands_still = Stopped::new(daemon.pid());
    for _ in 0..9 {
        queue.run(&CommandBuffer::new());
        assert!(!view.asks_for_attention(), "not yet what is waited for");
    }
    queue.run(&CommandBuffer::new());
    until("an interrupt", || view.asks_for_attention());
    drop(stands_still);
    assert_eq!(call.finish(), Ok(Vec::new()));
}

#[test]
fn ums_136_ums_137_a_wait_that_races_with_its_signal_ends() {
    let daemon = Daemon::steady(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    for round in 0..3000 {
        // Signals before, while and after the daemon sets MonitoredValue.
        let call = if round % 3 == 0 {
            assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED);
            guest.wait_fence(1, queue.created.queue, queue.value)
        } else {
            let call = guest.wait_fence(1, queue.created.queue, queue.value + 1);
            if round % 3 == 1 {
                for _ in 0..round {
                    std::hint::spin_loop();
                }
            }
            assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED);
            call
        };
        assert_eq!(call.finish(), Ok(Vec::new()));
        assert_eq!(queue.fence(), queue.value);
    }
}

#[test]
fn ums_137_a_wait_is_kept_through_every_doorbell_of_its_queue() {
    let daemon = Daemon::steady(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let created = guest.queue(context, QUEUE_USER_MODE_SUBMISSION).unwrap();
    let ring = RawRing::new(&guest);
    let [first, second, never] =
        [(1, 1), (2, 2), (3, 3)].map(|(slot, value)| guest.wait_fence(slot, created.queue, value));
    let bell = guest.ask(message::CREATE_DOORBELL, &ring.doorbell(created.queue)).unwrap();
    let mut queue = RawQueue { guest: Arc::clone(&guest), created, bell, ring, written: 0, value: 0 };
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    assert_eq!(first.finish(), Ok(Vec::new()));
    guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell).unwrap();
    queue.ring = RawRing::new(&guest);
    queue.written = 0;
    queue.bell = guest.ask(message::CREATE_DOORBELL, &queue.ring.doorbell(created.queue)).unwrap();
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    assert_eq!(second.finish(), Ok(Vec::new()));
    guest.name(message::DESTROY_DOORBELL, queue.bell.doorbell).unwrap();
    guest.name(message::DESTROY_QUEUE, created.queue).unwrap();
    assert_eq!(never.finish(), Err(Status::InvalidHandle), "nobody will ever signal it");
}

#[test]
fn ums_139_a_store_of_the_cpu_sets_a_blocked_queue_free() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let fence = guest.vram(4096);
    let mut blocked: Vec<RawQueue> = (0..3).map(|_| RawQueue::new(&guest, context)).collect();
    let mut free = RawQueue::new(&guest, context);
    assert_eq!(free.connect(), Ok(CONNECTED));
    for queue in &blocked {
        assert_eq!(queue.connect(), Ok(CONNECTED));
    }
    let sent = vm.commands_sent();
    for round in 1..=20 {
        for queue in &mut blocked {
            assert_eq!(queue.submit(&wait_for(fence.va, round)), CONNECTED);
        }
        free.run(&CommandBuffer::new());
        assert!(blocked.iter().all(|queue| queue.fence() == round - 1));
        fence.word(0).store(round, Ordering::Release);
        for queue in &blocked {
            queue.wait(round);
        }
    }
    assert_eq!(vm.commands_sent(), sent);
}

#[test]
fn ums_140_on_a_lost_device_waits_end_and_signals_touch_nothing() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let gate = guest.vram(4096);
    let mut queue = RawQueue::new(&guest, context);
    let mut blocked = RawQueue::new(&guest, context);
    for queue in [&queue, &blocked] {
        assert_eq!(queue.connect(), Ok(CONNECTED));
    }
    queue.run(&CommandBuffer::new());
    assert_eq!(blocked.submit(&wait_for(gate.va, 1)), CONNECTED);
    let open: Vec<_> = (1..=3).map(|slot| guest.wait_fence(slot, queue.created.queue, 100)).collect();
    guest.round_trip();
    assert!(open.iter().all(|call| !call.is_done()));
    guest.lose(context);
    for call in open {
        assert_eq!(call.finish(), Err(Status::DeviceLost));
    }
    assert_eq!(guest.wait_fence(1, queue.created.queue, 100).finish(), Err(Status::DeviceLost), "at once");
    let view = EngineView::of(&daemon);
    until("the engine to let go", || view.is_up_to_date());
    // Neither new work nor what was under way signals any more.
    assert_eq!((queue.submit(&CommandBuffer::new()), queue.status()), (ABORT, ABORT));
    gate.word(0).store(1, Ordering::Release);
    let (neighbour, neighbours) = copy_guest(&vm);
    let mut works = RawQueue::new(&neighbour, neighbours);
    assert_eq!(works.connect(), Ok(CONNECTED));
    for _ in 0..100 {
        works.run(&CommandBuffer::new());
    }
    assert_eq!((queue.fence(), blocked.fence()), (1, 0));
    assert_eq!(neighbour.device_status(), DEVICE_ACTIVE);
}

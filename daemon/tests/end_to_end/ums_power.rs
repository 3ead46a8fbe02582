//! Engines that go to sleep and are woken.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::handshake::power;

use crate::processes::EngineView;
use crate::raw::RawGuest;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

#[test]
fn ums_116_ums_120_an_idle_engine_goes_to_sleep_and_a_reconnect_wakes_it() {
    let daemon = Daemon::with(&["--spin", "100"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let mut queue = RawQueue::new(&guest, context);
    for round in 1..=20 {
        until("sleep", || view.power() == power::ASLEEP);
        assert_eq!(queue.status(), RETRY, "nobody but the engine asked for that");
        assert_eq!(queue.submit(&CommandBuffer::new()), RETRY);
        guest.round_trip();
        assert_eq!(queue.fence(), round - 1, "a ring alone reaches nobody");
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.wait(round);
    }
}

#[test]
fn ums_118_all_doorbells_are_disconnected_before_the_engine_sleeps() {
    let daemon = Daemon::with(&["--spin", "5000"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let mut queues: Vec<RawQueue> = (0..40).map(|_| RawQueue::new(&guest, context)).collect();
    let mut seen = 0;
    for _ in 0..40 {
        for queue in &mut queues {
            queue.put(&CommandBuffer::new());
            queue.store_write_pointer();
            assert_eq!(queue.connect(), Ok(CONNECTED));
        }
        for queue in &queues {
            queue.wait(queue.value);
        }
        // From here on nobody connects: what is connected after a look at the power word was so before it.
        seen += view.slots_in_use().len();
        until("sleep", || {
            let power = view.power();
            if power == power::F1_ALLOWED || power == power::ASLEEP {
                assert_eq!(view.slots_in_use(), [0; 0], "power {power} with doorbells");
            }
            power == power::ASLEEP
        });
        assert!(queues.iter().all(|queue| queue.status() == RETRY));
    }
    assert!(seen > 0, "no doorbell was connected when its engine fell asleep");
}

#[test]
fn ums_119_an_engine_that_falls_asleep_leaves_other_engines_doorbells() {
    let daemon = Daemon::with(&["--spin", "1000"]);
    let vm = daemon.vm(0);
    let guest = RawGuest::open(&vm);
    let contexts = [Node::Copy, Node::Compute].map(|node| guest.context(node));
    let gate = guest.vram(4096);
    for (round, [awake, asleep]) in (1..).zip([contexts, [contexts[1], contexts[0]]]) {
        let mut waits = RawQueue::new(&guest, awake);
        let mut idles = RawQueue::new(&guest, asleep);
        // A wait that is open keeps an engine from sleeping.
        waits.put(&wait_for(gate.va, round));
        waits.store_write_pointer();
        assert_eq!(waits.connect(), Ok(CONNECTED));
        for _ in 0..10 {
            idles.put(&CommandBuffer::new());
            idles.store_write_pointer();
            assert_eq!(idles.connect(), Ok(CONNECTED));
            idles.wait(idles.value);
            until("sleep", || idles.status() == RETRY);
            assert_eq!(waits.status(), CONNECTED);
        }
        gate.word(0).store(round, Ordering::Release);
        waits.wait(1);
    }
}

#[test]
fn ums_122_work_that_is_rung_while_its_engine_falls_asleep_is_not_lost() {
    let daemon = Daemon::with(&["--spin", "0"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    let mut reconnects = 0;
    for round in 0u32..3000 {
        // At every distance from the end of the work before.
        for _ in 0..round % 500 * 20 {
            std::hint::spin_loop();
        }
        let mut status = queue.submit(&CommandBuffer::new());
        while status != CONNECTED {
            assert_eq!(status, RETRY);
            reconnects += 1;
            queue.connect().unwrap();
            status = queue.ring();
        }
        queue.wait(queue.value);
    }
    assert!(reconnects > 1, "it never slept");
}

#[test]
fn an_engine_with_an_open_wait_keeps_its_doorbells() {
    let daemon = Daemon::with(&["--spin", "0"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let gate = guest.vram(4096);
    let mut queue = RawQueue::new(&guest, context);
    queue.put(&wait_for(gate.va, 1));
    queue.store_write_pointer();
    queue.connect().unwrap();
    until("a nap", || view.power() == power::NAPPING);
    // The wish for F1 that it had before the connect may be granted after it, once.
    guest.round_trip();
    assert_eq!(queue.connect(), Ok(CONNECTED));
    for _ in 0..50 {
        until("a nap", || view.power() == power::NAPPING);
        guest.round_trip();
        assert_eq!(queue.status(), CONNECTED);
    }
    gate.word(0).store(1, Ordering::Release);
    queue.wait(1);
}

#[test]
fn a_driver_finds_its_way_back_from_every_sleep() {
    let daemon = Daemon::with(&["--spin", "0"]);
    let (_vm, device) = daemon.device();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let view = EngineView::of(&daemon);
    for _ in 0..50 {
        until("sleep", || view.power() == power::ASLEEP);
        queue.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
    }
    assert!(queue.reconnects() >= 50);
}

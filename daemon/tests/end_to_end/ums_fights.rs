//! Queues that want more doorbells than there are.

use std::sync::atomic::Ordering;
use std::thread;

use campanile_daemon::vgpu::doorbells::modes::DoorbellModes;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::DoorbellConnected;
use zerocopy::FromBytes;

use crate::inside::Inside;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::CONNECTED_NOTIFY;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::raw_queue::wait_for;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

#[test]
fn ums_76_ums_146_a_victim_takes_a_doorbell_back_at_once_and_its_work_goes_on() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let [(guest, context), (neighbour, neighbours)] = [copy_guest(&vm), copy_guest(&vm)];
    let gate = guest.vram(4096);
    let mut victim = RawQueue::new(&guest, context);
    let mut taker = RawQueue::new(&neighbour, neighbours);
    assert_eq!(victim.connect(), Ok(CONNECTED));
    for round in 1..=20 {
        // Rung, taken up, and far from done: the second buffer waits behind the first.
        victim.put(&wait_for(gate.va, round));
        assert_eq!(victim.submit(&fill(gate.va + 8, 8, u32::try_from(round).unwrap())), CONNECTED);
        assert_eq!(taker.connect(), Ok(CONNECTED), "although the other has work");
        assert_eq!(victim.status(), RETRY);
        taker.run(&CommandBuffer::new());
        gate.word(0).store(round, Ordering::Release);
        // It never was connected again, and its work is done.
        victim.wait(victim.value);
        assert_eq!(victim.status(), RETRY);
        assert_eq!(gate.word(8).load(Ordering::Relaxed), round | (round << 32));
        assert_eq!(victim.connect(), Ok(CONNECTED), "and back at once");
        assert_eq!(taker.status(), RETRY);
    }
}

#[test]
fn ums_77_queues_that_fight_over_one_doorbell_go_on() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queues = [RawQueue::new(&guest, context), RawQueue::new(&guest, context)];
    for round in 1..=500 {
        // The worst order: each loses its doorbell before it can ring. One connect each is enough all the same.
        for queue in &mut queues {
            queue.put(&CommandBuffer::new());
            queue.store_write_pointer();
            assert_eq!(queue.connect(), Ok(CONNECTED));
        }
        for queue in &queues {
            queue.wait(round);
        }
    }
    drop(queues);
    // And so drivers that fight as fast as they can all come to an end.
    let device = Device::open(vm.open("fighters").unwrap()).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
                for _ in 0..300 {
                    queue.submit(&CommandBuffer::new()).unwrap();
                }
                queue.last().wait(Some(NEVER)).unwrap();
            });
        }
    });
}

#[test]
fn a_status_word_that_the_guest_scribbled_on_misleads_the_guest_alone() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    for nonsense in [CONNECTED, CONNECTED_NOTIFY, ABORT, u64::MAX] {
        guest.word(queue.bell.status_offset).store(nonsense, Ordering::Release);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        assert_eq!(queue.status(), CONNECTED);
        queue.run(&CommandBuffer::new());
        let other = RawQueue::new(&guest, context);
        assert_eq!(other.connect(), Ok(CONNECTED));
        assert_eq!(queue.status(), RETRY);
    }
}

#[test]
fn ums_77_every_connect_of_a_fight_is_served_in_turn() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let queues: Vec<RawQueue> = (0..20).map(|_| RawQueue::new(&guest, context)).collect();
    for _ in 0..20 {
        // All ask at once, and none rings: each has its doorbell for the minimum hold, and then the next has it.
        let calls: Vec<_> = (1u32..)
            .zip(&queues)
            .map(|(slot, queue)| {
                let named = Named { handle: queue.bell.doorbell };
                guest.send(slot, message::CONNECT_DOORBELL, &named)
            })
            .collect();
        for call in calls {
            let connected = DoorbellConnected::read_from_bytes(&call.finish().unwrap()).unwrap();
            assert!(connected.turns <= 20, "{} others were served first", connected.turns);
        }
        assert_eq!(queues.iter().filter(|queue| queue.status() == CONNECTED).count(), 1);
    }
}

#[test]
fn ums_71_rings_that_no_physical_doorbell_saw_are_counted() {
    let inside = Inside::start(1, DoorbellModes::default());
    let vm = inside.vm();
    let (guest, context) = copy_guest(&vm);
    let mut victim = RawQueue::new(&guest, context);
    let thief = RawQueue::new(&guest, context);
    let found = || inside.count(|counters| &counters.found_by_look);
    // Nobody rings for the first: the look of the connect finds it. Counted before anything is rung, or a ring might
    // come before that look.
    victim.put(&CommandBuffer::new());
    victim.store_write_pointer();
    assert_eq!(victim.connect(), Ok(CONNECTED));
    victim.wait(victim.value);
    until("the count of the first look", || found() == 1);
    // All others its doorbell sees.
    for _ in 0..20 {
        victim.run(&CommandBuffer::new());
    }
    assert_eq!(found(), 1);
    for round in 2..=11 {
        // Found by the look that ends a connect.
        victim.put(&CommandBuffer::new());
        victim.store_write_pointer();
        assert_eq!(thief.connect(), Ok(CONNECTED));
        assert_eq!(victim.connect(), Ok(CONNECTED));
        victim.wait(victim.value);
        until("a count", || found() == round);
    }
    assert!(inside.count(|counters| &counters.victims) >= 19, "each took the doorbell from the other");
}

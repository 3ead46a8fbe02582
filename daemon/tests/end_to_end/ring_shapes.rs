//! Rings that are full, and rings that begin anew: every entry runs once, in its order, with its own contents.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::queue::ring;

use crate::raw_queue::BOTH_MEMORIES;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

#[test]
fn ums_40_ums_93_a_ring_that_is_full_at_every_place_runs_each_entry_once() {
    let daemon = Daemon::steady(4);
    let (_vm, device) = daemon.device();
    let context = device.create_context(Node::Copy).unwrap();
    for (entries, memory) in [2, 4, 16].into_iter().zip(BOTH_MEMORIES.into_iter().cycle()) {
        let options = QueueOptions { entries, memory, ..QueueOptions::default() };
        let mut queue = context.create_user_queue(&options).unwrap();
        let words = device.create_buffer(4096).unwrap();
        let word = |index: u64| words.memory().word(8 * index).unwrap();
        let (gate, count) = (words.va(), words.va() + 8);
        let pointer = |queue: &campanile_guest_driver::user_queue::UserQueue, at| {
            queue.ring().memory().word(at).unwrap().load(Ordering::Acquire)
        };
        let mut written = 0;
        for round in 1..=2 * u64::from(entries) {
            // The first waits; the others fill the ring behind it, each of which knows what came before it.
            let mut last = None;
            for index in 0..u64::from(entries) {
                let mut commands = CommandBuffer::new();
                if index == 0 {
                    commands.wait(gate, round).unwrap();
                }
                commands.wait(count, written).unwrap().signal(count, written + 1).unwrap();
                last = Some(queue.submit(&commands).unwrap());
                written += 1;
            }
            let (write, read) =
                (pointer(&queue, ring::CONTROL_WRITE_POINTER), pointer(&queue, ring::CONTROL_READ_POINTER));
            assert_eq!((write, write - read), (written, u64::from(entries)), "the ring is full");
            assert_eq!(word(1).load(Ordering::Acquire), written - u64::from(entries), "nothing ran");
            word(0).store(round, Ordering::Release);
            last.unwrap().wait(Some(NEVER)).unwrap();
            assert_eq!(word(1).load(Ordering::Acquire), written);
            // So that the ring is full at another place next.
            let mut one = CommandBuffer::new();
            one.signal(count, written + 1).unwrap();
            queue.submit(&one).unwrap().wait(Some(NEVER)).unwrap();
            written += 1;
        }
        assert_eq!(pointer(&queue, ring::CONTROL_READ_POINTER), written);
        device.check().unwrap();
    }
}

#[test]
fn ums_42_a_ring_made_larger_holds_more_and_wraps_at_its_own_end() {
    let daemon = Daemon::steady(4);
    let (_vm, device) = daemon.device();
    let context = device.create_context(Node::Copy).unwrap();
    let words = device.create_buffer(4096).unwrap();
    let word = |index: u64| words.memory().word(8 * index).unwrap().load(Ordering::Acquire);
    let mut gate = 0;
    for entries in [2, 8, 4, 32] {
        let options = QueueOptions { entries, ..QueueOptions::default() };
        let mut queue = context.create_user_queue(&options).unwrap();
        for round in 0..3 * u64::from(entries) {
            let mut commands = CommandBuffer::new();
            commands.wait(words.va(), gate).unwrap().signal(words.va(), gate + 1).unwrap();
            queue.submit(&commands).unwrap();
            gate += 1;
            if round % 5 == 0 {
                queue.last().wait(Some(NEVER)).unwrap();
            }
        }
        queue.last().wait(Some(NEVER)).unwrap();
        until("the last of the ring", || word(0) == gate);
    }
}

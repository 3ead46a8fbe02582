//! Rings of the global doorbell: the value names the queue.

use std::sync::atomic::Ordering;
use std::thread;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::capset::NODE_COMPUTE;
use campanile_protocol::capset::NODE_COPY;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::queue::doorbell::GLOBAL_HIDDEN;
use campanile_protocol::queue::doorbell::global_queue;

use crate::processes::engine;
use crate::raw::RawGuest;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::copy_guest;
use crate::signals::Stopped;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;
use crate::ums_models::MODELS;
use crate::ums_models::queues;

#[test]
fn ums_09_ums_89_the_value_rung_names_queue_and_engine() {
    let daemon = Daemon::of_model("global", 1);
    let vm = daemon.vm(0);
    let guest = RawGuest::open(&vm);
    let mut values = Vec::new();
    for (node, ordinal) in [(Node::Copy, NODE_COPY), (Node::Compute, NODE_COMPUTE)] {
        for queue in queues(&guest, node, 5) {
            let index = (queue.bell.status_offset - device_page::STATUSES) / 8;
            let index = u32::try_from(index).unwrap();
            assert_eq!(global_queue(queue.bell.ring_value), Some((ordinal, index)));
            values.push(queue.bell.ring_value);
        }
    }
    values.sort_unstable();
    values.dedup();
    assert_eq!(values.len(), 10, "each says who rang");
    // The driver stores that, all 64 bits, and the engine takes it.
    let (device, seen) = crate::spy::open_overheard(&vm);
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    queue.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
    let page = seen.page();
    let cell = page.word(device_page::global_cell(0, NODE_COPY)).unwrap();
    until("a cell that the engine has taken", || cell.load(Ordering::Acquire) == 0);
    let engines = crate::processes::engines(&daemon);
    let stopped: Vec<Stopped> = engines.into_iter().map(Stopped::new).collect();
    let point = queue.submit(&CommandBuffer::new()).unwrap();
    assert_eq!(global_queue(cell.load(Ordering::Acquire)), Some((NODE_COPY, 0)));
    drop(stopped);
    point.wait(Some(NEVER)).unwrap();
}

#[test]
fn ums_10_rings_that_overwrite_each_other_lose_no_work() {
    let daemon = Daemon::of_model("global", 1);
    let vm = daemon.vm(0);
    let (guest, _) = copy_guest(&vm);
    let mut all = queues(&guest, Node::Copy, 100);
    for queue in &mut all {
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
    }
    for round in 2..=20 {
        let stopped = Stopped::new(engine(&daemon));
        for queue in &mut all {
            assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED);
        }
        // One value is left of a hundred, with the word that there were more. In some rounds it is nobody's, and in some
        // it lies: then nothing says that there were more.
        let cell = guest.word(device_page::global_cell(0, NODE_COPY));
        assert_eq!(cell.load(Ordering::Acquire), all[99].bell.ring_value | GLOBAL_HIDDEN);
        match round % 4 {
            0 => cell.store(u64::MAX, Ordering::Release),
            1 => cell.store(1, Ordering::Release),
            2 => cell.store(all[99].bell.ring_value, Ordering::Release),
            _ => {}
        }
        drop(stopped);
        for queue in &all {
            queue.wait(round);
        }
    }
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

#[test]
fn ums_10_queues_that_ring_at_the_same_time_lose_no_work() {
    let daemon = Daemon::of_model("global", 1);
    let vm = daemon.vm(0);
    let (guest, _) = copy_guest(&vm);
    let mut all = queues(&guest, Node::Copy, 8);
    for queue in &all {
        assert_eq!(queue.connect(), Ok(CONNECTED));
    }
    thread::scope(|scope| {
        for pair in all.chunks_mut(2) {
            scope.spawn(|| {
                for round in 1..=2000 {
                    for queue in pair.iter_mut() {
                        assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED);
                    }
                    // From here on nothing helps the work along.
                    for queue in pair.iter_mut() {
                        queue.wait(round);
                    }
                }
            });
        }
    });
}

#[test]
fn ums_11_no_engine_takes_the_rings_of_another() {
    for model in MODELS {
        let daemon = Daemon::of_model(model, 4);
        let vm = daemon.vm(0);
        let guest = RawGuest::open(&vm);
        let mut of_nodes = [Node::Compute, Node::Copy].map(|node| queues(&guest, node, 2));
        for queue in of_nodes.iter().flatten() {
            assert_eq!(queue.connect(), Ok(CONNECTED));
        }
        // Both engines poll all the time, and each ring is looked for by one of them.
        for _ in 0..500 {
            for queue in of_nodes.iter_mut().flatten() {
                assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED);
            }
            for queue in of_nodes.iter().flatten() {
                queue.wait(queue.value);
            }
        }
    }
}

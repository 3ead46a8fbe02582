//! Dedicated and global doorbells: what only one of them has, and what both do alike.
//!
//! All tests of this folder that are not about one model run on the global one too: `ci/full` runs them again with
//! [`crate::support::MODEL`] set.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_daemon::vgpu::doorbells::modes::DoorbellModes;
use campanile_daemon::vgpu::doorbells::modes::NodeMode;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::capset::Capset;
use campanile_protocol::capset::NODE_COMPUTE;
use campanile_protocol::capset::NODE_COPY;
use campanile_protocol::capset::NODE_FLAG_GLOBAL_DOORBELL;
use campanile_protocol::control::message;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_PAGE_FAULT;
use campanile_protocol::handshake::power;
use campanile_protocol::queue::doorbell::DoorbellModel;

use crate::inside::Inside;
use crate::processes::EngineView;
use crate::processes::engine;
use crate::raw::RawGuest;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::ENTRIES;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::signals::kill;
use crate::signals::stop_at_rest;
use crate::support::Daemon;
use crate::support::Ends;
use crate::support::NEVER;
use crate::support::until;

pub(crate) const MODELS: [&str; 2] = ["dedicated", "global"];

pub(crate) fn queues(guest: &std::sync::Arc<RawGuest>, node: Node, count: usize) -> Vec<RawQueue> {
    let context = guest.context(node);
    (0..count).map(|_| RawQueue::new(guest, context)).collect()
}

#[test]
fn ums_07_each_node_has_the_model_that_the_operator_chose_and_guests_are_told() {
    for (model, is_global) in [
        ("compute=global,copy=dedicated", [true, false]),
        ("copy=global", [false, true]),
        ("global", [true, true]),
        ("dedicated", [false, false]),
    ] {
        let daemon = Daemon::of_model(model, 7);
        let vm = daemon.vm(0);
        let guest = RawGuest::open(&vm);
        let capset: Capset = guest.ask(message::QUERY_CAPS, &()).unwrap();
        for (node, ordinal) in [(Node::Compute, NODE_COMPUTE), (Node::Copy, NODE_COPY)] {
            let is_global = is_global[ordinal as usize];
            let told = capset.nodes[ordinal as usize];
            assert_eq!(told.flags & NODE_FLAG_GLOBAL_DOORBELL != 0, is_global, "{model}, {node:?}");
            assert_eq!(told.physical_doorbells, if is_global { 1 } else { 7 });
            let mut queue = queues(&guest, node, 1).remove(0);
            assert_eq!(queue.bell.ring_value != 0, is_global);
            assert_eq!(queue.bell.summary_bit == 0, is_global);
            assert_eq!(queue.connect(), Ok(CONNECTED));
            queue.run(&CommandBuffer::new());
        }
    }
}

#[test]
fn ums_08_ums_15_ums_17_any_number_of_queues_of_a_process_share_one_doorbell_and_stay_connected() {
    let modes = NodeMode { model: DoorbellModel::Global, notify: false };
    let inside = Inside::start(1, DoorbellModes([modes; 2]));
    let vm = inside.vm();
    let guests = [RawGuest::open(&vm), RawGuest::open(&vm)];
    // Of two contexts each.
    let mut of_guests = guests.each_ref().map(|guest| {
        let mut all = queues(guest, Node::Copy, 40);
        all.extend(queues(guest, Node::Copy, 40));
        all
    });
    for all in &of_guests {
        let location = all[0].bell.cell_offset;
        assert_eq!(location, device_page::global_cell(0, NODE_COPY));
        assert!(all.iter().all(|queue| queue.bell.cell_offset == location), "the same place in its own page");
        assert!(all.iter().all(|queue| queue.connect() == Ok(CONNECTED)));
    }
    // With one physical doorbell, and used in turn, nobody ever loses it.
    for _ in 0..5 {
        for queue in of_guests.iter_mut().flatten() {
            queue.run(&CommandBuffer::new());
        }
    }
    assert!(of_guests.iter().flatten().all(|queue| queue.status() == CONNECTED));
    assert_eq!(inside.count(|counters| &counters.victims), 0);
    assert_eq!(inside.count(|counters| &counters.connects), 160);
    // The cell is that of its process: a ring of another process says nothing about this one.
    let [first, second] = &mut of_guests;
    first[3].put(&CommandBuffer::new());
    first[3].store_write_pointer();
    for queue in second.iter_mut() {
        queue.run(&CommandBuffer::new());
    }
    assert_eq!(first[3].fence(), 5, "nobody rang for it");
    first[3].ring();
    first[3].wait(6);
}

#[test]
fn ums_08_nodes_have_global_doorbells_of_their_own() {
    let daemon = Daemon::of_model("global", 1);
    let vm = daemon.vm(0);
    let guest = RawGuest::open(&vm);
    let mut all = [Node::Copy, Node::Compute].map(|node| queues(&guest, node, 3));
    assert_ne!(all[0][0].bell.cell_offset, all[1][0].bell.cell_offset);
    for _ in 0..20 {
        for queue in all.iter_mut().flatten() {
            if queue.status() != CONNECTED {
                assert_eq!(queue.connect(), Ok(CONNECTED));
            }
            queue.run(&CommandBuffer::new());
        }
    }
}

// conformance: the life of one doorbell from create to destroy, walked in each model
#[test]
fn ums_34_ums_35_ums_36_ums_64_ums_146_a_doorbell_lives_alike_in_both_models() {
    for model in MODELS {
        let daemon = Daemon::of_model(model, 4);
        let vm = daemon.vm(0);
        let (guest, _) = copy_guest(&vm);
        let [mut other, mut new]: [RawQueue; 2] = queues(&guest, Node::Copy, 2).try_into().unwrap();
        assert_eq!(other.connect(), Ok(CONNECTED));
        assert_eq!((other.status(), new.status()), (CONNECTED, RETRY), "a create connects nobody");
        for _ in 0..ENTRIES {
            assert_eq!(new.submit(&CommandBuffer::new()), RETRY);
            other.run(&CommandBuffer::new());
        }
        assert_eq!((new.fence(), new.read_pointer()), (0, 0), "{model}: a ring before the first connect");
        assert_eq!(new.connect(), Ok(CONNECTED));
        new.wait(u64::from(ENTRIES));
        // Connected once more, nothing changes; rung once more, nothing runs twice.
        let view = EngineView::of(&daemon);
        let sequence = view.sequence();
        assert_eq!((new.connect(), view.sequence()), (Ok(CONNECTED), sequence));
        for _ in 0..10 {
            assert_eq!(new.ring(), CONNECTED);
        }
        new.run(&CommandBuffer::new());
        assert_eq!(new.read_pointer(), new.written);
        // What is destroyed is not listened to, once the engine has looked at its tables.
        guest.name(message::DESTROY_DOORBELL, other.bell.doorbell).unwrap();
        for opcode in [message::DESTROY_DOORBELL, message::CONNECT_DOORBELL] {
            assert_eq!(guest.name(opcode, other.bell.doorbell), Err(Status::InvalidHandle));
        }
        until("an engine that knows", || view.is_up_to_date());
        other.submit(&CommandBuffer::new());
        new.run(&CommandBuffer::new());
        assert_eq!(other.fence(), u64::from(ENTRIES), "{model}: nobody listens to what is gone");
        assert_eq!(guest.device_status(), DEVICE_ACTIVE);
    }
}

// conformance: one loop of sleeping and waking shows each of these in each model
#[test]
fn ums_46_ums_47_ums_63_ums_118_places_are_for_life_in_both_models() {
    for model in MODELS {
        let daemon = Daemon::with(&["--spin", "100", "--doorbell-model", model]);
        let vm = daemon.vm(0);
        let (guest, _) = copy_guest(&vm);
        let mut all = queues(&guest, Node::Copy, 3);
        let view = EngineView::of(&daemon);
        for round in 1..=20 {
            // The engine falls asleep: all are disconnected, and connect where they were. A connect behind the work that
            // it was for may have come to an engine that slept already, and has yet to wake.
            until("sleep with all disconnected", || {
                view.power() == power::ASLEEP && all.iter().all(|queue| queue.status() == RETRY)
            });
            for queue in &mut all {
                queue.put(&CommandBuffer::new());
                while queue.ring() != CONNECTED {
                    assert_eq!(queue.connect(), Ok(CONNECTED));
                }
                queue.wait(round);
            }
        }
    }
}

#[test]
fn ums_99_ums_101_a_fault_aborts_the_doorbells_of_its_device_alone_in_both_models() {
    for model in MODELS {
        let daemon = Daemon::of_model(model, 8);
        let vm = daemon.vm(0);
        let [(guest, _), (neighbour, _)] = [copy_guest(&vm), copy_guest(&vm)];
        let mut all = queues(&guest, Node::Copy, 3);
        let mut works = queues(&neighbour, Node::Copy, 1).remove(0);
        for queue in all.iter().chain([&works]) {
            assert_eq!(queue.connect(), Ok(CONNECTED));
        }
        assert_eq!(all[1].submit(&fill(1 << 40, 8, 1)), CONNECTED);
        for queue in &mut all {
            until("ABORT", || queue.status() == ABORT);
            assert_eq!(queue.connect(), Err(Status::DeviceLost));
            until("an engine that knows", || EngineView::of(&daemon).is_up_to_date());
            assert_eq!(queue.submit(&CommandBuffer::new()), ABORT);
        }
        assert_eq!(guest.device_status(), DEVICE_PAGE_FAULT);
        for _ in 0..20 {
            works.run(&CommandBuffer::new());
        }
        assert_eq!((works.status(), all[0].fence()), (CONNECTED, 0));
    }
}

#[test]
fn ums_101_an_engine_that_died_is_replaced_with_its_doorbells_connected_in_both_models() {
    for model in MODELS {
        let daemon = Daemon::of_model(model, 8);
        let vm = daemon.vm(0);
        let (guest, _) = copy_guest(&vm);
        let mut all = queues(&guest, Node::Copy, 4);
        for queue in &mut all {
            assert_eq!(queue.connect(), Ok(CONNECTED));
            queue.run(&CommandBuffer::new());
        }
        let dead = engine(&daemon);
        let stopped = stop_at_rest(dead);
        for queue in &mut all {
            assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED);
        }
        kill(dead);
        drop(stopped);
        for queue in &mut all {
            queue.wait(2);
            assert_eq!(queue.status(), CONNECTED, "{model}");
            queue.run(&CommandBuffer::new());
        }
    }
}

#[test]
fn ums_90_ums_91_drivers_work_in_both_models_whatever_becomes_of_their_doorbells() {
    for model in MODELS {
        let daemon = Daemon::with(&["--doorbells", "2", "--spin", "0", "--doorbell-model", model]);
        let vm = daemon.vm(0);
        let device = Device::open(vm.open("drivers").unwrap()).unwrap();
        let context = device.create_context(Node::Copy).unwrap();
        let target = device.create_buffer(6 * 8).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Somebody else on the same engine, so that it never has nothing to do for long.
            scope.spawn(|| {
                let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
                while !done.load(Ordering::Acquire) {
                    queue.submit(&CommandBuffer::new()).unwrap();
                    thread::yield_now();
                }
            });
            let _ends = Ends(&done);
            let drivers: Vec<_> = (0..6u64)
                .map(|place| {
                    let (context, va) = (&context, target.va() + place * 8);
                    scope.spawn(move || {
                        let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
                        for round in 1..=300 {
                            queue.submit(&fill(va, 8, round)).unwrap();
                        }
                        queue.last().wait(Some(NEVER)).unwrap();
                    })
                })
                .collect();
            for driver in drivers {
                driver.join().unwrap();
            }
        });
        let mut bytes = [0; 6 * 8];
        target.read(0, &mut bytes).unwrap();
        assert!(bytes.chunks_exact(4).all(|word| word == 300u32.to_le_bytes()), "{model}");
    }
}

//! Doorbells whose guests say when they ring, so that no engine polls for them.

use campanile_daemon::vgpu::doorbells::modes::DoorbellModes;
use campanile_daemon::vgpu::doorbells::modes::NodeMode;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::capset::Capset;
use campanile_protocol::capset::NODE_COPY;
use campanile_protocol::capset::NODE_FLAG_NOTIFY;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_NOTIFY;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::handshake::power;
use campanile_protocol::queue::doorbell::DoorbellModel;
use campanile_protocol::queue::doorbell::DoorbellStatus;

use crate::inside::Inside;
use crate::operator::Operated;
use crate::processes::EngineView;
use crate::raw::RawGuest;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::CONNECTED_NOTIFY;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::RawRing;
use crate::raw_queue::copy_guest;
use crate::spy::open_overheard;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

const MODELS: [&str; 2] = ["dedicated", "global"];

/// A queue whose doorbell is made with the flag.
fn notifying(guest: &std::sync::Arc<RawGuest>, context: campanile_protocol::handle::Handle) -> RawQueue {
    let ring = RawRing::new(guest);
    let created = guest.queue(context, QUEUE_USER_MODE_SUBMISSION).unwrap();
    let doorbell = CreateDoorbell { flags: DOORBELL_NOTIFY, ..ring.doorbell(created.queue) };
    let bell = guest.ask(message::CREATE_DOORBELL, &doorbell).unwrap();
    RawQueue { guest: std::sync::Arc::clone(guest), created, bell, ring, written: 0, value: 0 }
}

fn notify(queue: &RawQueue) {
    let notify = Notify { queue: queue.created.queue, flags: 0, reserved: 0 };
    queue.guest.call(message::NOTIFY, &notify).unwrap();
}

#[test]
fn ums_51_ums_58_ums_95_a_notified_ring_is_delivered_and_nobody_polls_for_it() {
    for model in MODELS {
        let daemon = Daemon::of_model(model, 1);
        let vm = daemon.vm(0);
        let (guest, context) = copy_guest(&vm);
        let view = EngineView::of(&daemon);
        let mut queue = notifying(&guest, context);
        assert_eq!(queue.status(), RETRY);
        // What was in the ring is found by the connect, as ever.
        queue.submit(&CommandBuffer::new());
        assert_eq!((queue.connect(), queue.status()), (Ok(CONNECTED_NOTIFY), CONNECTED_NOTIFY));
        queue.wait(1);
        assert!(view.slots_in_use().is_empty(), "no physical doorbell stands for it");
        for round in 2..=50 {
            // The engine would spin for ten minutes; it sleeps, with the doorbell connected.
            until("a nap", || view.power() == power::NAPPING);
            assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED_NOTIFY);
            assert_eq!((queue.fence(), view.power()), (round - 1, power::NAPPING), "{model}: nobody polls");
            notify(&queue);
            queue.wait(round);
        }
        // Notify is for rare cases: the next queue is connected plainly, and needs no message.
        let mut plain = RawQueue::new(&guest, context);
        assert_eq!(plain.connect(), Ok(CONNECTED));
        let sent = vm.commands_sent();
        for _ in 0..100 {
            plain.run(&CommandBuffer::new());
        }
        assert_eq!(vm.commands_sent(), sent);
        assert_eq!(
            (queue.status(), queue.submit(&CommandBuffer::new())),
            (CONNECTED_NOTIFY, CONNECTED_NOTIFY)
        );
        notify(&queue);
        queue.wait(51);
        assert_eq!(plain.status(), CONNECTED, "a notified queue takes nobody's doorbell");
    }
}

#[test]
fn ums_51_ums_90_a_driver_notifies_after_each_ring() {
    for model in MODELS {
        let daemon = Daemon::of_model(model, 1);
        let vm = daemon.vm(0);
        let (device, seen) = open_overheard(&vm);
        let context = device.create_context(Node::Copy).unwrap();
        let options = QueueOptions { notify: true, ..QueueOptions::default() };
        let mut queue = context.create_user_queue(&options).unwrap();
        for round in 0..20 {
            seen.take_opcodes();
            let point = queue.submit(&CommandBuffer::new()).unwrap();
            let sent = seen.take_opcodes();
            if round == 0 {
                assert_eq!(sent, [message::CONNECT_DOORBELL, message::NOTIFY]);
            } else {
                assert_eq!(sent, [message::NOTIFY]);
            }
            point.wait(Some(NEVER)).unwrap();
        }
        assert_eq!(queue.status(), Some(DoorbellStatus::ConnectedNotify));
    }
}

#[test]
fn ums_51_an_operator_has_all_queues_of_a_node_notify() {
    let daemon = Daemon::with(&["--notify", "copy"]);
    let vm = daemon.vm(0);
    let guest = RawGuest::open(&vm);
    let capset: Capset = guest.ask(message::QUERY_CAPS, &()).unwrap();
    let flags = |node: u32| capset.nodes[node as usize].flags & NODE_FLAG_NOTIFY != 0;
    assert_eq!([0, 1].map(flags), [false, true]);
    assert_eq!(NODE_COPY, 1);
    let mut queues = [Node::Copy, Node::Compute].map(|node| RawQueue::new(&guest, guest.context(node)));
    assert_eq!(queues.each_ref().map(RawQueue::connect), [Ok(CONNECTED_NOTIFY), Ok(CONNECTED)]);
    assert_eq!(queues[0].submit(&CommandBuffer::new()), CONNECTED_NOTIFY);
    notify(&queues[0]);
    queues[0].wait(1);
    queues[1].submit(&CommandBuffer::new());
    if queues[1].status() == RETRY {
        queues[1].connect().unwrap();
    }
    queues[1].wait(1);
}

#[test]
fn ums_71_ums_118_a_notified_doorbell_is_disconnected_like_any_other_and_its_last_ring_counts() {
    let daemon = Daemon::with(&["--spin", "3000"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = notifying(&guest, context);
    let mut polled = RawQueue::new(&guest, context);
    let mut rung = 0;
    for round in 1..=40 {
        // With a doorbell that is polled the engine goes its usual way to F1.
        polled.put(&CommandBuffer::new());
        polled.store_write_pointer();
        assert_eq!(polled.connect(), Ok(CONNECTED));
        assert_eq!(queue.connect(), Ok(CONNECTED_NOTIFY));
        polled.wait(round);
        // Rung at the last moment: either the ring reads RETRY, or it counts though no NOTIFY ever follows.
        let mut counts = queue.value;
        while queue.status() == CONNECTED_NOTIFY {
            if queue.written - queue.fence() < 32 && queue.submit(&CommandBuffer::new()) == CONNECTED_NOTIFY {
                counts = queue.value;
                rung += 1;
            }
            if polled.status() == RETRY && queue.status() == CONNECTED_NOTIFY {
                // It fell asleep before the notified one was connected: without anything to poll it stays as it is.
                assert_eq!(polled.connect(), Ok(CONNECTED));
            }
        }
        assert_eq!(queue.status(), RETRY);
        queue.wait(counts);
        assert_eq!(queue.connect(), Ok(CONNECTED_NOTIFY));
        queue.wait(queue.value);
    }
    assert!(rung > 0, "no ring came before the disconnect");
}

#[test]
fn ums_97_a_live_queue_is_switched_to_notify_and_back() {
    for model in [DoorbellModel::Dedicated, DoorbellModel::Global] {
        let inside = Inside::start(4, DoorbellModes([NodeMode { model, notify: false }; 2]));
        let vm = inside.vm();
        let (guest, context) = copy_guest(&vm);
        let mut queue = RawQueue::new(&guest, context);
        let chose = notifying(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        assert_eq!(chose.connect(), Ok(CONNECTED_NOTIFY));
        let switch = &inside.host.vgpus[0].notify;
        for _ in 0..20 {
            switch.set(NODE_COPY as usize, true);
            until("RETRY", || queue.status() == RETRY);
            assert_eq!(queue.submit(&CommandBuffer::new()), RETRY);
            assert_eq!(queue.connect(), Ok(CONNECTED_NOTIFY));
            queue.wait(queue.value);
            assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED_NOTIFY);
            notify(&queue);
            queue.wait(queue.value);
            switch.set(NODE_COPY as usize, false);
            until("RETRY", || queue.status() == RETRY);
            assert_eq!(queue.submit(&CommandBuffer::new()), RETRY);
            assert_eq!(queue.connect(), Ok(CONNECTED));
            queue.run(&CommandBuffer::new());
            assert_eq!(chose.status(), CONNECTED_NOTIFY, "its guest wants it so");
        }
    }
}

#[test]
fn ums_97_the_operator_throws_the_switch() {
    let operated = Operated::with(1, &["--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    for (mode, status) in [("on", CONNECTED_NOTIFY), ("off", CONNECTED)] {
        operated.ask(&["notify", "--vgpu", "v0", "--node", "copy", mode]);
        until("RETRY", || queue.status() == RETRY);
        assert_eq!(queue.connect(), Ok(status));
        assert_eq!(queue.submit(&CommandBuffer::new()), status);
        notify(&queue);
        queue.wait(queue.value);
    }
    // The other node is another's affair.
    operated.ask(&["notify", "--vgpu", "v0", "--node", "compute", "on"]);
    queue.run(&CommandBuffer::new());
    assert!(operated.refusal(&["notify", "--vgpu", "v1", "--node", "copy", "on"]).contains("no vGPU v1"));
}

#[test]
fn ums_97_a_switch_under_a_driver_loses_no_work() {
    let inside = Inside::start(4, DoorbellModes::default());
    let vm = inside.vm();
    let device = Device::open(vm.open("driver").unwrap()).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let switch = &inside.host.vgpus[0].notify;
    let (mut on, mut rounds) = (false, 0u64);
    // Each switch comes while the driver goes on, and is seen after any number of its rings.
    until("many switches seen", || {
        on = !on;
        switch.set(NODE_COPY as usize, on);
        for _ in 0..20 {
            queue.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
        }
        rounds += 20;
        queue.reconnects() >= 50 && inside.count(|counters| &counters.notifies) >= 50
    });
    assert_eq!(queue.last().value(), rounds, "each submission ran once, in order");
}

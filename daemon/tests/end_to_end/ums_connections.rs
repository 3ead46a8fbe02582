//! Doorbells that are connected, taken away and connected again.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::message;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::queue::ring;

use crate::processes::EngineView;
use crate::processes::engine;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::signals::Stopped;
use crate::support::Daemon;
use crate::support::Ends;
use crate::support::NEVER;
use crate::support::until;

// conformance: one exchange of a physical doorbell, seen at both queues
#[test]
fn ums_75_ums_33_ums_63_ums_66_two_queues_share_one_physical_doorbell() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let mut first = RawQueue::new(&guest, context);
    assert_eq!(first.connect(), Ok(CONNECTED));
    let firsts = view.slot(0);
    assert!(firsts.is_watching());

    let mut second = RawQueue::new(&guest, context);
    assert_eq!((first.status(), second.status()), (CONNECTED, RETRY));
    assert_eq!(view.slot(0), firsts, "a create takes nobody's doorbell");
    first.run(&CommandBuffer::new());

    assert_eq!(second.connect(), Ok(CONNECTED));
    assert_eq!((first.status(), second.status()), (RETRY, CONNECTED));
    assert_eq!(view.slots_in_use(), [0], "the same physical doorbell");
    let seconds = view.slot(0);
    assert_ne!((seconds.queue(), seconds.cell()), (firsts.queue(), firsts.cell()));
    second.run(&CommandBuffer::new());

    assert_eq!(first.connect(), Ok(CONNECTED));
    assert_eq!((first.status(), second.status()), (CONNECTED, RETRY));
    assert_eq!(view.slots_in_use(), [0]);
    assert_eq!((view.slot(0).queue(), view.slot(0).cell()), (firsts.queue(), firsts.cell()));
    first.run(&CommandBuffer::new());
}

#[test]
fn ums_11_a_ring_identifies_one_queue_whatever_its_value() {
    let daemon = Daemon::dedicated(2);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queues = [RawQueue::new(&guest, context), RawQueue::new(&guest, context)];
    for queue in &mut queues {
        assert_eq!(queue.connect(), Ok(CONNECTED));
    }
    assert_eq!(EngineView::of(&daemon).slots_in_use(), [0, 1]);
    for queue in &mut queues {
        // What the connects have the engine look at, it has seen then.
        queue.run(&CommandBuffer::new());
    }
    for _ in 0..20 {
        for queue in &mut queues {
            queue.put(&CommandBuffer::new());
            queue.store_write_pointer();
        }
        let [first, second] = &queues;
        // Both would ring with the same value.
        assert_eq!((first.written, first.status(), second.status()), (second.written, CONNECTED, CONNECTED));
        first.ring();
        first.wait(first.value);
        assert_eq!(second.fence(), second.value - 1, "nobody rang the second queue's doorbell");
        second.ring();
        second.wait(second.value);
    }
}

#[test]
fn ums_12_guest_processes_share_one_finite_pool() {
    let daemon = Daemon::dedicated(2);
    let vm = daemon.vm(0);
    let view = {
        let (guest, context) = copy_guest(&vm);
        let queue = RawQueue::new(&guest, context);
        assert_eq!(queue.connect(), Ok(CONNECTED));
        EngineView::of(&daemon)
    };
    until("the doorbell of a process that ended", || view.slots_in_use().is_empty());
    let processes: Vec<_> = (0..3).map(|_| copy_guest(&vm)).collect();
    let queues: Vec<_> = processes.iter().map(|(guest, context)| RawQueue::new(guest, *context)).collect();
    for (connects, queue) in queues.iter().enumerate() {
        assert_eq!(queue.connect(), Ok(CONNECTED));
        let connected = queues.iter().filter(|queue| queue.status() == CONNECTED).count();
        assert_eq!(connected, (connects + 1).min(2));
        assert_eq!(view.slots_in_use().len(), connected);
    }
}

#[test]
fn ums_13_more_queues_than_doorbells_all_work() {
    let daemon = Daemon::dedicated(2);
    let (_vm, device) = daemon.device();
    let context = device.create_context(Node::Copy).unwrap();
    let target = device.create_buffer(16 * 8).unwrap();
    let mut queues: Vec<_> =
        (0..16).map(|_| context.create_user_queue(&QueueOptions::default()).unwrap()).collect();
    for round in 1..=5u32 {
        for (index, queue) in (0u64..).zip(&mut queues) {
            queue.submit(&fill(target.va() + index * 8, 8, round)).unwrap();
        }
        for queue in &queues {
            queue.last().wait(Some(NEVER)).unwrap();
        }
        let mut bytes = [0; 16 * 8];
        target.read(0, &mut bytes).unwrap();
        assert!(bytes.chunks_exact(4).all(|word| word == round.to_le_bytes()));
    }
    assert_eq!(EngineView::of(&daemon).slots_in_use().len(), 2);
}

#[test]
fn ums_14_ums_16_the_longest_idle_loses_and_its_neighbour_in_the_page_does_not() {
    let daemon = Daemon::dedicated(2);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut rung = RawQueue::new(&guest, context);
    let idle = RawQueue::new(&guest, context);
    let mut newcomer = RawQueue::new(&guest, context);
    let page = |queue: &RawQueue| queue.bell.cell_offset / PAGE_SIZE;
    assert!(page(&idle) == page(&rung) && page(&rung) == page(&newcomer));
    // The one that rings is the one that was connected first: age alone would choose it.
    assert_eq!(rung.connect(), Ok(CONNECTED));
    assert_eq!(idle.connect(), Ok(CONNECTED));
    rung.run(&CommandBuffer::new());
    let kept = EngineView::of(&daemon).slot(0);
    assert_eq!(newcomer.connect(), Ok(CONNECTED));
    assert_eq!((rung.status(), idle.status()), (CONNECTED, RETRY));
    assert_eq!(EngineView::of(&daemon).slot(0), kept);
    rung.run(&CommandBuffer::new());
    newcomer.run(&CommandBuffer::new());
    // The page is still there under the one that lost, and its stores reach nothing.
    idle.store_cell(1);
    rung.run(&CommandBuffer::new());
    newcomer.run(&CommandBuffer::new());
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

#[test]
fn ums_46_ums_47_ums_74_cell_and_status_stay_where_they_are() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queues = [RawQueue::new(&guest, context), RawQueue::new(&guest, context)];
    assert_ne!(queues[0].bell.cell_offset, queues[1].bell.cell_offset);
    assert_ne!(queues[0].bell.status_offset, queues[1].bell.status_offset);
    for round in 0..100 {
        let (now, other) = (round % 2, (round + 1) % 2);
        assert_eq!(queues[now].status(), RETRY);
        assert_eq!(queues[now].connect(), Ok(CONNECTED));
        assert_eq!((queues[now].status(), queues[other].status()), (CONNECTED, RETRY));
        queues[now].run(&CommandBuffer::new());
    }
}

#[test]
fn ums_50_ums_56_ums_58_a_connect_binds_a_slot_and_publishes_connected() {
    let daemon = Daemon::dedicated(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!((queue.status(), view.slots_in_use()), (RETRY, Vec::new()));
    // The answer is one of the two statuses that a connect may choose, and the word says the same.
    assert_eq!(queue.connect(), Ok(CONNECTED));
    assert_eq!(queue.status(), CONNECTED);
    let cell = (queue.bell.cell_offset - device_page::CELLS) / 8;
    let [slot] = view.slots_in_use()[..] else { panic!("one slot") };
    assert_eq!(u64::from(view.slot(slot).cell()), cell);
    let sent = vm.commands_sent();
    for _ in 0..1000 {
        queue.run(&CommandBuffer::new());
    }
    assert_eq!(vm.commands_sent(), sent, "rings alone were delivered");
}

#[test]
fn ums_52_a_ring_that_reads_retry_is_connected_and_rung_again() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut victim = RawQueue::new(&guest, context);
    let mut other = RawQueue::new(&guest, context);
    assert_eq!(victim.connect(), Ok(CONNECTED));
    victim.run(&CommandBuffer::new());
    assert_eq!(other.connect(), Ok(CONNECTED));
    other.run(&CommandBuffer::new());
    assert_eq!(victim.submit(&CommandBuffer::new()), RETRY);
    for _ in 0..20 {
        other.run(&CommandBuffer::new());
    }
    assert_eq!(victim.fence(), 1, "not delivered");
    assert_eq!(victim.connect(), Ok(CONNECTED));
    assert_eq!(victim.ring(), CONNECTED);
    victim.wait(2);
}

#[test]
fn ums_59_ums_61_a_slot_is_kept_until_the_disconnect() {
    let daemon = Daemon::steady(3);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let mut keeper = RawQueue::new(&guest, context);
    assert_eq!(keeper.connect(), Ok(CONNECTED));
    let kept = view.slot(0);
    for _ in 0..20 {
        let mut other = RawQueue::new(&guest, context);
        assert_eq!(other.connect(), Ok(CONNECTED));
        other.run(&CommandBuffer::new());
        let sequence = view.sequence();
        assert_eq!(keeper.connect(), Ok(CONNECTED), "once more");
        assert_eq!(view.sequence(), sequence, "a connect of a connected doorbell changes nothing");
        keeper.run(&CommandBuffer::new());
        assert_eq!(view.slot(0), kept);
        guest.name(message::DESTROY_DOORBELL, other.bell.doorbell).unwrap();
        guest.name(message::DESTROY_QUEUE, other.created.queue).unwrap();
    }
}

#[test]
fn ums_64_a_connect_finds_what_the_ring_holds_already() {
    let daemon = Daemon::steady(2);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let target = guest.vram(4096);
    let mut queue = RawQueue::new(&guest, context);
    queue.put(&fill(target.va, 4096, 7));
    queue.put(&fill(target.va, 8, 9));
    queue.store_write_pointer();
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.wait(2);
    assert_eq!(target.word(0).load(Ordering::Relaxed), 0x9_0000_0009);
    // Its cell still says that nothing was written. A neighbour's ring makes the engine read it again.
    let mut neighbour = RawQueue::new(&guest, context);
    assert_eq!(neighbour.bell.summary_bit, queue.bell.summary_bit);
    assert_eq!(neighbour.connect(), Ok(CONNECTED));
    for _ in 0..20 {
        neighbour.run(&CommandBuffer::new());
    }
    queue.run(&CommandBuffer::new());
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

#[test]
fn ums_68_ums_69_a_disconnect_leaves_ring_and_control_to_guest_and_gpu() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let copied = guest.vram(4096);
    let mut victim = RawQueue::new(&guest, context);
    let mut other = RawQueue::new(&guest, context);
    assert_eq!(victim.connect(), Ok(CONNECTED));
    victim.run(&CommandBuffer::new());
    for round in 0..10 {
        assert_eq!(other.connect(), Ok(CONNECTED));
        assert_eq!(victim.status(), RETRY);
        // The guest's CPU goes on writing the ring, and the GPU sees what it writes.
        victim.put(&CommandBuffer::new());
        victim.store_write_pointer();
        let (ring, control) = (&victim.ring.ring, &victim.ring.control);
        for (source, bytes) in [(ring, ring.size().min(4096)), (control, ring::CONTROL_BYTES)] {
            other.run(&copy(source.va, copied.va, bytes));
            let mut seen = vec![0; usize::try_from(bytes).unwrap()];
            copied.memory.read(0, &mut seen).unwrap();
            let mut stored = seen.clone();
            source.memory.read(0, &mut stored).unwrap();
            assert!(seen == stored && seen.iter().any(|byte| *byte != 0), "round {round}");
        }
        assert_eq!(victim.connect(), Ok(CONNECTED));
        victim.wait(victim.value);
    }
}

#[test]
fn ums_57_ums_70_connected_is_never_said_of_a_doorbell_without_a_slot() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let view = EngineView::of(&daemon);
    let watched = RawQueue::new(&guest, context);
    let other = RawQueue::new(&guest, context);
    let cell = u16::try_from((watched.bell.cell_offset - device_page::CELLS) / 8).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let observer = scope.spawn(|| {
            let mut observed = 0u64;
            while !done.load(Ordering::Acquire) {
                // Slot before status, and no change of slots meanwhile: the slot read is the one that the status
                // speaks of.
                let sequence = view.sequence();
                let slot = view.slot(0);
                let status = watched.status();
                if view.sequence() != sequence {
                    continue;
                }
                let has_slot = slot.is_watching() && slot.cell() == cell;
                assert!(has_slot || status != CONNECTED, "connected to nothing, after {observed} looks");
                observed += 1;
            }
        });
        let _ends = Ends(&done);
        for _ in 0..3000 {
            assert_eq!(watched.connect(), Ok(CONNECTED));
            assert_eq!(other.connect(), Ok(CONNECTED));
            if observer.is_finished() {
                break;
            }
        }
    });
}

#[test]
fn ums_67_ums_71_a_ring_that_read_connected_is_honoured() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut ringer = RawQueue::new(&guest, context);
    let thief = RawQueue::new(&guest, context);
    let done = AtomicBool::new(false);
    let lost = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                assert_eq!(thief.connect(), Ok(CONNECTED));
            }
        });
        let _ends = Ends(&done);
        let mut lost = 0;
        for _ in 0..500 {
            let mut status = ringer.submit(&CommandBuffer::new());
            while status != CONNECTED {
                assert_eq!(status, RETRY);
                lost += 1;
                ringer.connect().unwrap();
                status = ringer.ring();
            }
            // From here on nothing helps the work along, whatever becomes of the doorbell.
            ringer.wait(ringer.value);
        }
        lost
    });
    assert!(lost > 0, "the doorbell was never taken away");
}

#[test]
fn ums_71_a_ring_is_honoured_though_the_engine_saw_neither_connect_nor_disconnect() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut ringer = RawQueue::new(&guest, context);
    let mut thief = RawQueue::new(&guest, context);
    assert_eq!(thief.connect(), Ok(CONNECTED));
    thief.run(&CommandBuffer::new());
    for _ in 0..20 {
        let stopped = Stopped::new(engine(&daemon));
        assert_eq!(ringer.connect(), Ok(CONNECTED));
        assert_eq!(ringer.submit(&CommandBuffer::new()), CONNECTED);
        assert_eq!(thief.connect(), Ok(CONNECTED));
        drop(stopped);
        ringer.wait(ringer.value);
        assert_eq!(ringer.status(), RETRY);
    }
}

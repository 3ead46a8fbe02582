//! Progress fences and last completed ids: what advances them, and what does not.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Submit;
use campanile_protocol::device_page::DEVICE_ACTIVE;

use crate::operator::Operated;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::support::until;

fn operated() -> Operated {
    Operated::with(1, &["--spin", "600000000"])
}

/// Last submitted, and last completed, of the copy engine.
fn ids(operated: &Operated) -> [Option<u64>; 2] {
    let engine = operated.ask(&["status"])["vgpus"][0]["session"]["engines"][1].clone();
    ["last_submitted_fence", "last_completed_fence"].map(|field| engine[field].as_u64())
}

/// Resets the copy engine, and waits until its next process runs.
fn reset(operated: &Operated) {
    operated.ask(&["reset", "--vgpu", "v0", "--node", "copy"]);
    let state = || operated.ask(&["status"])["vgpus"][0]["session"]["engines"][1]["state"].clone();
    until("the next process", || state() == "running");
}

#[test]
fn tdr_53_tdr_56_a_suspended_buffer_has_not_completed_until_it_is_resumed_and_done() {
    let operated = operated();
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let fences = || ids(&operated);
    let (arena, gate) = (guest.vram(4096), guest.vram(4096));
    let commands = wait_for(gate.va, 1);
    arena.memory.write(0, commands.bytes()).unwrap();
    let length = u32::try_from(commands.bytes().len()).unwrap();
    let queue = guest.queue(context, 0).unwrap().queue;
    let waits = guest.send(1, message::SUBMIT, &Submit { queue, buffer_va: arena.va, length, flags: 0 });
    until("the buffer on its engine", || fences()[0] == Some(1));
    guest.send(2, message::SUSPEND_CONTEXT, &Named { handle: context }).finish().unwrap();
    // It was handed back: a round trip is later than that.
    guest.round_trip();
    assert_eq!(fences(), [Some(1), Some(0)]);
    gate.word(0).store(1, Ordering::Release);
    guest.name(message::RESUME_CONTEXT, context).unwrap();
    waits.finish().unwrap();
    until("both counts", || fences() == [Some(2), Some(2)]);
}

#[test]
fn tdr_53_tdr_56_no_suspend_reset_or_preemption_of_a_kernel_mode_buffer_advances_a_fence() {
    let operated = operated();
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let (arena, gate) = (guest.vram(4096), guest.vram(4096));
    let commands = wait_for(gate.va, 1);
    arena.memory.write(0, commands.bytes()).unwrap();
    let length = u32::try_from(commands.bytes().len()).unwrap();
    let created = guest.queue(context, 0).unwrap();
    let other = guest.queue(guest.context(Node::Copy), 0).unwrap();
    let submit = |queue, length| Submit { queue, buffer_va: arena.va, length, flags: 0 };
    let fence = || guest.load(created.fence_offset);
    let waits = guest.send(1, message::SUBMIT, &submit(created.queue, length));
    until("the buffer on its engine", || ids(&operated) == [Some(1), Some(0)]);
    guest.send(2, message::SUSPEND_CONTEXT, &Named { handle: context }).finish().unwrap();
    assert_eq!((fence(), ids(&operated)), (0, [Some(1), Some(0)]), "suspended");
    guest.name(message::RESUME_CONTEXT, context).unwrap();
    until("the buffer on its engine again", || ids(&operated)[0] == Some(2));
    reset(&operated);
    assert_eq!((fence(), ids(&operated)), (0, [Some(2), Some(0)]), "it waited, so the reset aborted nothing");
    // One behind it has it handed back, and completes. It goes on under another id.
    guest.send(2, message::SUBMIT, &submit(other.queue, 0)).finish().unwrap();
    let [_, completed] = ids(&operated);
    assert!(completed >= Some(3), "{completed:?}");
    assert_eq!((fence(), guest.load(other.fence_offset)), (0, 1));
    gate.word(0).store(1, Ordering::Release);
    waits.finish().unwrap();
    assert_eq!((fence(), guest.device_status()), (1, DEVICE_ACTIVE));
    until("both ids", || {
        let [submitted, completed] = ids(&operated);
        submitted == completed && submitted >= Some(4)
    });
}

#[test]
fn tdr_53_tdr_56_no_suspend_or_reset_of_a_ring_advances_its_fence() {
    let operated = operated();
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let gate = guest.vram(4096);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let mut begun = CommandBuffer::new();
    begun.signal(gate.va + 8, 1).unwrap();
    begun.wait(gate.va, 1).unwrap();
    queue.submit(&begun);
    until("the buffer", || gate.word(8).load(Ordering::Acquire) == 1);
    let reached = || (queue.fence(), queue.read_pointer());
    guest.send(2, message::SUSPEND_CONTEXT, &Named { handle: context }).finish().unwrap();
    assert_eq!(reached(), (1, 1), "suspended");
    reset(&operated);
    assert_eq!(reached(), (1, 1), "still suspended, in the next process");
    guest.name(message::RESUME_CONTEXT, context).unwrap();
    reset(&operated);
    assert_eq!(reached(), (1, 1), "it waited, so the reset aborted nothing");
    gate.word(0).store(1, Ordering::Release);
    queue.wait(2);
    assert_eq!((queue.read_pointer(), guest.device_status()), (2, DEVICE_ACTIVE));
}

//! Contexts that are suspended and resumed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::Suspended;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::handle::Handle;
use zerocopy::FromBytes;

use crate::processes::EngineView;
use crate::processes::engine;
use crate::processes::engines;
use crate::raw::RawCall;
use crate::raw::RawGuest;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::signals::Stopped;
use crate::signals::stop_at_rest;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

/// Round trips after which whatever would run has run: each is later than what was there before it.
const LONG_ENOUGH: usize = 50;

fn suspend(guest: &Arc<RawGuest>, slot: u32, context: Handle) -> RawCall {
    guest.send(slot, message::SUSPEND_CONTEXT, &Named { handle: context })
}

fn suspended(call: RawCall) -> u64 {
    Suspended::read_from_bytes(&call.finish().unwrap()).unwrap().fence
}

fn resume(guest: &RawGuest, context: Handle) {
    guest.name(message::RESUME_CONTEXT, context).unwrap();
}

// conformance: one suspend and one resume, and each line is a step between them
#[test]
fn ums_102_ums_103_ums_104_ums_105_a_suspended_context_keeps_its_doorbells_and_runs_nothing_until_it_is_resumed()
 {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queues: Vec<RawQueue> = (0..2).map(|_| RawQueue::new(&guest, context)).collect();
    let other_context = guest.context(Node::Copy);
    let mut other = RawQueue::new(&guest, other_context);
    for queue in queues.iter_mut().chain([&mut other]) {
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.run(&CommandBuffer::new());
    }
    assert_eq!(suspended(suspend(&guest, 1, context)), 1);
    let memory = guest.vram(4096);
    for (queue, value) in queues.iter_mut().zip([3, 4]) {
        let place = memory.va + 8 * u64::from(value);
        assert_eq!(queue.submit(&fill(place, 8, value)), CONNECTED, "rings are delivered");
        queue.submit(&CommandBuffer::new());
    }
    for _ in 0..LONG_ENOUGH {
        other.run(&CommandBuffer::new());
    }
    for queue in &queues {
        assert_eq!((queue.fence(), queue.read_pointer(), queue.status()), (1, 1, CONNECTED));
    }
    assert!((0..512).all(|word| memory.word(8 * word).load(Ordering::Acquire) == 0));
    resume(&guest, context);
    for (queue, value) in queues.iter().zip([3, 4]) {
        queue.wait(3);
        assert_eq!(memory.word(8 * value).load(Ordering::Acquire), value << 32 | value);
    }
}

#[test]
fn ums_106_a_suspended_queue_may_lose_its_doorbell_and_connects_again_at_once() {
    let daemon = Daemon::dedicated(1);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    let other_context = guest.context(Node::Copy);
    let mut other = RawQueue::new(&guest, other_context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    suspended(suspend(&guest, 1, context));
    assert_eq!(other.connect(), Ok(CONNECTED));
    assert_eq!(queue.status(), RETRY);
    assert_eq!(queue.submit(&CommandBuffer::new()), RETRY);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    assert_eq!(queue.ring(), CONNECTED);
    for _ in 0..LONG_ENOUGH {
        assert_eq!(other.connect(), Ok(CONNECTED));
        other.run(&CommandBuffer::new());
    }
    assert_eq!(queue.fence(), 1);
    resume(&guest, context);
    queue.wait(2);
}

#[test]
fn ums_107_the_ordinary_path_takes_work_for_a_suspended_context_and_holds_it() {
    let daemon = Daemon::steady(4);
    let (_vm, device) = daemon.device();
    let context = device.create_context(Node::Copy).unwrap();
    let mut held = context.create_kernel_queue().unwrap();
    let mut other = device.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
    let memory = device.create_buffer(4096).unwrap();
    context.suspend().unwrap();
    let mut tickets = Vec::new();
    for value in 1..=4 {
        let mut commands = CommandBuffer::new();
        // Each after the one before: the last to store is the last submitted.
        commands.fill(memory.va(), 4, value).unwrap();
        tickets.push(held.submit(&commands).unwrap());
    }
    for _ in 0..LONG_ENOUGH {
        let ticket = other.submit(&CommandBuffer::new()).unwrap();
        other.wait(ticket, Some(NEVER)).unwrap();
    }
    assert!(tickets.iter().all(|ticket| !held.is_done(*ticket)));
    context.resume().unwrap();
    for ticket in tickets {
        held.wait(ticket, Some(NEVER)).unwrap();
    }
    assert_eq!(memory.memory().word(0).unwrap().load(Ordering::Acquire), 4);
}

#[test]
fn ums_108_ums_110_a_long_buffer_is_stopped_where_it_is_and_goes_on_from_there() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let memory = device.create_buffer(24 << 20).unwrap();
    let (half, marks) = (8 << 20, 16 << 20);
    let word = |offset: u64| memory.memory().word(offset).unwrap().load(Ordering::Acquire);
    let mut other = device.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
    for is_user_mode in [true, false] {
        memory.write(marks, &[5; 4096]).unwrap();
        memory.write(marks + 4096, &[0; 8]).unwrap();
        let mut commands = CommandBuffer::new();
        // Run twice, it would copy what it has overwritten.
        commands.copy(memory.va() + marks, memory.va() + marks + 8192, 4096).unwrap();
        commands.fill(memory.va() + marks, 4096, 0x0909_0909).unwrap();
        for _ in 0..600 {
            commands.copy(memory.va(), memory.va() + half, half).unwrap();
        }
        commands.fill(memory.va() + marks + 4096, 8, 7).unwrap();
        let context = device.create_context(Node::Copy).unwrap();
        let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
        let mut ordinary = context.create_kernel_queue().unwrap();
        let mut ticket = None;
        if is_user_mode {
            user.submit(&commands).unwrap();
        } else {
            ticket = Some(ordinary.submit(&commands).unwrap());
        }
        until("the long buffer has begun", || word(marks) == 0x0909_0909_0909_0909);
        context.suspend().unwrap();
        assert_ne!(word(marks + 4096), 7 << 32 | 7, "suspended before its end");
        // Nothing of the context is on the GPU: what is stored now stays.
        memory.write(half, &[0; 4096]).unwrap();
        memory.write(2 * half - 4096, &[0; 4096]).unwrap();
        memory.write(0, &[1; 4096]).unwrap();
        for _ in 0..LONG_ENOUGH {
            let ticket = other.submit(&CommandBuffer::new()).unwrap();
            other.wait(ticket, Some(NEVER)).unwrap();
        }
        assert_eq!((word(half), word(2 * half - 4096)), (0, 0));
        context.resume().unwrap();
        user.last().wait(Some(NEVER)).unwrap();
        if let Some(ticket) = ticket {
            ordinary.wait(ticket, Some(NEVER)).unwrap();
        }
        assert_eq!(word(marks + 4096), 7 << 32 | 7);
        assert_eq!(word(marks + 8192), 0x0505_0505_0505_0505, "run again from its start");
    }
}

#[test]
fn ums_109_suspend_fences_rise_and_a_context_that_is_suspended_already_is_not_suspended_again() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let other = guest.context(Node::Copy);
    for fence in 1..=5 {
        assert_eq!(suspended(suspend(&guest, 1, context)), fence);
        assert_eq!(suspended(suspend(&guest, 1, context)), fence, "already suspended");
        resume(&guest, context);
        resume(&guest, context);
    }
    assert_eq!(suspended(suspend(&guest, 1, other)), 1, "each context counts its own");
}

#[test]
fn ums_111_the_report_of_one_suspend_never_passes_for_that_of_the_next() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let view = EngineView::of(&daemon);
    let stopped = Stopped::new(engine(&daemon));
    let first = suspend(&guest, 1, context);
    resume(&guest, context);
    assert_eq!(first.finish(), Err(Status::Busy), "it may never have stopped");
    let second = suspend(&guest, 2, context);
    guest.round_trip();
    view.report_suspend(0, 1);
    // Has the daemon look at the reports.
    let other = suspend(&guest, 3, guest.context(Node::Copy));
    guest.round_trip();
    assert!(!second.is_done(), "satisfied by the report of the first");
    drop(stopped);
    assert_eq!((suspended(second), suspended(other)), (2, 1));
    assert_eq!(view.suspend_reported(0), 2);
    resume(&guest, context);
    queue.run(&CommandBuffer::new());
}

#[test]
fn ums_112_tdr_25_an_engine_that_does_not_suspend_in_time_is_reset_and_nobody_is_lost_who_did_nothing() {
    let daemon = Daemon::with(&["--tdr-timeout", "200", "--spin", "600000000"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let slow = engine(&daemon);
    // Only the suspend finds it.
    let _stopped = stop_at_rest(slow);
    assert_eq!(suspended(suspend(&guest, 1, context)), 1, "nothing of the context is left where nothing is");
    assert_ne!(engine(&daemon), slow);
    assert_eq!(queue.submit(&CommandBuffer::new()), CONNECTED);
    guest.round_trip();
    assert_eq!(queue.fence(), 1, "still suspended, in the next process too");
    resume(&guest, context);
    queue.wait(2);
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

#[test]
fn ums_113_an_engine_that_reports_a_suspend_that_was_never_asked_for_is_reset() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    assert_eq!(suspended(suspend(&guest, 1, context)), 1);
    resume(&guest, context);
    let liar = engine(&daemon);
    let view = EngineView::of(&daemon);
    // Told again where the engine has just reported the truth over it, on its way out of the suspend.
    until("the liar's end", || {
        view.report_suspend(0, 2);
        // Has the daemon look at the reports.
        assert_eq!(suspended(suspend(&guest, 1, guest.context(Node::Copy))), 1);
        !engines(&daemon).contains(&liar)
    });
    queue.run(&CommandBuffer::new());
    assert_eq!(guest.device_status(), DEVICE_ACTIVE);
}

#[test]
fn ums_121_tdr_23_tdr_24_an_engine_that_reports_that_it_hangs_is_reset_before_any_timeout() {
    let daemon = Daemon::with(&["--tdr-timeout", "3600000", "--spin", "600000000"]);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let hung = engine(&daemon);
    let view = EngineView::of(&daemon);
    let _stopped = stop_at_rest(hung);
    view.report_hung();
    // Has the daemon look at the reports.
    assert_eq!(suspended(suspend(&guest, 1, context)), 1);
    assert!(!engines(&daemon).contains(&hung));
    resume(&guest, context);
    queue.run(&CommandBuffer::new());
    assert_eq!(guest.device_status(), DEVICE_ACTIVE, "it ran nobody's work");
}

#[test]
fn ums_114_a_context_begins_resumed_even_in_the_place_of_one_that_was_suspended() {
    let daemon = Daemon::steady(4);
    let vm = daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    for _ in 0..4 {
        let context = guest.context(Node::Copy);
        assert_eq!(suspended(suspend(&guest, 1, context)), 1);
        guest.name(message::DESTROY_CONTEXT, context).unwrap();
    }
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let fresh = guest.context(Node::Copy);
    let mut its_queue = RawQueue::new(&guest, fresh);
    assert_eq!(its_queue.connect(), Ok(CONNECTED));
    its_queue.run(&CommandBuffer::new());
}

#[test]
fn a_queue_of_a_suspended_context_can_be_destroyed_with_all_that_it_holds() {
    let daemon = Daemon::steady(4);
    let (_vm, device) = daemon.device();
    let context = device.create_context(Node::Copy).unwrap();
    let mut user = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut ordinary = context.create_kernel_queue().unwrap();
    user.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
    context.suspend().unwrap();
    user.submit(&CommandBuffer::new()).unwrap();
    ordinary.submit(&CommandBuffer::new()).unwrap();
    drop((user, ordinary));
    context.resume().unwrap();
    let mut next = context.create_kernel_queue().unwrap();
    let ticket = next.submit(&CommandBuffer::new()).unwrap();
    next.wait(ticket, Some(NEVER)).unwrap();
    device.check().unwrap();
}

//! What the operator sets reaches the engines that run.

use std::sync::atomic::Ordering;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_protocol::control::message;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Submit;

use crate::operator::Operated;
use crate::processes::EngineView;
use crate::processes::engine;
use crate::processes::kill_engine_at_rest;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::support::Daemon;
use crate::support::until;

#[test]
fn pre_68_pre_69_the_share_of_the_band_normal_reaches_first_engines_and_those_that_replace_them() {
    for (percent, arguments) in [(37, &["--normal-share", "37"][..]), (10, &[])] {
        let daemon = Daemon::with(&[&["--spin", "600000000"], arguments].concat());
        let vm = daemon.vm(0);
        let (guest, context) = copy_guest(&vm);
        let mut queue = RawQueue::new(&guest, context);
        queue.connect().unwrap();
        queue.run(&CommandBuffer::new());
        assert_eq!(EngineView::of(&daemon).bands().normal_share, percent, "the first");
        let first = kill_engine_at_rest(&daemon);
        until("another engine", || engine(&daemon) != first);
        queue.run(&CommandBuffer::new());
        assert_eq!(EngineView::of(&daemon).bands().normal_share, percent, "its successor");
    }
}

#[test]
fn tdr_53_tdr_56_a_suspended_buffer_has_not_completed_until_it_is_resumed_and_done() {
    let operated = Operated::with(1, &["--spin", "600000000"]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let fences = || {
        let engine = operated.ask(&["status"])["vgpus"][0]["session"]["engines"][1].clone();
        ["last_submitted_fence", "last_completed_fence"].map(|field| engine[field].as_u64())
    };
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

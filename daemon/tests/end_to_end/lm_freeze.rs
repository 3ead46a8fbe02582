//! A standstill: nothing runs, nothing is written, nothing is lost.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_daemon::migration::state::State;
use campanile_daemon::vgpu::state::save::snapshot::SaveError;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::status::Status;

use crate::moving::Moving;
use crate::moving::Shape;
use crate::raw::RawGuest;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::support::until;

#[test]
fn lm_25_state_is_to_be_had_of_a_vgpu_that_stands_still_and_of_no_other() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    queue.connect().unwrap();
    queue.run(&CommandBuffer::new());
    let save = || moving.ask(|device| device.session().save().map(|_| ()));
    assert_eq!(save(), Err(SaveError::NotFrozen));
    moving.freeze();
    assert_eq!(save(), Ok(()));
    moving.thaw();
    assert_eq!(save(), Err(SaveError::NotFrozen));
}

#[test]
fn lm_27_lm_51_lm_52_after_an_aborted_migration_guests_find_retry_and_lose_nothing() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    queue.connect().unwrap();
    queue.run(&CommandBuffer::new());
    for round in 0..5 {
        moving.freeze();
        assert_eq!(queue.status(), RETRY, "before the standstill is there");
        // A thread in its ring loop: rings, and reads RETRY.
        assert_eq!(queue.submit(&CommandBuffer::new()), RETRY);
        if round % 2 == 0 {
            moving.ask(|device| drop(device.save()));
        }
        let before = queue.fence();
        moving.thaw();
        assert_eq!(queue.connect(), Ok(CONNECTED));
        queue.wait(queue.value);
        assert_eq!(queue.fence(), before + 1);
    }
    assert_eq!(moving.counters.devices_lost.load(Ordering::Relaxed), 0);
}

#[test]
fn lm_27_work_that_was_rung_before_a_standstill_goes_on_after_it_without_another_ring() {
    // An engine that falls asleep before the first submission disconnects the doorbell.
    let moving = Moving::start(&Shape { spin: Duration::from_secs(600), ..Shape::default() });
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let target = guest.vram(16 << 20);
    let mut queue = RawQueue::new(&guest, context);
    queue.connect().unwrap();
    for value in 1..=40 {
        assert_eq!(queue.submit(&fill(target.va, target.size(), value)), CONNECTED);
    }
    moving.freeze();
    let before = queue.fence();
    assert!(before < 40, "all of it was done before");
    let word = target.word(0).load(Ordering::Acquire);
    moving.ask(|_| ());
    assert_eq!((queue.fence(), target.word(0).load(Ordering::Acquire)), (before, word));
    moving.thaw();
    queue.wait(40);
    assert_eq!(target.word(target.size() - 8).load(Ordering::Acquire), 40 << 32 | 40);
}

#[test]
fn lm_27_nothing_that_a_guest_asks_for_is_done_while_everything_stands_still() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let guest = RawGuest::open(&vm);
    let context = guest.context(campanile_guest_driver::node::Node::Copy);
    moving.freeze();
    let resume = message::Named { handle: context };
    let call = guest.send(1, message::RESUME_CONTEXT, &resume);
    moving.ask(|_| ());
    assert!(!call.is_done());
    moving.thaw();
    assert_eq!(call.finish(), Ok(Vec::new()));
    let wrong = message::Named { handle: campanile_protocol::handle::Handle(7) };
    let refused = guest.call(message::RESUME_CONTEXT, &wrong);
    assert_eq!(refused, Err(Status::InvalidHandle));
    until("a device that works", || guest.device_status() == campanile_protocol::device_page::DEVICE_ACTIVE);
}

#[test]
fn lm_29_a_standstill_begins_once_and_ends_once() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, _) = copy_guest(&vm);
    assert!(!moving.ask(|device| device.session().thaw()), "it runs");
    assert!(moving.ask(|device| device.session().freeze()));
    assert!(!moving.ask(|device| device.session().freeze()), "it is on its way");
    until("a standstill", || moving.ask(|device| device.session().is_frozen()));
    assert!(!moving.ask(|device| device.session().freeze()), "it stands still");
    assert!(moving.ask(|device| device.session().thaw()));
    assert!(!moving.ask(|device| device.session().thaw()), "it runs");
    guest.round_trip();
}

#[test]
fn lm_27_who_thinks_better_of_it_before_the_standstill_is_there_finds_everything_running() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    for _ in 0..20 {
        while queue.submit(&CommandBuffer::new()) != CONNECTED {
            queue.connect().unwrap();
        }
        // Both in one call: no engine has had time to report anything.
        moving.ask(|device| {
            device.session().freeze();
            device.session().thaw();
        });
        queue.wait(queue.value);
    }
}

#[test]
fn lm_16_lm_17_the_size_of_what_is_saved_does_not_change_while_everything_stands_still() {
    let moving = Moving::start(&Shape::default());
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let target = guest.vram(16 << 20);
    let mut queue = RawQueue::new(&guest, context);
    queue.connect().unwrap();
    for value in 1..=20 {
        queue.submit(&fill(target.va, target.size(), value));
    }
    moving.freeze();
    let bytes = || {
        let session = moving.ask(|device| device.save());
        State { session, ..State::default() }.encode().unwrap()
    };
    let first = bytes();
    // What a guest asks for meanwhile, and rings, changes nothing.
    let call = guest.send(
        1,
        message::CREATE_CONTEXT,
        &CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 },
    );
    queue.submit(&CommandBuffer::new());
    assert_eq!(bytes(), first);
    moving.thaw();
    call.finish().unwrap();
}

#[test]
fn lm_55_time_that_everything_stood_still_counts_for_no_hang() {
    let timeout = Duration::from_secs(1);
    let moving = Moving::start(&Shape { timeout, ..Shape::default() });
    let vm = moving.vm();
    let (guest, context) = copy_guest(&vm);
    let target = guest.vram(16 << 20);
    let mut queue = RawQueue::new(&guest, context);
    queue.connect().unwrap();
    for value in 1..=40 {
        queue.submit(&fill(target.va, target.size(), value));
    }
    for moves in [false, true] {
        moving.freeze();
        assert!(queue.fence() < 40, "all of it was done before");
        // Time is what this is about: longer than an engine may stand still.
        std::thread::sleep(timeout + timeout / 4);
        if moves {
            moving.ask(|device| drop(device.exchange()));
        }
        moving.thaw();
        let done = queue.fence();
        until("more of it", || queue.fence() > done);
    }
    queue.wait(40);
    let counters = &moving.counters;
    let resets = [&counters.engines_reset, &counters.adapters_reset, &counters.timeouts_in_vain];
    assert!(resets.iter().all(|count| count.load(Ordering::Relaxed) == 0));
}

//! One thing at a time, over fakes.

use std::time::Duration;

use campanile_host_gpu::adapter::fake::Conduct;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::control::message;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use super::world::COPY;
use super::world::World;
use crate::ids::GuestProcess;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::tdr::recovery::Recovery;
use crate::vgpu::testing::counted;

/// Process 1 has a context and a queue.
fn with_queue() -> (World, Handle, Handle) {
    let mut world = World::new();
    world.open(1);
    let context = world.context(1);
    let queue = world.queue(1, context);
    (world, context, queue)
}

fn ran(world: &World) -> Vec<u64> {
    world.fakes.take_ran().iter().map(|ran| ran.submission.buffer_va).collect()
}

#[test]
fn ums_109_a_suspended_context_runs_nothing_and_goes_on_in_its_order_when_it_is_resumed() {
    let (mut world, context, queue) = with_queue();
    for va in [8, 16, 24] {
        world.submit(1, queue, va);
    }
    world.turn(1);
    let suspend = world.named(1, message::SUSPEND_CONTEXT, context);
    world.turn(0);
    assert_eq!(world.answer(suspend).map(|(status, [fence, _])| (status, fence)), Some((0, 1)));
    world.turn(9);
    assert_eq!(ran(&world), [8]);
    world.named(1, message::RESUME_CONTEXT, context);
    world.turn(9);
    world.turn(9);
    assert_eq!(ran(&world), [16, 24]);
    world.turn(0);
    assert!(world.asked.is_empty());
}

#[test]
fn ums_123_a_device_in_d3_has_no_engine_and_a_message_brings_back_what_it_had() {
    let (mut world, _, queue) = with_queue();
    world.session.power().enter_d3(None);
    world.turn(1);
    assert_eq!((world.session.power.name(), world.fakes.alive()), ("D3", 0));
    world.submit(1, queue, 8);
    assert_eq!((world.session.power.name(), world.fakes.alive()), ("D0", 1));
    (0..3).for_each(|_| world.turn(1));
    assert_eq!((ran(&world), world.fakes.started()), (vec![8], 2));
    assert!(world.asked.is_empty());
}

#[test]
fn tdr_57_the_work_of_others_goes_on_after_the_reset_and_that_of_the_guilty_process_is_refused() {
    let (mut world, _, queue) = with_queue();
    world.open(2);
    let context = world.context(2);
    let other = world.queue(2, context);
    world.submit(1, queue, 8);
    world.submit(2, other, 16);
    world.fakes.conduct(NodeKind::Copy, Conduct::Hangs);
    world.turn(1);
    Recovery::of(&mut world.session.vm).engine_timeout(COPY, "it hangs", None);
    assert_eq!((world.is_active(1), world.is_active(2)), (false, true));
    assert_eq!(counted(&world.session.vm.counters.engines_reset), 1);
    (0..3).for_each(|_| world.turn(1));
    assert_eq!(ran(&world), [16]);
    assert!(world.asked.is_empty(), "what will not run is over, too");
}

#[test]
fn an_engine_that_never_comes_up_is_given_up_and_what_waits_for_it_is_refused() {
    let mut world = World::new();
    world.open(1);
    let create = message::CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
    let asked = world.ask(1, message::CREATE_CONTEXT, create.as_bytes());
    assert_eq!((world.answer(asked), world.fakes.alive()), (None, 1));
    world.fakes.conduct(NodeKind::Copy, Conduct::Dies);
    world.look();
    assert_eq!(world.answer(asked).map(|(status, _)| status), Some(Status::NotSupported.word()));
    let slot = &world.session.vm.engines[COPY.index()];
    assert!(slot.process().is_none() && slot.waiting.is_empty());
    assert_eq!(world.fakes.alive(), 0, "no process of it is left");
    assert!(world.asked.is_empty(), "and its fence signals");
    // The next message starts another.
    world.context(1);
    assert_eq!((world.fakes.started(), world.fakes.alive()), (2, 1));
}

#[test]
fn tdr_61_suspends_of_a_device_that_is_put_in_error_are_refused_and_those_of_another_go_on() {
    let (mut world, context, _) = with_queue();
    world.open(2);
    let others = world.context(2);
    world.fakes.conduct(NodeKind::Copy, Conduct::Hangs);
    let of_lost = world.named(1, message::SUSPEND_CONTEXT, context);
    let of_other = world.named(2, message::SUSPEND_CONTEXT, others);
    world.turn(1);
    assert_eq!((world.answer(of_lost), world.answer(of_other)), (None, None));
    Devices::of(&mut world.session.vm)
        .put_device_in_error(GuestProcess::new(1), campanile_protocol::device_page::DEVICE_STOPPED);
    let status = |world: &World, asked| world.answer(asked).map(|(status, _)| status);
    assert!(status(&world, of_lost).is_some_and(|status| status != Status::Ok.word()));
    assert_eq!(status(&world, of_other), None, "the other's is still under way");
    world.fakes.conduct(NodeKind::Copy, Conduct::Works);
    world.turn(1);
    assert_eq!(status(&world, of_other), Some(Status::Ok.word()));
}

#[test]
fn lm_29_what_stands_still_goes_on_in_another_session_where_it_was() {
    let (mut world, _, queue) = with_queue();
    for va in [8, 16, 24] {
        world.submit(1, queue, va);
    }
    world.turn(1);
    assert_eq!(ran(&world), [8]);
    assert!(world.session.freeze());
    world.turn(1);
    assert!(world.session.is_frozen());
    assert_eq!((ran(&world), world.fakes.alive()), (vec![], 0));
    world.move_on();
    assert!(world.session.thaw());
    (0..4).for_each(|_| world.turn(1));
    assert_eq!(ran(&world), [16, 24]);
    assert!(world.asked.is_empty());
}

#[test]
fn lm_29_an_engine_that_does_not_stand_still_is_ended_when_its_time_is_over_and_not_before() {
    let (mut world, _, queue) = with_queue();
    world.submit(1, queue, 8);
    world.fakes.conduct(NodeKind::Copy, Conduct::Hangs);
    world.turn(1);
    assert!(world.session.freeze());
    world.pass(Duration::from_millis(999));
    assert!(!world.session.is_frozen());
    world.pass(Duration::from_millis(1));
    assert!(world.session.is_frozen());
    assert_eq!(counted(&world.session.vm.counters.freezes_forced), 1);
    assert!(!world.is_active(1));
}

#[test]
fn mcdm_39_an_unmap_comes_after_the_buffers_before_it_and_before_those_after_it() {
    let (mut world, _, queue) = with_queue();
    assert!(world.blob(1, 100));
    let (va, size) = (0x100_0000, campanile_protocol::PAGE_SIZE);
    let map = MapMemory { resource: 100, flags: MAP_WRITABLE, offset: 0, va, size };
    world.ask(1, message::MAP_MEMORY, map.as_bytes());
    let applied =
        |world: &World| world.session.vm.objects.device(GuestProcess::new(1)).unwrap().paging.applied;
    let before = applied(&world);
    world.submit(1, queue, 8);
    world.ask(1, message::UNMAP_MEMORY, UnmapMemory { va, size }.as_bytes());
    world.submit(1, queue, 16);
    assert_eq!(applied(&world), before);
    world.fakes.step(9);
    assert_eq!(ran(&world), [8], "the other is not with the engine yet");
    world.look();
    assert_eq!(applied(&world), before + 1);
    (0..3).for_each(|_| world.turn(1));
    assert_eq!(ran(&world), [16]);
    let paging = &world.session.vm.objects.device(GuestProcess::new(1)).unwrap().paging;
    assert_eq!((paging.done(), paging.issued()), (before + 1, before + 1));
    assert!(world.asked.is_empty());
}

#[test]
fn what_an_ended_process_left_with_an_engine_keeps_no_device_in_d3_from_being_saved() {
    let (mut world, ..) = with_queue();
    world.open(2);
    let context = world.context(2);
    let queue = world.queue(2, context);
    world.turn(0);
    world.submit(2, queue, 16);
    assert_eq!(world.session.vm.engines[COPY.index()].in_flight.len(), 1);
    world.close(2);
    world.session.power().enter_d3(None);
    world.turn(0);
    assert_eq!(world.session.power.name(), "D3");
    assert_eq!(world.session.vm.engines[COPY.index()].in_flight.len(), 0, "it will never run");
    assert!(world.session.freeze());
    assert!(world.session.is_frozen());
    world.move_on();
    assert!(world.session.thaw());
}

#[test]
fn mcdm_14_a_context_that_was_suspended_and_resumed_on_the_run_list_overtakes_no_buffer_of_its_own() {
    let (mut world, context, queue) = with_queue();
    world.open(2);
    let others = world.context(2);
    let other = world.queue(2, others);
    world.turn(0);
    // The engine has two; the third stands on the run list.
    world.submit(2, other, 104);
    world.submit(1, queue, 8);
    world.submit(1, queue, 16);
    world.named(1, message::SUSPEND_CONTEXT, context);
    world.named(1, message::RESUME_CONTEXT, context);
    (0..4).for_each(|_| world.turn(2));
    assert_eq!(ran(&world), [104, 8, 16]);
}

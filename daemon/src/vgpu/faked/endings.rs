//! What guests end, and what may not be ended yet.

use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;
use std::sync::atomic::Ordering;

use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use super::world::Asked;
use super::world::COPY;
use super::world::World;

fn world() -> (World, Handle, Handle) {
    let mut world = World::new();
    world.open(1);
    let context = world.context(1);
    let queue = world.queue(1, context);
    (world, context, queue)
}

fn end(world: &mut World, opcode: u32, handle: Handle) -> u32 {
    let asked = world.named(1, opcode, handle);
    world.answer(asked).map(|(status, _)| status).unwrap()
}

fn wait_for(world: &mut World, queue: Handle, value: u64) -> Asked {
    world.ask(1, message::WAIT_FENCE, WaitFence { queue, value }.as_bytes())
}

fn status(world: &World, asked: Asked) -> Option<u32> {
    world.answer(asked).map(|(status, _)| status)
}

#[test]
fn a_context_is_ended_when_its_last_queue_is_and_its_entry_is_free_then() {
    let (mut world, context, queue) = world();
    let second = world.queue(1, context);
    let entry = |world: &World, handle| {
        world.session.vm.objects.device(GuestProcess::new(1)).unwrap().contexts.get(handle)?.entry
    };
    let first = entry(&world, ContextHandle::new(context)).unwrap();
    let another = Handle(context.0 ^ 1 << 32);
    assert_eq!(end(&mut world, message::DESTROY_CONTEXT, another), Status::InvalidHandle.word());
    assert_eq!(end(&mut world, message::DESTROY_CONTEXT, context), Status::Busy.word());
    assert_eq!(end(&mut world, message::DESTROY_QUEUE, queue), Status::Ok.word());
    assert_eq!(end(&mut world, message::DESTROY_CONTEXT, context), Status::Busy.word());
    assert_eq!(end(&mut world, message::DESTROY_QUEUE, second), Status::Ok.word());
    let held = world.budget.standing().held;
    let areas = world
        .session
        .vm
        .objects
        .device(GuestProcess::new(1))
        .unwrap()
        .contexts
        .get(ContextHandle::new(context))
        .unwrap()
        .area;
    assert_eq!(end(&mut world, message::DESTROY_CONTEXT, context), Status::Ok.word());
    assert_eq!(end(&mut world, message::DESTROY_CONTEXT, context), Status::InvalidHandle.word());
    (0..3).for_each(|_| world.turn(0));
    let now = world.budget.standing().held;
    assert!(now.bytes < held.bytes, "what it was charged comes back");
    // The entry with the engine, and the place on its run list, are for the next one.
    let next = world.context(1);
    assert_eq!(entry(&world, ContextHandle::new(next)), Some(first));
    assert_eq!(
        world
            .session
            .vm
            .objects
            .device(GuestProcess::new(1))
            .unwrap()
            .contexts
            .get(ContextHandle::new(next))
            .unwrap()
            .area
            .va,
        areas.va
    );
    let queue = world.queue(1, next);
    world.submit(1, queue, 8);
    world.turn(1);
    let ran: Vec<u64> = world.fakes.take_ran().iter().map(|ran| ran.submission.buffer_va).collect();
    assert_eq!(ran, [8]);
    world.turn(0);
    assert!(world.asked.is_empty());
}

#[test]
fn suspends_of_a_context_that_ends_are_refused_and_those_of_others_go_on() {
    let (mut world, context, queue) = world();
    let other = world.context(1);
    world.open(2);
    let foreign = world.context(2);
    assert_eq!(foreign, context, "another process may have the same handle");
    let suspends = [(1, context), (1, other), (2, foreign)]
        .map(|(of, handle)| world.named(of, message::SUSPEND_CONTEXT, handle));
    assert_eq!(end(&mut world, message::DESTROY_QUEUE, queue), Status::Ok.word());
    assert_eq!(end(&mut world, message::DESTROY_CONTEXT, context), Status::Ok.word());
    assert_eq!(suspends.map(|of| status(&world, of)), [Some(Status::InvalidHandle.word()), None, None]);
    world.turn(0);
    assert_eq!(suspends[1..].iter().map(|of| status(&world, *of)).collect::<Vec<_>>(), [Some(0); 2]);
}

#[test]
fn a_queue_whose_buffers_are_not_done_is_not_ended_wherever_they_are() {
    let (mut world, context, queue) = world();
    let other = world.queue(1, context);
    // Two are with the engine, the third waits in the software queue of the context.
    for va in [8, 16, 24] {
        world.submit(1, queue, va);
    }
    let of_engine = |world: &World| world.session.vm.engines[COPY.index()].in_flight.len();
    assert_eq!(of_engine(&world), 2);
    for left in [2, 2, 1] {
        assert_eq!(end(&mut world, message::DESTROY_QUEUE, queue), Status::Busy.word(), "{left}");
        world.turn(1);
    }
    // Those of another queue of its context, and of another process, keep none.
    world.open(2);
    let foreign = world.context(2);
    let foreign = world.queue(2, foreign);
    for va in [32, 40, 48] {
        world.submit(1, other, va);
        world.submit(2, foreign, va + (1 << 32));
    }
    assert_eq!(end(&mut world, message::DESTROY_QUEUE, other), Status::Busy.word());
    assert_eq!(end(&mut world, message::DESTROY_QUEUE, queue), Status::Ok.word());
    assert_eq!(end(&mut world, message::DESTROY_QUEUE, queue), Status::InvalidHandle.word());
}

#[test]
fn what_waits_for_a_queue_that_ends_is_refused_and_what_waits_for_another_is_not() {
    let (mut world, context, queue) = world();
    let other = world.queue(1, context);
    let waits = [queue, other, queue].map(|queue| wait_for(&mut world, queue, 1));
    assert_eq!(waits.map(|of| status(&world, of)), [None; 3]);
    assert_eq!(end(&mut world, message::DESTROY_QUEUE, queue), Status::Ok.word());
    let refused = Some(Status::InvalidHandle.word());
    assert_eq!(waits.map(|of| status(&world, of)), [refused, None, refused]);
    // As its engine does.
    let page = world.session.vm.memory.page(&world.session.vm.objects, GuestProcess::new(1)).unwrap();
    page.word(device_page::fence(other.index())).unwrap().store(1, Ordering::Release);
    world.submit(1, other, 8);
    (0..3).for_each(|_| world.turn(1));
    assert_eq!(status(&world, waits[1]), Some(Status::Ok.word()));
    let gone = wait_for(&mut world, queue, 1);
    assert_eq!(status(&world, gone), refused);
    world.turn(0);
    assert!(world.asked.is_empty());
}

#[test]
fn ums_25_a_queue_is_ordinary_or_user_mode_and_other_flags_are_refused() {
    let (mut world, context, queue) = world();
    let create = |world: &mut World, context, flags, reserved| {
        let create = CreateQueue { context, flags, reserved };
        world.call(1, message::CREATE_QUEUE, create.as_bytes()).0
    };
    for (context, flags, reserved, expected) in [
        (context, 1 << 31, 0, Status::InvalidParameter),
        (context, 0, 1, Status::InvalidParameter),
        (Handle(context.0 ^ 1 << 32), 0, 0, Status::InvalidHandle),
        (context, message::QUEUE_FLAGS_KNOWN, 0, Status::Ok),
        (context, 0, 0, Status::Ok),
    ] {
        assert_eq!(create(&mut world, context, flags, reserved), expected.word(), "{flags:#x} {reserved}");
    }
    let device = world.session.vm.objects.device(GuestProcess::new(1)).unwrap();
    assert_eq!(
        (device.queues.iter().count(), device.contexts.get(ContextHandle::new(context)).unwrap().queues),
        (3, 3)
    );
    // A user-mode queue takes no buffers by message, and ends though it never had a doorbell.
    let create = CreateQueue { context, flags: QUEUE_USER_MODE_SUBMISSION, reserved: 0 };
    let user_mode = Handle(world.ok(1, message::CREATE_QUEUE, create.as_bytes())[0]);
    let submitted = world.submit(1, user_mode, 8);
    assert_ne!(status(&world, submitted), Some(Status::Ok.word()));
    assert_eq!(end(&mut world, message::DESTROY_QUEUE, user_mode), Status::Ok.word());
    assert_eq!(end(&mut world, message::DESTROY_QUEUE, queue), Status::Ok.word());
    assert_eq!(
        world
            .session
            .vm
            .objects
            .device(GuestProcess::new(1))
            .unwrap()
            .contexts
            .get(ContextHandle::new(context))
            .unwrap()
            .queues,
        2
    );
}

#[test]
fn ums_109_a_context_that_is_resumed_before_it_is_off_the_gpu_has_its_own_suspends_refused_and_no_others() {
    let (mut world, context, _) = world();
    let other = world.context(1);
    world.open(2);
    let foreign = world.context(2);
    assert_eq!(foreign, context, "another process may have the same handle");
    let suspends = [(1, context), (1, other), (2, foreign)]
        .map(|(of, handle)| world.named(of, message::SUSPEND_CONTEXT, handle));
    let none = Handle(context.0 ^ 1 << 32);
    assert_eq!(end(&mut world, message::RESUME_CONTEXT, none), Status::InvalidHandle.word());
    assert_eq!(suspends.map(|of| status(&world, of)), [None; 3]);
    assert_eq!(end(&mut world, message::RESUME_CONTEXT, context), Status::Ok.word());
    assert_eq!(suspends.map(|of| status(&world, of)), [Some(Status::Busy.word()), None, None]);
    world.turn(0);
    assert_eq!(suspends[1..].iter().map(|of| status(&world, *of)).collect::<Vec<_>>(), [Some(0); 2]);
}

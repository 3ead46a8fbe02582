//! Ordinary buffers, from SUBMIT to the engine: what is refused, and what the engine is told of each.

use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::ids::ProcessIndex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::adapter::fake::Ran;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::engine::address::node_ordinal;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::QUEUE_DISABLE_GPU_TIMEOUT;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::WaitFence;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::engine::block;
use campanile_protocol::engine::block::ProcessEntry;
use campanile_protocol::engine::hw_queue::HW_EXEMPT;
use campanile_protocol::engine::hw_queue::HwSubmission;
use campanile_protocol::handle::Handle;
use campanile_protocol::packet::MAX_DMA_BUFFER;
use campanile_protocol::queue::doorbell::DoorbellModel;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::world::COPY;
use super::world::World;
use crate::vgpu::config::Config;
use crate::vgpu::objects::process::MAX_WAITS;
use crate::vgpu::testing::shared;

/// The process of the tests, which is not the first of its engine.
const OF: u32 = 2;

/// Other processes, contexts and queues have the first entries of the engine and of the page.
fn world() -> (World, Handle, Handle) {
    let mut world = World::new();
    for of in [1, OF] {
        world.open(of);
        let context = world.context(of);
        world.queue(of, context);
    }
    let context = world.context(OF);
    let queue = world.queue(OF, context);
    world.turn(0);
    (world, context, queue)
}

fn submit(world: &mut World, message: &Submit) -> (u32, u64) {
    let (status, [fence, _]) = world.call(OF, message::SUBMIT, message.as_bytes());
    (status, fence)
}

fn ran(world: &World) -> Vec<HwSubmission> {
    world.fakes.take_ran().iter().map(|Ran { submission, .. }| *submission).collect()
}

#[test]
fn a_buffer_that_is_too_long_or_lies_between_words_is_refused_and_the_longest_is_not() {
    let (mut world, _, queue) = world();
    let good = Submit { queue, buffer_va: 8, length: 8, flags: 0 };
    for (message, expected) in [
        (Submit { buffer_va: 12, ..good }, Status::InvalidParameter),
        (Submit { length: 12, ..good }, Status::InvalidParameter),
        (Submit { flags: 1, ..good }, Status::InvalidParameter),
        (Submit { length: MAX_DMA_BUFFER + 8, ..good }, Status::InvalidParameter),
        (Submit { queue: Handle(queue.0 ^ 1 << 32), ..good }, Status::InvalidHandle),
    ] {
        assert_eq!(submit(&mut world, &message).0, expected.word(), "{message:?}");
    }
    // What was refused took no value of the fence.
    assert_eq!(submit(&mut world, &Submit { length: MAX_DMA_BUFFER, ..good }), (0, 1));
    assert_eq!(submit(&mut world, &good), (0, 2));
    assert_eq!(submit(&mut world, &good), (0, 3));
    (0..3).for_each(|_| world.turn(2));
    assert_eq!(ran(&world).iter().map(|it| it.length).collect::<Vec<_>>(), [MAX_DMA_BUFFER, 8, 8]);
}

#[test]
fn an_engine_is_told_whose_a_buffer_is_and_what_it_signals() {
    let (mut world, context, queue) = world();
    world.submit(OF, queue, 800);
    let create = CreateQueue { context, flags: QUEUE_DISABLE_GPU_TIMEOUT, reserved: 0 };
    let exempt = Handle(world.ok(OF, message::CREATE_QUEUE, create.as_bytes())[0]);
    world.submit(OF, exempt, 1600);
    (0..3).for_each(|_| world.turn(2));
    let device = world.session.vm.objects.device(GuestProcess::new(OF)).unwrap();
    let (process, entry) = (
        device.presence[COPY.index()].unwrap(),
        device.contexts.get(ContextHandle::new(context)).unwrap().entry.unwrap(),
    );
    assert!(
        process > ProcessIndex::new(0) && entry > ContextIndex::new(0) && queue.index() > 0,
        "none is what is there by default"
    );
    let all = ran(&world);
    let told = |it: &HwSubmission| (it.process, it.context, it.fence_index, it.fence_value, it.flags);
    assert_eq!(
        all.iter().map(told).collect::<Vec<_>>(),
        [
            (process.get(), entry.get(), queue.index(), 1, 0),
            (process.get(), entry.get(), exempt.index(), 1, HW_EXEMPT)
        ]
    );
    assert_eq!(all.iter().map(|it| (it.buffer_va, it.length)).collect::<Vec<_>>(), [(800, 8), (1600, 8)]);
    assert!(all[0].number < all[1].number && all[0].fence_id < all[1].fence_id);
    assert_ne!(all[0].process_generation, 0);
}

#[test]
fn waits_of_one_process_are_bounded_and_each_is_for_its_own_value() {
    let (mut world, context, queue) = world();
    let other = world.queue(OF, context);
    let wait = |world: &mut World, queue, value| {
        let asked = world.ask(OF, message::WAIT_FENCE, WaitFence { queue, value }.as_bytes());
        world.asked.remove(&asked.sequence);
        world.session.take_due();
        world.answer(asked).map(|(status, _)| status)
    };
    let page = world.session.vm.memory.page(&world.session.vm.objects, GuestProcess::new(OF)).unwrap();
    page.word(device_page::fence(queue.index())).unwrap().store(5, Ordering::Release);
    assert_eq!(wait(&mut world, queue, 5), Some(0), "it is there");
    assert_eq!((wait(&mut world, queue, 6), wait(&mut world, other, 5)), (None, None));
    for _ in 2..MAX_WAITS {
        assert_eq!(wait(&mut world, other, 5), None);
    }
    assert_eq!(wait(&mut world, other, 5), Some(Status::OutOfResources.word()));
    assert_eq!(world.session.vm.objects.device(GuestProcess::new(OF)).unwrap().waits.len(), MAX_WAITS);
}

#[test]
fn tdr_09_tdr_10_a_context_is_of_one_engine_that_there_is() {
    let (mut world, ..) = world();
    let good = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
    for (message, expected) in [
        (CreateContext { flags: 1, ..good }, Status::InvalidParameter),
        (CreateContext { reserved: 1, ..good }, Status::InvalidParameter),
        (CreateContext { node: 2, ..good }, Status::NotSupported),
        (CreateContext { engine_affinity: 0, ..good }, Status::InvalidParameter),
        (CreateContext { engine_affinity: 2, ..good }, Status::InvalidParameter),
        (CreateContext { engine_affinity: 3, ..good }, Status::InvalidParameter),
        (good, Status::Ok),
    ] {
        let (status, _) = world.call(OF, message::CREATE_CONTEXT, message.as_bytes());
        assert_eq!(status, expected.word(), "{message:?}");
    }
    assert_eq!(world.session.vm.objects.device(GuestProcess::new(OF)).unwrap().contexts.iter().count(), 3);
}

#[test]
fn ums_04_a_new_queue_says_where_its_fence_lies_which_begins_anew() {
    let (mut world, context, _) = world();
    let page = world.session.vm.memory.page(&world.session.vm.objects, GuestProcess::new(OF)).unwrap();
    let (index, va) = (2, world.session.vm.objects.device(GuestProcess::new(OF)).unwrap().page.va);
    let words = [device_page::fence(index), device_page::last_queued(index)];
    for at in words {
        page.word(at).unwrap().store(77, Ordering::Release);
    }
    let create = CreateQueue { context, flags: 0, reserved: 0 };
    let asked = world.ask(OF, message::CREATE_QUEUE, create.as_bytes());
    let load = |at: u64| page.word(at).unwrap().load(Ordering::Acquire);
    let reply = device_page::response(asked.slot) + 16;
    let created = Handle(load(reply));
    assert_eq!((created.index(), load(reply + 8), load(reply + 16)), (index, words[0], va + words[0]));
    assert_eq!(words.map(load), [0, 0]);
}

#[test]
fn ums_109_suspends_of_a_context_that_runs_nothing_are_answered_at_once_and_count() {
    let (mut world, context, queue) = world();
    for (opcode, fence) in [(message::SUSPEND_CONTEXT, 1), (message::SUSPEND_CONTEXT, 1)] {
        let asked = world.named(OF, opcode, context);
        world.turn(0);
        assert_eq!(world.answer(asked).map(|(status, [said, _])| (status, said)), Some((0, fence)));
    }
    world.submit(OF, queue, 8);
    world.pass(Duration::from_millis(20));
    world.turn(9);
    assert!(ran(&world).is_empty());
    world.named(OF, message::RESUME_CONTEXT, context);
    (0..2).for_each(|_| world.turn(9));
    assert_eq!(ran(&world).len(), 1);
    let none = world.named(OF, message::SUSPEND_CONTEXT, Handle(context.0 ^ 1 << 32));
    assert_eq!(world.answer(none).map(|(status, _)| status), Some(Status::InvalidHandle.word()));
}

#[test]
fn mcdm_38_an_engine_is_told_where_the_page_and_the_tables_of_a_process_lie() {
    for is_global in [false, true] {
        let mut world = World::with(|config| {
            let mut modes = config.doorbell_modes;
            if is_global {
                modes.0[node_index(COPY.node)].model = DoorbellModel::Global;
            }
            Config { doorbell_modes: modes, ..config }
        });
        for of in [1, OF] {
            world.open(of);
            world.context(of);
        }
        let device = world.session.vm.objects.device(GuestProcess::new(OF)).unwrap();
        let mut bytes = [0; size_of::<ProcessEntry>()];
        let place = block::process((device.presence[COPY.index()].unwrap()).get());
        shared(&world.session, COPY).slice(place, bytes.len() as u64).unwrap().copy_to(&mut bytes);
        let entry = ProcessEntry::read_from_bytes(&bytes).unwrap();
        let ordinal = node_ordinal(COPY.node);
        let expected = ProcessEntry {
            generation: entry.generation,
            root: device.root.0,
            page_va: device.page.va,
            global_cell: if is_global { device_page::global_cell(0, ordinal) } else { 0 },
            summary: device_page::summary(0, ordinal),
            area_root: world.session.vm.memory.areas.root().0,
            area_va: device.area.map_or(0, |area| area.va),
        };
        assert_eq!(entry, expected);
        let other = world.session.vm.objects.device(GuestProcess::new(1)).unwrap();
        assert!(entry.generation != 0 && entry.page_va != 0 && other.root != device.root);
    }
}

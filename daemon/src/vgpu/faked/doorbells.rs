//! Doorbells, from CREATE_DOORBELL to what is left of them: what the engine is told, what the guest's page says, and which
//! of two has a slot.

use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;
use campanile_host_gpu::ids::ContextIndex;
use campanile_host_gpu::ids::DoorbellIndex;
use campanile_host_gpu::ids::ProcessIndex;
use campanile_host_gpu::ids::QueueIndex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::engine::address::node_index;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::DOORBELL_NOTIFY;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::engine::block;
use campanile_protocol::engine::block::QueueEntry;
use campanile_protocol::engine::slot::DoorbellSlot;
use campanile_protocol::handle::Handle;
use campanile_protocol::queue::doorbell::DoorbellModel;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::world::COPY;
use super::world::World;
use crate::vgpu::config::Config;
use crate::vgpu::doorbells::slots::MIN_HOLD;
use crate::vgpu::objects::doorbell_state::DoorbellState;
use crate::vgpu::objects::doorbell_state::Place;
use crate::vgpu::objects::process::RingShape;
use crate::vgpu::testing::counted;
use crate::vgpu::testing::load;
use crate::vgpu::testing::shared;

const ENTRIES: u32 = 64;
/// The device of the tests, which is not the first of its engine.
const OF: u32 = 2;

struct Rung {
    context: Handle,
    queue: Handle,
    doorbell: Handle,
    ring_va: u64,
    control_va: u64,
}

/// A vGPU in which other processes and contexts have the first entries of the engine.
fn world(change: impl FnOnce(Config) -> Config) -> World {
    let mut world = World::with(change);
    for of in [1, OF] {
        world.open(of);
        world.context(of);
    }
    world
}

/// Makes a user-mode queue with a doorbell; its ring and ring control are blobs `resource` and the one after.
fn with_doorbell(world: &mut World, resource: u32, flags: u32) -> Rung {
    let context = world.context(OF);
    let create = CreateQueue { context, flags: QUEUE_USER_MODE_SUBMISSION, reserved: 0 };
    let queue = Handle(world.ok(OF, message::CREATE_QUEUE, create.as_bytes())[0]);
    let ring_va = 0x100_0000 + u64::from(resource) * 2 * PAGE_SIZE;
    let control_va = ring_va + PAGE_SIZE;
    for (resource, va) in [(resource, ring_va), (resource + 1, control_va)] {
        assert!(world.blob(OF, resource));
        let map = MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va, size: PAGE_SIZE };
        world.ok(OF, message::MAP_MEMORY, map.as_bytes());
    }
    (0..2).for_each(|_| world.turn(0));
    let create = CreateDoorbell {
        queue,
        ring_va,
        control_va,
        ring_resource: resource,
        control_resource: resource + 1,
        ring_entries: ENTRIES,
        flags,
        private_bytes: 0,
        reserved: 0,
        private_data: [0; 16],
    };
    let doorbell = Handle(world.ok(OF, message::CREATE_DOORBELL, create.as_bytes())[0]);
    Rung { context, queue, doorbell, ring_va, control_va }
}

/// The answer to a connect, if it is there at once: its status, the word of the doorbell, and how many were before it.
fn connect(world: &mut World, rung: &Rung) -> Option<(u32, [u64; 2])> {
    let asked = world.named(OF, message::CONNECT_DOORBELL, rung.doorbell);
    world.answer(asked)
}

fn state(world: &World, rung: &Rung) -> DoorbellState {
    world
        .session
        .vm
        .objects
        .device(GuestProcess::new(OF))
        .unwrap()
        .doorbells
        .get(rung.doorbell)
        .unwrap()
        .state
}

fn hw_queue(world: &World, rung: &Rung) -> u16 {
    (world
        .session
        .vm
        .objects
        .device(GuestProcess::new(OF))
        .unwrap()
        .doorbells
        .get(rung.doorbell)
        .unwrap()
        .hw_queue
        .unwrap())
    .get()
}

fn page_word(world: &World, at: u64) -> u64 {
    let page = world.session.vm.memory.page(&world.session.vm.objects, GuestProcess::new(OF)).unwrap();
    page.word(at).unwrap().load(Ordering::Acquire)
}

fn store_page_word(world: &World, at: u64, value: u64) {
    let page = world.session.vm.memory.page(&world.session.vm.objects, GuestProcess::new(OF)).unwrap();
    page.word(at).unwrap().store(value, Ordering::Release);
}

/// What the guest reads of a doorbell.
fn shown(world: &World, rung: &Rung) -> u64 {
    page_word(world, device_page::status(rung.queue.index()))
}

/// What the engine watches in a slot: hardware queue, process, cell.
fn watched(world: &World, slot: u32) -> Option<(u16, u16, u16)> {
    let slot = DoorbellSlot(load(&world.session, COPY, block::doorbell(slot)));
    slot.is_watching().then(|| (slot.queue(), slot.process(), slot.cell()))
}

#[test]
fn ums_33_an_engine_is_told_all_of_a_new_doorbell_and_watches_nothing_yet() {
    let mut world = world(|config| config);
    with_doorbell(&mut world, 100, 0);
    let rung = with_doorbell(&mut world, 102, 0);
    let device = world.session.vm.objects.device(GuestProcess::new(OF)).unwrap();
    let doorbell = device.doorbells.get(rung.doorbell).unwrap();
    let shape = RingShape { ring_va: rung.ring_va, control_va: rung.control_va, entries: ENTRIES };
    assert_eq!((doorbell.shape, doorbell.queue, doorbell.at), (shape, rung.queue, COPY));
    let mut bytes = [0; size_of::<QueueEntry>()];
    let place = block::queue(u32::from(hw_queue(&world, &rung)));
    shared(&world.session, COPY).slice(place, bytes.len() as u64).unwrap().copy_to(&mut bytes);
    let entry = QueueEntry::read_from_bytes(&bytes).unwrap();
    let (process, context) = (
        device.presence[COPY.index()].unwrap(),
        device.contexts.get(ContextHandle::new(rung.context)).unwrap().entry.unwrap(),
    );
    assert!(
        process > ProcessIndex::new(0) && context > ContextIndex::new(0) && rung.queue.index() > 0,
        "none is told as what is there by default"
    );
    let expected = QueueEntry {
        ring_va: rung.ring_va,
        control_va: rung.control_va,
        ring_entries: ENTRIES,
        process: process.get(),
        fence_index: rung.queue.index(),
        context: context.get(),
        ..QueueEntry::default()
    };
    assert_eq!(QueueEntry { generation: 0, ..entry }, expected);
    assert_ne!(entry.generation, 0);
    assert_eq!((state(&world, &rung), watched(&world, 0)), (DoorbellState::Retry, None));
    assert_eq!(shown(&world, &rung), DoorbellStatus::DisconnectedRetry.word());
}

#[test]
fn ums_57_ums_61_a_connected_doorbell_is_watched_by_its_cell_and_says_so() {
    let mut world = world(|config| Config { doorbells: 4, ..config });
    let other = with_doorbell(&mut world, 100, 0);
    let rung = with_doorbell(&mut world, 102, 0);
    let word = DoorbellStatus::Connected.word();
    let connects = |world: &World| counted(&world.session.vm.counters.connects);
    assert_eq!(connect(&mut world, &rung), Some((0, [word, 0])));
    assert_eq!(
        (state(&world, &rung), shown(&world, &rung)),
        (DoorbellState::Connected(Place::Own(DoorbellIndex::new(0))), word)
    );
    let process =
        world.session.vm.objects.device(GuestProcess::new(OF)).unwrap().presence[COPY.index()].unwrap();
    let cell = u16::try_from(rung.queue.index()).unwrap();
    let expected = (hw_queue(&world, &rung), u16::try_from(process.get()).unwrap(), cell);
    assert_eq!(watched(&world, 0), Some(expected));
    // It stays where it is, and is answered once more.
    assert_eq!(connect(&mut world, &rung), Some((0, [word, 0])));
    assert_eq!((connects(&world), watched(&world, 1)), (1, None));
    assert_eq!(connect(&mut world, &other), Some((0, [word, 0])));
    assert_eq!(
        (connects(&world), state(&world, &other)),
        (2, DoorbellState::Connected(Place::Own(DoorbellIndex::new(1))))
    );
    let none = Handle(rung.doorbell.0 ^ 1 << 32);
    let asked = world.named(OF, message::CONNECT_DOORBELL, none);
    assert_eq!(world.answer(asked).map(|(status, _)| status), Some(Status::InvalidHandle.word()));
    world.turn(0);
    assert!(world.asked.is_empty());
}

#[test]
fn ums_51_ums_97_in_notify_mode_nothing_is_watched_and_rings_are_said() {
    for (flags, is_on) in [(DOORBELL_NOTIFY, false), (0, true), (DOORBELL_NOTIFY, true)] {
        let mut world = world(|config| Config { doorbells: 1, ..config });
        world.session.vm.config.notify.set(node_index(COPY.node), is_on);
        let rung = with_doorbell(&mut world, 100, flags);
        let word = DoorbellStatus::ConnectedNotify.word();
        assert_eq!(connect(&mut world, &rung), Some((0, [word, 0])));
        assert_eq!(
            (state(&world, &rung), shown(&world, &rung)),
            (DoorbellState::Connected(Place::Notified), word)
        );
        assert_eq!(watched(&world, 0), None, "it has no slot");
        let notify = message::Notify { queue: rung.queue, flags: 0, reserved: 0 };
        assert_eq!(world.call(OF, message::NOTIFY, notify.as_bytes()).0, Status::Ok.word());
        assert_eq!(counted(&world.session.vm.counters.notifies), 1);
    }
}

#[test]
fn ums_15_in_the_global_model_each_queue_has_an_entry_and_none_loses_it() {
    let mut world = world(|config| {
        let mut modes = config.doorbell_modes;
        modes.0[node_index(COPY.node)].model = DoorbellModel::Global;
        Config { doorbells: 1, doorbell_modes: modes, ..config }
    });
    let rungs = [100, 102].map(|resource| with_doorbell(&mut world, resource, 0));
    for rung in &rungs {
        assert_eq!(connect(&mut world, rung), Some((0, [DoorbellStatus::Connected.word(), 0])));
    }
    for rung in &rungs {
        let queue = hw_queue(&world, rung);
        assert_eq!(
            state(&world, rung),
            DoorbellState::Connected(Place::Shared(DoorbellIndex::new(u32::from(queue))))
        );
        assert_eq!(watched(&world, u32::from(queue)).map(|(watched, ..)| watched), Some(queue));
    }
    assert_eq!(counted(&world.session.vm.counters.victims), 0);
}

#[test]
fn ums_13_ums_77_a_slot_that_was_just_given_away_is_taken_when_its_time_is_over() {
    let mut world = world(|config| Config { doorbells: 1, ..config });
    let [first, second] = [100, 102].map(|resource| with_doorbell(&mut world, resource, 0));
    assert!(connect(&mut world, &first).is_some());
    let asked = world.named(OF, message::CONNECT_DOORBELL, second.doorbell);
    assert_eq!(world.answer(asked), None, "the other was just told of it");
    assert_eq!(counted(&world.session.vm.counters.connects_delayed), 1);
    world.pass(MIN_HOLD / 2);
    assert_eq!((world.answer(asked), shown(&world, &first)), (None, DoorbellStatus::Connected.word()));
    world.pass(MIN_HOLD);
    assert_eq!(world.answer(asked), Some((0, [DoorbellStatus::Connected.word(), 0])));
    assert_eq!(counted(&world.session.vm.counters.victims), 1);
    assert_eq!(
        (state(&world, &first), shown(&world, &first)),
        (DoorbellState::Retry, DoorbellStatus::DisconnectedRetry.word())
    );
    assert_eq!(state(&world, &second), DoorbellState::Connected(Place::Own(DoorbellIndex::new(0))));
    assert_eq!(watched(&world, 0).map(|(queue, ..)| queue), Some(hw_queue(&world, &second)));
    world.pass(Duration::from_millis(1));
    // And back.
    assert!(connect(&mut world, &first).is_some());
    assert_eq!(shown(&world, &second), DoorbellStatus::DisconnectedRetry.word());
    world.turn(0);
    assert!(world.asked.is_empty());
}

#[test]
fn ums_126_ums_146_a_doorbell_that_was_rung_ends_when_the_engine_has_looked_for_the_last_time() {
    for (last_queued, is_connected) in [(0, true), (3, true), (3, false)] {
        let mut world = world(|config| config);
        let rung = with_doorbell(&mut world, 100, 0);
        if is_connected {
            assert!(connect(&mut world, &rung).is_some());
        }
        store_page_word(&world, device_page::last_queued(rung.queue.index()), last_queued);
        let asked = world.named(OF, message::DESTROY_DOORBELL, rung.doorbell);
        let waits = last_queued > 0 && is_connected;
        let is_there = world
            .session
            .vm
            .objects
            .device(GuestProcess::new(OF))
            .unwrap()
            .doorbells
            .get(rung.doorbell)
            .is_some();
        assert_eq!((world.answer(asked), is_there), (None, waits), "engines have its ring still");
        assert_eq!(shown(&world, &rung), DoorbellStatus::DisconnectedRetry.word());
        assert_eq!(watched(&world, 0), None);
        if waits {
            assert_eq!(
                connect(&mut world, &rung).map(|(status, _)| status),
                Some(Status::Busy.word()),
                "it ends"
            );
            let again = world.named(OF, message::DESTROY_DOORBELL, rung.doorbell);
            assert_eq!(world.answer(again).map(|(status, _)| status), Some(Status::Busy.word()));
            let at = world.session.vm.doorbells.next_drain().unwrap();
            assert!(
                world.session.vm.timer.due().is_some_and(|due| due <= at),
                "it has no longer than its timeout"
            );
        }
        (0..3).for_each(|_| world.turn(0));
        assert_eq!(world.answer(asked).map(|(status, _)| status), Some(Status::Ok.word()));
        assert!(
            world
                .session
                .vm
                .objects
                .device(GuestProcess::new(OF))
                .unwrap()
                .doorbells
                .get(rung.doorbell)
                .is_none()
        );
        assert_eq!(world.session.vm.objects.owner_of_hw_queue(COPY, QueueIndex::new(0)), None);
        let ended = world.named(OF, message::DESTROY_QUEUE, rung.queue);
        assert_eq!(world.answer(ended).map(|(status, _)| status), Some(Status::Ok.word()));
        world.turn(0);
        assert!(world.asked.is_empty());
    }
}

#[test]
fn ums_84_a_queue_with_a_doorbell_is_not_ended_and_has_no_second() {
    let mut world = world(|config| config);
    let rung = with_doorbell(&mut world, 100, 0);
    let ended = world.named(OF, message::DESTROY_QUEUE, rung.queue);
    assert_eq!(world.answer(ended).map(|(status, _)| status), Some(Status::Busy.word()));
    let create = CreateDoorbell {
        queue: rung.queue,
        ring_va: rung.ring_va,
        control_va: rung.control_va,
        ring_resource: 100,
        control_resource: 101,
        ring_entries: ENTRIES,
        flags: 0,
        private_bytes: 0,
        reserved: 0,
        private_data: [0; 16],
    };
    assert_eq!(world.call(OF, message::CREATE_DOORBELL, create.as_bytes()).0, Status::Busy.word());
}

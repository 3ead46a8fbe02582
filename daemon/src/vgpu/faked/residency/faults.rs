//! What queues come to that is not resident, what is brought back for them, and what they are told.

use std::sync::atomic::Ordering;

use campanile_host_gpu::clock;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::memory::EVICT;
use campanile_protocol::control::memory::EVICT_NOW;
use campanile_protocol::control::memory::MAKE_RESIDENT;
use campanile_protocol::control::message;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::device_page::BUDGET;
use campanile_protocol::engine::residency;
use campanile_protocol::engine::residency::USE_EPOCH;
use campanile_protocol::engine::residency::WANTED_WRITTEN;
use campanile_protocol::engine::residency::Wanted;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use super::A;
use super::B;
use super::C;
use super::PIECE;
use super::done;
use super::id;
use super::resident;
use super::world;
use crate::ids::GuestProcess;
use crate::vgpu::control::memory::paging::Pager;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::faked::world::COPY;
use crate::vgpu::faked::world::World;
use crate::vgpu::memory::residency::MIN_STAY;
use crate::vgpu::memory::residency_faults::Demand;
use crate::vgpu::objects::ids::AllocationId;
use crate::vgpu::testing::counted;
use crate::vgpu::testing::load;
use crate::vgpu::testing::shared;
use crate::vgpu::testing::store;

/// Where the GPU sees a blob.
fn va(resource: u32) -> u64 {
    (1 << 32) + u64::from(resource) * (16 << 20)
}

/// The same, with all of it mapped and evicted, and an engine that runs.
fn evicted(blobs: &[(u32, u64)]) -> World {
    let mut world = world(blobs);
    let context = world.context(1);
    world.queue(1, context);
    if !world.session.vm.engines[COPY.index()].is_running() {
        assert!(Lifecycle::of(&mut world.session.vm).ensure_engine(COPY).is_ok());
        (0..3).for_each(|_| world.turn(0));
    }
    assert!(world.session.vm.engines[COPY.index()].is_running());
    for &(resource, pieces) in blobs {
        let map =
            MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va: va(resource), size: pieces * PIECE };
        world.ok(1, message::MAP_MEMORY, map.as_bytes());
        done(&mut world, EVICT, EVICT_NOW, &[resource]);
    }
    // Engines let go of it.
    (0..3).for_each(|_| world.turn(0));
    assert!(resident(&world).is_empty());
    world
}

/// A queue of process 1 has come to a blob, at a place of its buffer.
fn come(world: &mut World, queue: u64, token: u64, resource: u32) {
    let root = world.session.vm.objects.processes[&GuestProcess::new(1)].device.as_ref().unwrap().root.0;
    let count = load(&world.session, COPY, WANTED_WRITTEN);
    let wanted = Wanted { root, va: va(resource) + PAGE_SIZE, token, queue };
    let place = residency::wanted(count);
    shared(&world.session, COPY)
        .slice(place, size_of::<Wanted>() as u64)
        .unwrap()
        .copy_from(wanted.as_bytes());
    store(&world.session, COPY, WANTED_WRITTEN, count + 1);
    Pager::of(&mut world.session.vm).read_wanted(COPY);
    Pager::of(&mut world.session.vm).serve_residency();
    (0..3).for_each(|_| world.turn(0));
}

fn faults(world: &World) -> [u64; 3] {
    let counters = &world.session.vm.counters;
    [&counters.residency_faults, &counters.restores, &counters.evictions].map(counted)
}

#[test]
fn what_a_queue_comes_to_is_brought_back_and_counted_once() {
    let mut world = evicted(&[(A, 3), (B, 3)]);
    let [before, restores, evictions] = faults(&world);
    come(&mut world, 0, 1, A);
    assert_eq!(resident(&world), [A]);
    come(&mut world, 0, 1, A);
    assert_eq!(faults(&world), [before + 1, restores + 1, evictions], "it is there");
    come(&mut world, 1, 1, B);
    assert_eq!(resident(&world), [A, B], "there is room for both");
    assert_eq!(faults(&world), [before + 2, restores + 2, evictions]);
    assert!(world.session.vm.memory.residency.wants.is_empty());
}

#[test]
fn what_was_brought_back_stays_a_while_for_a_queue_that_has_not_got_on() {
    let mut world = evicted(&[(A, 5), (B, 5)]);
    come(&mut world, 0, 1, A);
    come(&mut world, 1, 1, B);
    assert_eq!(resident(&world), [A], "its queue has had no time with it");
    world.pass(MIN_STAY / 2);
    assert_eq!(resident(&world), [A]);
    world.pass(MIN_STAY / 2);
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(resident(&world), [B]);
    // And the other way round: neither keeps it for ever.
    come(&mut world, 0, 1, A);
    assert_eq!(resident(&world), [B]);
    world.pass(MIN_STAY);
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(resident(&world), [A]);
}

#[test]
fn a_queue_that_has_got_on_gives_at_once_what_it_had_before() {
    let mut world = evicted(&[(A, 5), (B, 5)]);
    come(&mut world, 0, 1, A);
    come(&mut world, 0, 2, B);
    assert_eq!(resident(&world), [B]);
    assert!(world.is_active(1));
}

#[test]
fn what_one_place_needs_and_there_is_not_is_the_end_of_its_device_and_of_no_other() {
    let mut world = evicted(&[(A, 4), (B, 3), (C, 2)]);
    world.open(2);
    come(&mut world, 0, 1, A);
    come(&mut world, 0, 1, B);
    assert_eq!((resident(&world), world.is_active(1)), (vec![A, B], true), "that is all there is");
    come(&mut world, 0, 1, C);
    assert!(!world.is_active(1) && world.is_active(2));
    assert!(world.session.vm.memory.residency.wants.is_empty(), "nothing of it is wanted any more");
}

#[test]
fn a_guest_is_told_how_much_it_could_have_when_that_has_changed() {
    let mut world = world(&[]);
    let budget = world.session.vm.config.account.budget();
    let could = budget.committed + budget.available;
    let word = |world: &World| {
        let page = world.session.vm.memory.page(&world.session.vm.objects, GuestProcess::new(1)).unwrap();
        page.word(BUDGET).unwrap().load(Ordering::Relaxed)
    };
    let forget = |world: &World| {
        world.session.vm.memory.store_page_word(&world.session.vm.objects, GuestProcess::new(1), BUDGET, 0)
    };
    forget(&world);
    Pager::of(&mut world.session.vm).serve_residency();
    assert_eq!(word(&world), 0, "it was told");
    world.session.vm.memory.residency.budget = could - 1;
    Pager::of(&mut world.session.vm).serve_residency();
    assert_eq!((word(&world), world.session.vm.memory.residency.budget), (could, could));
}

/// Queue of process 1, its context, and a process with a buffer under way.
fn under_way(world: &mut World, of: u32) -> [Handle; 2] {
    let context = world.context(of);
    let queue = world.queue(of, context);
    (0..3).for_each(|_| world.turn(0));
    [context, queue]
}

/// Process 1 takes a blob out of its address space; the paging fence that says so.
fn unmap(world: &mut World, resource: u32, pieces: u64) -> u64 {
    let unmap = UnmapMemory { va: va(resource), size: pieces * PIECE };
    world.ok(1, message::UNMAP_MEMORY, unmap.as_bytes())[0]
}

fn fence(world: &World) -> u64 {
    world.session.vm.objects.processes[&GuestProcess::new(1)].device.as_ref().unwrap().paging.done()
}

#[test]
fn mcdm_39_a_change_waits_for_buffers_of_its_own_process_that_run_or_are_held_and_for_no_others() {
    let mut world = evicted(&[(A, 1), (B, 1), (C, 1)]);
    world.open(2);
    let [_, others] = under_way(&mut world, 2);
    let [context, queue] = under_way(&mut world, 1);
    // Of another process, on the same engine.
    world.submit(2, others, va(A));
    let first = unmap(&mut world, A, 1);
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(fence(&world), first);
    let id = id(&world, A);
    world.session.blobs().unref_blob(A).unwrap();
    (0..3).for_each(|_| world.turn(0));
    assert!(world.session.vm.memory.allocations.get(id).is_none(), "the last that referred to it");
    (0..3).for_each(|_| world.turn(4));
    // Of its own, with the engine.
    world.submit(1, queue, va(B));
    let second = unmap(&mut world, B, 1);
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(fence(&world), first);
    (0..3).for_each(|_| world.turn(4));
    assert_eq!(fence(&world), second);
    // Of its own, and with nothing.
    world.named(1, message::SUSPEND_CONTEXT, context);
    (0..3).for_each(|_| world.turn(0));
    world.submit(1, queue, va(C));
    let third = unmap(&mut world, C, 1);
    (0..3).for_each(|_| world.turn(4));
    assert_eq!(fence(&world), second);
    world.named(1, message::RESUME_CONTEXT, context);
    (0..4).for_each(|_| world.turn(4));
    assert_eq!(fence(&world), third);
}

#[test]
fn a_decision_about_what_leaves_is_an_epoch_and_nothing_else_is() {
    let mut world = evicted(&[(A, 5), (B, 5)]);
    let epochs =
        |world: &World| (world.session.vm.memory.residency.epoch, load(&world.session, COPY, USE_EPOCH));
    let (before, _) = epochs(&world);
    come(&mut world, 0, 1, A);
    world.session.vm.memory.residency.look_again();
    Pager::of(&mut world.session.vm).serve_residency();
    assert_eq!((resident(&world), epochs(&world).0), (vec![A], before), "there was room");
    come(&mut world, 1, 1, B);
    let after = epochs(&world);
    assert!(after.0 > before && after.1 == after.0, "{before} {after:?}");
    // Only time is waited for: one more decision for each look, and a look when that has passed.
    assert_eq!(world.session.vm.memory.residency.retry_at, Some(clock::now() + MIN_STAY));
    world.session.vm.memory.residency.look_again();
    Pager::of(&mut world.session.vm).serve_residency();
    assert_eq!(epochs(&world), (after.0 + 1, after.0 + 1));
}

#[test]
fn what_the_favoured_queue_wants_comes_first() {
    let mut world = evicted(&[(A, 5), (B, 5), (C, 4)]);
    come(&mut world, 5, 1, C);
    world.pass(MIN_STAY);
    let demand = |queue| {
        let root = world.session.vm.objects.processes[&GuestProcess::new(1)].device.as_ref().unwrap().root.0;
        Demand { name: (root, queue), token: 1 }
    };
    let (other, favoured) = (demand(1), demand(0));
    let ids = [A, B].map(|resource| id(&world, resource));
    world.session.vm.memory.residency.favoured = Some(favoured);
    world.session.vm.memory.residency.want(ids[0], Some(other));
    world.session.vm.memory.residency.want(ids[1], Some(favoured));
    Pager::of(&mut world.session.vm).serve_residency();
    (0..4).for_each(|_| world.turn(0));
    assert_eq!(resident(&world), [B]);
}

#[test]
fn what_does_not_fit_beside_what_is_held_waits_and_is_no_end_of_its_device() {
    for pieces in [5, 8] {
        let mut world = evicted(&[(A, pieces), (C, 4)]);
        done(&mut world, MAKE_RESIDENT, 0, &[C]);
        come(&mut world, 0, 1, A);
        world.pass(MIN_STAY);
        assert!(world.is_active(1), "{pieces}");
        assert_eq!((resident(&world), world.session.vm.memory.residency.wants.len()), (vec![C], 1));
    }
}

#[test]
fn what_serves_the_favoured_queue_leaves_for_no_other_and_all_else_does() {
    let mut world = evicted(&[(A, 4), (B, 3), (C, 3)]);
    come(&mut world, 0, 1, A);
    // Used later than that, and for no queue.
    done(&mut world, MAKE_RESIDENT, 0, &[B]);
    done(&mut world, EVICT, 0, &[B]);
    world.pass(MIN_STAY);
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(resident(&world), [A, B]);
    // The queue has had what it came to for a while, and something else that is gone by now just came for it.
    let root = world.session.vm.objects.processes[&GuestProcess::new(1)].device.as_ref().unwrap().root.0;
    let [favoured, other] = [0, 9].map(|queue| Demand { name: (root, queue), token: 1 });
    let wanted = id(&world, C);
    let residency = &mut world.session.vm.memory.residency;
    residency.favoured = Some(favoured);
    residency.recent.push((AllocationId(u64::MAX), favoured, clock::now()));
    residency.want(wanted, Some(other));
    Pager::of(&mut world.session.vm).serve_residency();
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(resident(&world), [A, C]);
}

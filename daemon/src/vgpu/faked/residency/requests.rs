//! What is made resident, what is evicted for it, and what waits.

use campanile_protocol::control::memory;
use campanile_protocol::control::memory::EVICT;
use campanile_protocol::control::memory::EVICT_NOW;
use campanile_protocol::control::memory::MAKE_RESIDENT;
use campanile_protocol::control::memory::RESIDENT_OR_FAIL;
use campanile_protocol::control::memory::SET_PRIORITY;
use campanile_protocol::control::status::Status;

use super::A;
use super::B;
use super::C;
use super::PIECE;
use super::ask;
use super::done;
use super::holds;
use super::id;
use super::is_resident;
use super::local;
use super::resident;
use super::status;
use super::world;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::faked::world::World;
use crate::vgpu::objects::process::MAX_WAITS;
use crate::vgpu::testing::counted;

#[test]
fn what_is_made_resident_is_held_as_often_as_it_was_said_until_it_was_evicted_as_often() {
    let mut world = world(&[(A, 1), (B, 1)]);
    assert!(resident(&world).is_empty());
    done(&mut world, MAKE_RESIDENT, 0, &[A, A, B]);
    assert_eq!(resident(&world), [A, B]);
    assert_eq!((holds(&world, A), holds(&world, B)), ((2, Some(2)), (1, Some(1))));
    done(&mut world, MAKE_RESIDENT, RESIDENT_OR_FAIL, &[A]);
    assert_eq!(holds(&world, A), (3, Some(3)));
    for left in [2, 1] {
        done(&mut world, EVICT, EVICT_NOW, &[A]);
        assert_eq!((holds(&world, A), is_resident(&world, A)), ((left, Some(left)), true));
    }
    done(&mut world, EVICT, 0, &[A]);
    assert_eq!((holds(&world, A), is_resident(&world, A)), ((0, None), true), "it may leave, and need not");
    done(&mut world, EVICT, EVICT_NOW, &[A]);
    assert_eq!(
        (holds(&world, A), is_resident(&world, A)),
        ((0, None), false),
        "what it does not hold it does not let go"
    );
    assert_eq!(holds(&world, B), (1, Some(1)));
}

#[test]
fn lists_that_say_something_unknown_are_refused_and_hold_nothing() {
    let mut world = world(&[(A, 1)]);
    for (opcode, argument) in [
        (MAKE_RESIDENT, RESIDENT_OR_FAIL << 1),
        (MAKE_RESIDENT, RESIDENT_OR_FAIL | 4),
        (EVICT, EVICT_NOW << 1),
        (EVICT, EVICT_NOW | 4),
        (SET_PRIORITY, memory::PRIORITY_MINIMUM - 1),
        (SET_PRIORITY, memory::PRIORITY_MAXIMUM + 1),
    ] {
        assert_eq!(
            status(&mut world, opcode, argument, &[A]),
            Status::InvalidParameter.word(),
            "{opcode} {argument:#x}"
        );
    }
    for opcode in [MAKE_RESIDENT, EVICT] {
        assert_eq!(status(&mut world, opcode, 0, &[A, 99]), Status::InvalidResource.word());
    }
    assert_eq!(holds(&world, A), (0, None));
    for priority in [memory::PRIORITY_MINIMUM, memory::PRIORITY_MAXIMUM] {
        done(&mut world, SET_PRIORITY, priority, &[A]);
        let id = id(&world, A);
        assert_eq!(world.session.vm.memory.allocations.get(id).unwrap().priority, priority);
    }
}

#[test]
fn more_than_there_is_at_all_is_refused_and_all_that_there_is_waits() {
    let mut world = world(&[(A, 8), (B, 1)]);
    assert_eq!(local(&world), 8 * PIECE);
    assert_eq!(status(&mut world, MAKE_RESIDENT, 0, &[A, B]), Status::OutOfResources.word());
    assert_eq!((holds(&world, A), holds(&world, B)), ((0, None), (0, None)));
    // Each counts once.
    let first = ask(&mut world, MAKE_RESIDENT, 0, &[A, A]);
    (0..3).for_each(|_| world.turn(0));
    assert!(world.answer(first).is_none_or(|(status, _)| status == Status::Ok.word()));
    assert_eq!(holds(&world, A), (2, Some(2)));
}

#[test]
fn a_message_that_may_fail_does_where_only_what_is_held_or_named_itself_could_make_room() {
    let mut world = world(&[(A, 4), (B, 5), (C, 2)]);
    done(&mut world, MAKE_RESIDENT, 0, &[A]);
    assert_eq!(status(&mut world, MAKE_RESIDENT, RESIDENT_OR_FAIL, &[B]), Status::OutOfResources.word());
    assert_eq!((holds(&world, B), resident(&world)), ((0, None), vec![A]));
    done(&mut world, EVICT, 0, &[A]);
    done(&mut world, MAKE_RESIDENT, RESIDENT_OR_FAIL, &[B]);
    assert_eq!((holds(&world, B), resident(&world)), ((1, Some(1)), vec![B]), "what is not held has left");
    // It is there, and needs no room once more.
    done(&mut world, MAKE_RESIDENT, RESIDENT_OR_FAIL, &[B]);
    done(&mut world, EVICT, 0, &[B]);
    // Two of the eight are another's, so that there are no six for these two, which fit into eight.
    done(&mut world, EVICT, EVICT_NOW, &[B]);
    done(&mut world, MAKE_RESIDENT, 0, &[C]);
    done(&mut world, MAKE_RESIDENT, RESIDENT_OR_FAIL, &[A]);
    done(&mut world, EVICT, 0, &[A]);
    world.session.blobs().create_vram_blob(B + 100, 3 * PIECE, false).unwrap();
    world.session.blobs().attach(FrontContext::new(1), B + 100).unwrap();
    assert_eq!(
        status(&mut world, MAKE_RESIDENT, RESIDENT_OR_FAIL, &[A, B + 100]),
        Status::OutOfResources.word()
    );
    assert_eq!(resident(&world), [A, C], "what it names itself makes no room for it");
}

#[test]
fn a_message_that_waits_is_answered_when_others_let_go() {
    let mut world = world(&[(A, 4), (B, 5)]);
    done(&mut world, MAKE_RESIDENT, 0, &[A]);
    let waits = ask(&mut world, MAKE_RESIDENT, 0, &[B]);
    (0..3).for_each(|_| world.turn(0));
    assert_eq!((world.answer(waits), resident(&world)), (None, vec![A]));
    // Its own memory leaves when it is needed, and the other one when it is told to.
    let evictions = counted(&world.session.vm.counters.evictions);
    done(&mut world, EVICT, 0, &[A]);
    (0..3).for_each(|_| world.turn(0));
    assert!(world.answer(waits).is_some_and(|(status, _)| status == Status::Ok.word()));
    assert_eq!(resident(&world), [B]);
    assert_eq!(counted(&world.session.vm.counters.evictions), evictions + 1);
}

#[test]
fn messages_that_wait_are_bounded() {
    let mut world = world(&[(A, 8), (B, 4)]);
    done(&mut world, MAKE_RESIDENT, 0, &[B]);
    for _ in 0..MAX_WAITS - 1 {
        ask(&mut world, MAKE_RESIDENT, 0, &[A]);
    }
    assert_eq!(world.session.vm.memory.residency.waiter_count(GuestProcess::new(1)), MAX_WAITS - 1);
    ask(&mut world, MAKE_RESIDENT, 0, &[A]);
    assert_eq!(world.session.vm.memory.residency.waiter_count(GuestProcess::new(1)), MAX_WAITS);
    let refused = ask(&mut world, MAKE_RESIDENT, 0, &[A]);
    assert_eq!(world.answer(refused).map(|(status, _)| status), Some(Status::OutOfResources.word()));
    assert_eq!(holds(&world, A).0, MAX_WAITS as u64);
}

#[test]
fn what_is_less_important_leaves_first_and_of_equals_what_came_first() {
    for (of_a, of_b, stays) in [
        (memory::PRIORITY_NORMAL, memory::PRIORITY_LOW, A),
        (memory::PRIORITY_LOW, memory::PRIORITY_NORMAL, B),
        (memory::PRIORITY_NORMAL, memory::PRIORITY_NORMAL, B),
    ] {
        let mut world = world(&[(A, 3), (B, 3), (C, 3)]);
        for (resource, priority) in [(A, of_a), (B, of_b)] {
            done(&mut world, SET_PRIORITY, priority, &[resource]);
            done(&mut world, MAKE_RESIDENT, 0, &[resource]);
            done(&mut world, EVICT, 0, &[resource]);
        }
        done(&mut world, MAKE_RESIDENT, 0, &[C]);
        assert_eq!(resident(&world), [stays, C]);
    }
}

#[test]
fn what_lies_in_the_way_moves_where_that_is_less_than_to_evict() {
    let mut world = world(&[(A, 2), (B, 1), (C, 3)]);
    // A hole before the small one, and one at the end: neither is long enough.
    for resource in [A, B, C] {
        done(&mut world, MAKE_RESIDENT, 0, &[resource]);
    }
    done(&mut world, EVICT, 0, &[B]);
    done(&mut world, EVICT, EVICT_NOW, &[A]);
    done(&mut world, EVICT, 0, &[C]);
    world.session.blobs().create_vram_blob(A + 100, 3 * PIECE, false).unwrap();
    world.session.blobs().attach(FrontContext::new(1), A + 100).unwrap();
    let counters = |world: &World| {
        let counters = &world.session.vm.counters;
        [&counters.evictions, &counters.relocations].map(counted)
    };
    let [evictions, relocations] = counters(&world);
    done(&mut world, MAKE_RESIDENT, 0, &[A + 100]);
    assert_eq!(counters(&world), [evictions, relocations + 1], "one small move");
    assert!(is_resident(&world, B) && is_resident(&world, C));
}

//! Native fences, from their making to the end of the last device that has them open.

use campanile_protocol::control::message;
use campanile_protocol::control::native_fence::CLOSE_NATIVE_FENCE;
use campanile_protocol::control::native_fence::CREATE_NATIVE_FENCE;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::NATIVE_FENCE_DEFAULT;
use campanile_protocol::control::native_fence::NATIVE_FENCE_INTRA_GPU;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::control::native_fence::OPEN_NATIVE_FENCE;
use campanile_protocol::control::native_fence::OpenNativeFence;
use campanile_protocol::control::native_fence::QUERY_NATIVE_FENCE;
use campanile_protocol::control::native_fence::SIGNAL_NATIVE_FENCE;
use campanile_protocol::control::native_fence::WAIT_NATIVE_FENCE;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use super::world::World;
use crate::vgpu::fences::table::Named;

const VA: u64 = 1 << 32;

fn world() -> World {
    let mut world = World::new();
    [1, 2].into_iter().for_each(|of| world.open(of));
    // An engine that has to let go of pages.
    let context = world.context(1);
    world.queue(1, context);
    (0..3).for_each(|_| world.turn(0));
    world
}

/// Makes a fence in process 1: its local and its global handle.
fn create(world: &mut World, kind: u32, va: u64) -> [Handle; 2] {
    let create = CreateNativeFence { kind, reserved: 0, initial_value: 3, va };
    world.ok(1, CREATE_NATIVE_FENCE, create.as_bytes()).map(Handle)
}

fn settle(world: &mut World) {
    (0..3).for_each(|_| world.turn(0));
}

#[test]
fn ums_131_fences_of_both_kinds_are_made_and_nothing_else_is() {
    let mut world = world();
    for (kind, reserved, expected) in [
        (NATIVE_FENCE_DEFAULT, 0, Status::Ok),
        (NATIVE_FENCE_INTRA_GPU, 0, Status::Ok),
        (NATIVE_FENCE_DEFAULT, 1, Status::InvalidParameter),
        (NATIVE_FENCE_INTRA_GPU, 1, Status::InvalidParameter),
        (NATIVE_FENCE_INTRA_GPU + 1, 0, Status::InvalidParameter),
    ] {
        let va = VA + (u64::from(kind) << 20);
        let create = CreateNativeFence { kind, reserved, initial_value: 3, va };
        let (status, _) = world.call(1, CREATE_NATIVE_FENCE, create.as_bytes());
        assert_eq!(status, expected.word(), "kind {kind}, reserved {reserved}");
    }
    assert_eq!(world.session.vm.fences.iter().count(), 2);
    // One whose page cannot be mapped is none.
    let taken = CreateNativeFence { kind: NATIVE_FENCE_DEFAULT, reserved: 0, initial_value: 0, va: VA };
    assert_eq!(world.call(1, CREATE_NATIVE_FENCE, taken.as_bytes()).0, Status::InvalidAddress.word());
    assert_eq!(world.session.vm.fences.iter().count(), 2);
}

#[test]
fn ums_142_a_fence_ends_with_the_last_process_that_has_it_open_when_engines_have_let_go() {
    let mut world = world();
    let [_, shared] = create(&mut world, NATIVE_FENCE_DEFAULT, VA);
    let [_, own] = create(&mut world, NATIVE_FENCE_DEFAULT, VA + (1 << 20));
    let open = OpenNativeFence { global: shared, va: VA };
    world.ok(2, OPEN_NATIVE_FENCE, open.as_bytes());
    settle(&mut world);
    // The device of process 1 ends.
    world.ask(1, message::DESTROY_DEVICE, &[]);
    settle(&mut world);
    assert!(matches!(world.session.vm.fences.find(shared), Named::Live(_)), "another has it open");
    assert_eq!(world.session.vm.fences.find(own), Named::Nothing);
    assert_eq!(world.session.vm.fences.iter().count(), 1);
    world.close(2);
    settle(&mut world);
    assert_eq!(
        (world.session.vm.fences.find(shared), world.session.vm.fences.iter().count()),
        (Named::Nothing, 0)
    );
}

#[test]
fn ums_142_a_fence_that_was_closed_is_leaving_until_engines_have_let_go() {
    let mut world = world();
    let [local, global] = create(&mut world, NATIVE_FENCE_DEFAULT, VA);
    settle(&mut world);
    world.named(1, CLOSE_NATIVE_FENCE, local);
    settle(&mut world);
    assert_eq!(world.session.vm.fences.find(global), Named::Nothing);
    let again = OpenNativeFence { global, va: VA };
    assert_eq!(world.call(2, OPEN_NATIVE_FENCE, again.as_bytes()).0, Status::InvalidHandle.word());
}

#[test]
fn ums_135_ums_139_a_signal_of_a_process_is_what_others_read_and_ends_the_waits_for_it_and_for_no_other() {
    let mut world = world();
    let [local, shared] = create(&mut world, NATIVE_FENCE_DEFAULT, VA);
    let [other, _] = create(&mut world, NATIVE_FENCE_DEFAULT, VA + (1 << 20));
    let open = OpenNativeFence { global: shared, va: VA };
    let of_second = Handle(world.ok(2, OPEN_NATIVE_FENCE, open.as_bytes())[0]);
    settle(&mut world);
    let wait = |world: &mut World, of, fence, value| {
        world.ask(of, WAIT_NATIVE_FENCE, NativeFenceValue { fence, value }.as_bytes())
    };
    let waits = [(2, of_second, 7), (2, of_second, 8), (1, other, 7)]
        .map(|(of, fence, value)| wait(&mut world, of, fence, value));
    let status = |world: &World, asked| world.answer(asked).map(|(status, _)| status);
    assert_eq!(waits.map(|of| status(&world, of)), [None; 3]);
    let signal = NativeFenceValue { fence: local, value: 7 };
    assert_eq!(world.call(1, SIGNAL_NATIVE_FENCE, signal.as_bytes()).0, Status::Ok.word());
    assert_eq!(waits.map(|of| status(&world, of)), [Some(Status::Ok.word()), None, None]);
    let query = message::Named { handle: of_second };
    assert_eq!(world.ok(2, QUERY_NATIVE_FENCE, query.as_bytes())[0], 7);
    let query = message::Named { handle: other };
    assert_eq!(world.ok(1, QUERY_NATIVE_FENCE, query.as_bytes())[0], 3);
    // A handle of another process is none.
    let foreign = NativeFenceValue { fence: Handle(local.0 ^ 1 << 32), value: 9 };
    assert_eq!(world.call(2, SIGNAL_NATIVE_FENCE, foreign.as_bytes()).0, Status::InvalidHandle.word());
    // With the handle end the waits through it.
    world.named(2, CLOSE_NATIVE_FENCE, of_second);
    assert_eq!(status(&world, waits[1]), Some(Status::InvalidHandle.word()));
    assert_eq!(status(&world, waits[2]), None);
}

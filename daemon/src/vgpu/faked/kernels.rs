//! Kernels, and what waits for the engine that compiles them.

use campanile_host_gpu::adapter::fake::Conduct;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use super::world::Asked;
use super::world::World;
use crate::ids::GuestProcess;
use crate::vgpu::config::Config;
use crate::vgpu::control::devices::Devices;
use crate::vgpu::engines::kernels::Kernels;
use crate::vgpu::engines::lifecycle::Lifecycle;
use crate::vgpu::engines::slot::WaitingMessage;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::tdr::reason::Reason;
use crate::vgpu::tdr::recovery::Recovery;

const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);

/// Process 1 asks for a kernel.
fn kernel(world: &mut World) -> Asked {
    kernel_of(world, 1)
}

fn kernel_of(world: &mut World, of: u32) -> Asked {
    let head = CreateKernel { language: LANGUAGE_WGSL, entry_bytes: 0, source_bytes: 8, reserved: 0 };
    world.ask(of, message::CREATE_KERNEL, &[head.as_bytes(), b"a source"].concat())
}

fn status(world: &World, asked: Asked) -> Option<u32> {
    world.answer(asked).map(|(status, _)| status)
}

/// Process 1 has this kernel, which the engine has compiled.
fn with_kernel() -> (World, Handle) {
    let mut world = World::new();
    world.open(1);
    let first = kernel(&mut world);
    assert_eq!(status(&world, first), None, "its engine is on its way up");
    (0..3).for_each(|_| world.turn(0));
    let (status, [handle, _]) = world.answer(first).unwrap();
    assert_eq!(status, Status::Ok.word());
    (world, Handle(handle))
}

#[test]
fn tdr_57_the_kernel_that_the_compiler_was_at_is_refused_and_all_others_are_compiled_by_the_next_process() {
    let (mut world, _) = with_kernel();
    let (second, third) = (kernel(&mut world), kernel(&mut world));
    let statuses = |world: &World| [second, third].map(|asked| status(world, asked));
    world.fakes.conduct(NodeKind::Compute, Conduct::Dies);
    world.look();
    assert_eq!((statuses(&world), world.fakes.started()), ([None; 2], 2), "it may have been either");
    // The next process has what was compiled, and dies over one of the others, of which it compiles each alone.
    world.fakes.conduct(NodeKind::Compute, Conduct::Compiles(1));
    (0..3).for_each(|_| world.turn(0));
    assert_eq!((world.fakes.alone(2), statuses(&world)), (vec![false, true, true], [None; 2]));
    world.fakes.conduct(NodeKind::Compute, Conduct::Dies);
    world.look();
    assert_eq!((statuses(&world), world.fakes.started()), ([Some(Status::KernelRefused.word()), None], 3));
    let slot = &world.session.vm.engines[COMPUTE.index()];
    assert_eq!((slot.rebuilding.len(), slot.compiling.len()), (1, 1));
    assert!(!slot.is_running(), "it runs nothing before it has what was compiled");
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(status(&world, third), Some(Status::Ok.word()));
    let slot = &world.session.vm.engines[COMPUTE.index()];
    assert!(slot.is_running() && !slot.owes_kernels());
    assert!(world.asked.is_empty());
}

/// The engine of a world is at all kernels of process 1 from here on, and process 2 asks for one more than those.
fn at_kernels_of_another() -> (World, Asked) {
    let mut world = World::new();
    [1, 2].into_iter().for_each(|of| world.open(of));
    let first = kernel(&mut world);
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(status(&world, first), Some(Status::Ok.word()));
    world.fakes.conduct(NodeKind::Compute, Conduct::Compiles(0));
    let asked = kernel(&mut world);
    world.turn(0);
    assert_eq!(status(&world, asked), None);
    world.pass(world.session.vm.config.policy.compile_timeout / 4 * 3);
    world.look();
    let innocent = kernel_of(&mut world, 2);
    world.turn(0);
    (world, innocent)
}

#[test]
fn tdr_21_a_kernel_that_takes_too_long_is_to_blame_after_its_device_has_ended_and_none_that_waits_behind_it()
{
    let (mut world, innocent) = at_kernels_of_another();
    world.ask(1, message::DESTROY_DEVICE, &[]);
    let limit = world.session.vm.config.policy.compile_timeout;
    // It was asked for long before the innocent one, whose own time has not come.
    for _ in 0..3 {
        world.pass(limit / 4);
        world.look();
    }
    assert_eq!((world.fakes.started(), status(&world, innocent)), (2, None), "the engine is reset for it");
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(status(&world, innocent), Some(Status::Ok.word()));
    let slot = &world.session.vm.engines[COMPUTE.index()];
    assert!(slot.is_running() && !slot.owes_kernels());
    assert!(world.asked.is_empty());
}

#[test]
fn tdr_21_no_answer_for_a_kernel_that_nobody_waits_for_gives_one_that_takes_too_long_more_time() {
    let (mut world, innocent) = at_kernels_of_another();
    let gone = KernelName { root: 99, handle: 99 };
    Kernels::of(&mut world.session.vm).kernel_created(COMPUTE, gone, [1; 3], 0, 0);
    for _ in 0..3 {
        world.pass(world.session.vm.config.policy.compile_timeout / 4);
        world.look();
    }
    assert_eq!((world.fakes.started(), status(&world, innocent)), (2, None));
    assert_eq!(
        world.session.vm.objects.processes[&GuestProcess::new(1)].offences.ages(clock::now()).len(),
        1
    );
}

#[test]
fn tdr_57_kernels_are_compiled_again_in_the_order_in_which_they_were_asked_for() {
    let mut world = World::new();
    [1, 2].into_iter().for_each(|of| world.open(of));
    let before = kernel(&mut world);
    (0..3).for_each(|_| world.turn(0));
    world.fakes.conduct(NodeKind::Compute, Conduct::Compiles(0));
    // In tables that of process 1 comes first.
    let asked = [before, kernel_of(&mut world, 2), kernel_of(&mut world, 1)];
    world.turn(0);
    world.fakes.conduct(NodeKind::Compute, Conduct::Dies);
    world.look();
    (0..3).for_each(|_| world.turn(0));
    let handles = asked.map(|asked| world.answer(asked).unwrap().1[0]);
    assert_ne!(handles[1], handles[2]);
    assert_eq!((world.fakes.kernels(2).0, world.fakes.alone(2)), (handles.to_vec(), vec![false, true, true]));
}

#[test]
fn tdr_57_an_engine_that_ends_may_have_ended_over_a_kernel_that_nobody_waits_for_any_more() {
    let (mut world, innocent) = at_kernels_of_another();
    world.ask(1, message::DESTROY_DEVICE, &[]);
    world.fakes.conduct(NodeKind::Compute, Conduct::Dies);
    world.look();
    assert_eq!((world.fakes.started(), status(&world, innocent)), (2, None));
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(status(&world, innocent), Some(Status::Ok.word()));
}

#[test]
fn tdr_57_an_engine_that_ends_while_it_compiles_again_what_there_was_has_not_begun_with_what_is_asked_for() {
    let (mut world, _) = with_kernel();
    world.fakes.conduct(NodeKind::Compute, Conduct::Compiles(0));
    let asked = kernel(&mut world);
    world.turn(0);
    Recovery::of(&mut world.session.vm).recover_engine(COMPUTE, Reason::Forced, "a test", None);
    assert_eq!(status(&world, asked), None, "the operator asked for it");
    // The next one ends twice over the kernel that there was, and takes too long over it once.
    for end in 0..3 {
        world.fakes.conduct(NodeKind::Compute, Conduct::Compiles(0));
        (0..3).for_each(|_| world.turn(0));
        let slot = &world.session.vm.engines[COMPUTE.index()];
        assert_eq!((slot.rebuilding.len(), slot.compiling.len()), (1, 1));
        if end == 1 {
            world.pass(world.session.vm.config.policy.compile_timeout);
        } else {
            world.fakes.conduct(NodeKind::Compute, Conduct::Dies);
        }
        world.look();
        assert_eq!((world.fakes.started(), status(&world, asked)), (3 + end, None));
    }
    assert!(world.session.vm.objects.processes[&GuestProcess::new(1)].offences.ages(clock::now()).is_empty());
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(status(&world, asked), Some(Status::Ok.word()));
}

#[test]
fn tdr_57_a_spare_compiles_one_kernel_a_look_and_is_asked_for_the_rest_when_it_takes_its_place() {
    let mut world = World::with(|config| Config { spares: true, d3_after: None, ..config });
    world.open(1);
    let create = |world: &mut World| {
        let asked = kernel(world);
        (0..4).for_each(|_| world.turn(0));
        world.answer(asked).unwrap().1[0]
    };
    let looks = |world: &mut World| {
        world.pass(world.session.vm.config.policy.compile_timeout);
        world.turn(0);
    };
    let [first, second] = [0; 2].map(|_| create(&mut world));
    assert_eq!(world.fakes.kernels(2), (vec![], vec![]), "the engine's own come first");
    looks(&mut world);
    assert_eq!(world.fakes.kernels(2).0, [first]);
    (0..3).for_each(|_| looks(&mut world));
    assert_eq!(world.fakes.kernels(2).0, [first, second], "each once");
    world.named(1, message::DESTROY_KERNEL, Handle(first));
    let third = create(&mut world);
    assert_eq!(world.fakes.kernels(1), (vec![first, second, third], vec![first]));
    Recovery::of(&mut world.session.vm).recover_engine(COMPUTE, Reason::Forced, "a test", None);
    let slot = &world.session.vm.engines[COMPUTE.index()];
    assert_eq!(slot.rebuilding.iter().map(|name| name.1).collect::<Vec<_>>(), [second, third]);
    (0..3).for_each(|_| world.turn(0));
    assert_eq!(world.fakes.kernels(2), (vec![first, second, third], vec![first]));
    let slot = &world.session.vm.engines[COMPUTE.index()];
    assert!(slot.is_running() && !slot.owes_kernels());
    assert!(world.is_active(1));
}

#[test]
fn what_waits_for_an_engine_that_does_not_come_is_refused_but_for_ends_of_kernels_which_it_does_not_know() {
    let (mut world, handle) = with_kernel();
    Lifecycle::of(&mut world.session.vm).stop_engine(COMPUTE);
    let origin =
        |slot: u32| Origin { context: GuestProcess::new(1), slot, sequence: 1000, ring: 0, item: None };
    let messages =
        [(20, message::DESTROY_KERNEL, Named { handle }), (21, message::SUSPEND_CONTEXT, Named { handle })];
    for (slot, opcode, named) in messages {
        let body = named.as_bytes().to_vec();
        let waiting = WaitingMessage { origin: origin(slot), opcode, body, charge: None };
        world.session.vm.engines[COMPUTE.index()].waiting.push(waiting);
    }
    let refused = Refused { status: Status::NotSupported, text: "it does not come".to_owned() };
    Recovery::of(&mut world.session.vm).refuse_waiting_for(COMPUTE, &refused);
    world.session.settle();
    let answers = [20, 21].map(|slot| status(&world, Asked { of: 1, slot, sequence: 1000 }));
    assert_eq!(answers, [Some(Status::Ok.word()), Some(Status::NotSupported.word())]);
    assert!(world.session.vm.engines[COMPUTE.index()].waiting.is_empty());
    assert_eq!(
        world.session.vm.objects.device(GuestProcess::new(1)).unwrap().kernels.iter().count(),
        0,
        "the kernel is gone"
    );
}

#[test]
fn tdr_57_kernels_of_devices_in_error_are_not_compiled_again() {
    let (mut world, _) = with_kernel();
    Devices::of(&mut world.session.vm)
        .put_device_in_error(GuestProcess::new(1), campanile_protocol::device_page::DEVICE_STOPPED);
    world.fakes.conduct(NodeKind::Compute, Conduct::Dies);
    world.look();
    assert_eq!(world.fakes.started(), 2);
    assert!(world.session.vm.engines[COMPUTE.index()].rebuilding.is_empty());
}

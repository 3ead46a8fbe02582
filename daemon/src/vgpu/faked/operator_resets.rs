//! Resets that the operator orders, and what follows a hang by the policy of the vGPU.

use campanile_host_gpu::adapter::fake::Conduct;
use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::engine::block;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::handle::Handle;
use campanile_protocol::handshake::grant::Given;
use serde_json::json;
use zerocopy::IntoBytes;

use super::world::COPY;
use super::world::World;
use crate::sched::alarm::Hang;
use crate::vgpu::config::Config;
use crate::vgpu::control::orders::Answer;
use crate::vgpu::control::orders::OrderError;
use crate::vgpu::tdr::policy::DebugMode;
use crate::vgpu::tdr::policy::Level;
use crate::vgpu::tdr::policy::Policy;
use crate::vgpu::tdr::recovery::Recovery;
use crate::vgpu::testing::counted;
use crate::vgpu::testing::load;

const COMPUTE: EngineAddress = EngineAddress::new(0, NodeKind::Compute);

/// A context of process 1 on a node of an engine, which is given by its affinity.
fn context_on(world: &mut World, node: u32, engine_affinity: u32) -> Handle {
    let create = CreateContext { node, engine_affinity, flags: 0, reserved: 0 };
    Handle(world.ok(1, message::CREATE_CONTEXT, create.as_bytes())[0])
}

fn world(change: impl FnOnce(Config) -> Config) -> World {
    let mut world = World::with(change);
    world.open(1);
    world
}

fn reset(world: &mut World, at: Option<EngineAddress>) -> Answer {
    Recovery::of(&mut world.session.vm).reset_by_order(at)
}

fn refused(answer: Answer) -> String {
    match answer {
        Err(OrderError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn resets(world: &World) -> [u64; 2] {
    let counters = &world.session.vm.counters;
    [&counters.engines_reset, &counters.adapters_reset].map(counted)
}

#[test]
fn tdr_29_the_operator_resets_the_engine_that_he_names_or_all_that_run() {
    let mut world = world(|config| Config { engines: 2, ..config });
    context_on(&mut world, 1, 1);
    context_on(&mut world, 1, 2);
    let second = EngineAddress::new(1, NodeKind::Copy);
    let pids = |world: &World| {
        [COPY, second].map(|at| world.session.vm.engines[at.index()].process().map(|process| process.pid()))
    };
    let before = pids(&world);
    assert_eq!(reset(&mut world, Some(second)).unwrap(), json!({ "engines_reset": [second.to_string()] }));
    let after = pids(&world);
    assert_eq!((after[0] == before[0], after[1] == before[1]), (true, false));
    assert_eq!(resets(&world), [1, 0]);
    world.turn(0);
    assert!(world.session.vm.engines[second.index()].has_begun(), "it comes up again");
    let all = json!({ "engines_reset": [COPY.to_string(), second.to_string()] });
    assert_eq!(reset(&mut world, None).unwrap(), all);
    assert_eq!(resets(&world), [3, 0]);
    world.turn(0);
    assert!(world.is_active(1), "a context that ran nothing loses nothing");
}

#[test]
fn tdr_29_of_an_engine_that_there_is_not_or_that_does_not_run_there_is_no_reset() {
    let mut world = world(|config| Config { engines: 2, ..config });
    assert!(refused(reset(&mut world, None)).contains("no such engine runs"));
    context_on(&mut world, 1, 1);
    let third = EngineAddress::new(2, NodeKind::Copy);
    assert!(refused(reset(&mut world, Some(third))).contains("there is no engine"));
    for at in [COMPUTE, EngineAddress::new(1, NodeKind::Copy)] {
        assert!(refused(reset(&mut world, Some(at))).contains("no such engine runs"), "{at}");
    }
    assert_eq!(resets(&world), [0, 0]);
}

#[test]
fn tdr_29_while_one_of_them_comes_up_none_is_reset() {
    let mut world = world(|config| config);
    context_on(&mut world, 1, 1);
    // The compute engine is started, and has not come up.
    let create = CreateContext { node: 0, engine_affinity: 1, flags: 0, reserved: 0 };
    let asked = world.ask(1, message::CREATE_CONTEXT, create.as_bytes());
    assert_eq!((world.answer(asked), world.fakes.alive()), (None, 2));
    for at in [None, Some(COMPUTE)] {
        assert!(refused(reset(&mut world, at)).contains("just coming up"));
    }
    assert_eq!(resets(&world), [0, 0]);
    assert!(reset(&mut world, Some(COPY)).is_ok());
    (0..3).for_each(|_| world.turn(0));
    assert!(reset(&mut world, None).is_ok());
    assert_eq!(resets(&world), [3, 0]);
}

/// A hang of the copy engine, where process 1 has a buffer that never ends.
fn hung(policy: Policy) -> World {
    let mut world = world(|config| Config { policy, ..config });
    let context = context_on(&mut world, 1, 1);
    let queue = world.queue(1, context);
    world.submit(1, queue, 8);
    world.fakes.conduct(NodeKind::Copy, Conduct::Hangs);
    world.turn(1);
    Recovery::of(&mut world.session.vm).engine_timeout(COPY, "a test", None);
    world
}

#[test]
fn tdr_16_tdr_17_what_follows_a_hang_is_what_level_and_debug_mode_say() {
    let usual = Policy::default();
    let counts = |world: &World| {
        let counters = &world.session.vm.counters;
        [&counters.engines_reset, &counters.timeouts_ignored].map(counted)
    };
    for (policy, expected, is_active) in [
        (usual, [1, 0], false),
        (Policy { debug: DebugMode::RecoverAlways, ..usual }, [1, 0], false),
        (Policy { debug: DebugMode::Ignore, ..usual }, [0, 1], true),
        (Policy { debug: DebugMode::Break, ..usual }, [0, 0], true),
        (Policy { level: Level::Off, ..usual }, [0, 0], true),
        // The debug mode is looked at first.
        (Policy { level: Level::Off, debug: DebugMode::Ignore, ..usual }, [0, 1], true),
    ] {
        let world = hung(policy);
        assert_eq!((counts(&world), world.is_active(1)), (expected, is_active), "{policy:?}");
        let is_held = world.session.vm.engines[COPY.index()].is_held;
        assert_eq!(is_held, policy.debug == DebugMode::Break, "{policy:?}");
    }
}

#[test]
fn tdr_17_an_engine_that_is_held_for_a_debugger_stays_so_until_the_operator_resets_it() {
    let mut world = hung(Policy { debug: DebugMode::Break, ..Policy::default() });
    for _ in 0..2 {
        Recovery::of(&mut world.session.vm).engine_timeout(COPY, "a test", None);
    }
    assert_eq!((resets(&world), world.is_active(1), world.fakes.started()), ([0, 0], true, 1));
    assert!(reset(&mut world, None).is_ok());
    assert_eq!((resets(&world), world.is_active(1), world.fakes.started()), ([1, 0], false, 2));
    assert!(!world.session.vm.engines[COPY.index()].is_held);
}

/// The supervisor has seen a hang, with this progress.
fn alarm(world: &mut World, hang: Hang, progress: Progress) {
    world.session.vm.engines[COPY.index()].alarm().raise(hang, progress);
    Recovery::of(&mut world.session.vm).engine_alarm(COPY);
}

#[test]
fn tdr_38_an_alarm_of_an_engine_that_has_gone_on_since_resets_nothing() {
    let in_vain = |world: &World| counted(&world.session.vm.counters.timeouts_in_vain);
    let mut world = world(|config| config);
    let context = context_on(&mut world, 1, 1);
    let queue = world.queue(1, context);
    world.submit(1, queue, 8);
    world.turn(0);
    Recovery::of(&mut world.session.vm).engine_alarm(COPY);
    assert_eq!((resets(&world), in_vain(&world)), ([0, 0], 0), "nothing was seen");
    let now = Progress::from_word(load(&world.session, COPY, block::PROGRESS));
    let before = Progress { steps: now.steps.wrapping_sub(1), ..now };
    alarm(&mut world, Hang::NoProgress, before);
    assert_eq!((resets(&world), in_vain(&world)), ([0, 0], 1));
    // It has its node no more.
    alarm(&mut world, Hang::NotYielded, now);
    assert_eq!((resets(&world), in_vain(&world), world.is_active(1)), ([0, 0], 2, true));
    alarm(&mut world, Hang::NoProgress, now);
    assert_eq!((resets(&world), in_vain(&world), world.is_active(1)), ([1, 0], 2, false));
}

#[test]
fn an_engine_that_breaks_the_protocol_of_its_grant_word_is_reset_whatever_the_policy() {
    let breach = Given::default().judge(u64::MAX).unwrap_err();
    let usual = Policy::default();
    for policy in [
        usual,
        Policy { debug: DebugMode::Ignore, ..usual },
        Policy { debug: DebugMode::Break, ..usual },
        Policy { level: Level::Off, ..usual },
    ] {
        let mut world = world(|config| Config { policy, ..config });
        context_on(&mut world, 1, 1);
        let now = Progress::from_word(load(&world.session, COPY, block::PROGRESS));
        let elsewhere = Progress { steps: now.steps.wrapping_add(1), ..now };
        alarm(&mut world, Hang::BrokenProtocol(breach), elsewhere);
        let broken = counted(&world.session.vm.counters.broken_grants);
        assert_eq!((resets(&world), broken), ([1, 0], 1), "{policy:?}");
        assert!(!world.session.vm.engines[COPY.index()].is_held);
    }
}

#[test]
fn moves_of_memory_wait_for_no_copy_engine_that_never_comes_up() {
    for (node, kind, is_available) in [(1, NodeKind::Copy, false), (0, NodeKind::Compute, true)] {
        let mut world = world(|config| config);
        let create = CreateContext { node, engine_affinity: 1, flags: 0, reserved: 0 };
        world.ask(1, message::CREATE_CONTEXT, create.as_bytes());
        world.fakes.conduct(kind, Conduct::Dies);
        world.look();
        assert_eq!(world.session.vm.engines.moves.is_available(), is_available, "{kind:?}");
    }
}

#[test]
fn engines_are_looked_at_when_it_is_time_and_one_that_owes_nothing_goes_on() {
    let mut world = world(|config| Config { d3_after: None, ..config });
    context_on(&mut world, 1, 1);
    let limit = world.session.vm.config.policy.compile_timeout;
    let begun = clock::now();
    while clock::now() <= begun + limit * 3 {
        let due = world.session.look_at.at.unwrap();
        world.fakes.step(0);
        world.pass(due - clock::now());
        assert!(world.session.look_at.at.is_some_and(|next| next > due), "it was looked at");
    }
    assert_eq!((resets(&world), world.fakes.started(), world.is_active(1)), ([0, 0], 1, true));
}

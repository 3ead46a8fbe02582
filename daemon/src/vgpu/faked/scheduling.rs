//! What guests ask for of their contexts' turns: what is refused, what engines are told, and which buffer comes next.

use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;
use std::time::Duration;

use campanile_host_gpu::engine::properties::parameters;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::DEFAULT_WEIGHT;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_protocol::control::scheduling;
use campanile_protocol::control::scheduling::SET_PROCESS_CLASS;
use campanile_protocol::control::scheduling::SET_SCHEDULING_PROPERTIES;
use campanile_protocol::control::scheduling::SetProcessClass;
use campanile_protocol::control::scheduling::SetSchedulingProperties;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::scheduling::ContextProperties;
use campanile_protocol::handle::Handle;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::world::COPY;
use super::world::World;
use crate::sched::share::Share;
use crate::vgpu::testing::shared;

/// Process 1 with a context and a queue, in a vGPU that was granted bands up to this one.
fn world(highest_band: Band) -> (World, Handle, Handle) {
    let share = Share { highest_band, ..Share::default() };
    let mut world = World::with(|config| crate::vgpu::config::Config { share, ..config });
    world.open(1);
    let context = world.context(1);
    let queue = world.queue(1, context);
    (world, context, queue)
}

/// What the engine was told of a context.
fn told(world: &World, of: u32, context: Handle) -> Parameters {
    let entry = world
        .session
        .vm
        .objects
        .device(GuestProcess::new(of))
        .unwrap()
        .contexts
        .get(ContextHandle::new(context))
        .unwrap()
        .entry
        .unwrap();
    let mut bytes = [0; size_of::<ContextProperties>()];
    let place = campanile_protocol::engine::scheduling::properties(entry.get());
    shared(&world.session, COPY).slice(place, bytes.len() as u64).unwrap().copy_to(&mut bytes);
    parameters(&ContextProperties::read_from_bytes(&bytes).unwrap())
}

fn asked_for(context: Handle) -> SetSchedulingProperties {
    SetSchedulingProperties {
        context,
        band: scheduling::BAND_NORMAL,
        realtime_level: 0,
        in_process_priority: 0,
        quantum: 0,
        grace_same: 0,
        grace_lower: 0,
    }
}

fn set(world: &mut World, message: &SetSchedulingProperties) -> u32 {
    world.call(1, SET_SCHEDULING_PROPERTIES, message.as_bytes()).0
}

fn set_class(world: &mut World, class: u32, reserved: u32) -> u32 {
    world.call(1, SET_PROCESS_CLASS, SetProcessClass { class, reserved }.as_bytes()).0
}

fn ran(world: &World) -> Vec<u64> {
    world.fakes.take_ran().iter().map(|ran| ran.submission.buffer_va).collect()
}

#[test]
fn pre_63_pre_64_pre_66_properties_up_to_their_limits_are_told_to_the_engine() {
    let (mut world, context, _) = world(Band::Realtime);
    let begun = Parameters { group: 1, ..Parameters::default() };
    assert_eq!(told(&world, 1, context), begun);
    let usual = asked_for(context);
    let second = Duration::from_secs(1);
    let times = SetSchedulingProperties {
        quantum: scheduling::MAX_TIME,
        grace_same: 1,
        grace_lower: scheduling::MAX_TIME - 1,
        ..usual
    };
    let realtime = SetSchedulingProperties { band: scheduling::BAND_REALTIME, realtime_level: 31, ..usual };
    for (message, expected) in [
        (SetSchedulingProperties { in_process_priority: 7, ..usual }, Parameters { priority: 7, ..begun }),
        (SetSchedulingProperties { in_process_priority: -7, ..usual }, Parameters { priority: -7, ..begun }),
        (realtime, Parameters { band: Band::Realtime, level: 31, ..begun }),
        // Elsewhere the level is ignored, whatever it is.
        (
            SetSchedulingProperties { band: scheduling::BAND_FOCUS, realtime_level: 32, ..usual },
            Parameters { band: Band::Focus, ..begun },
        ),
        (
            SetSchedulingProperties { band: scheduling::BAND_IDLE, ..usual },
            Parameters { band: Band::Idle, ..begun },
        ),
        (
            times,
            Parameters {
                quantum: second,
                grace_same: Duration::from_nanos(100),
                grace_lower: second.checked_sub(Duration::from_nanos(100)).unwrap(),
                ..begun
            },
        ),
        (usual, begun),
    ] {
        assert_eq!(set(&mut world, &message), Status::Ok.word(), "{message:?}");
        assert_eq!(told(&world, 1, context), expected, "{message:?}");
    }
}

#[test]
fn pre_62_pre_63_pre_64_what_lies_beyond_a_limit_is_refused_and_changes_nothing() {
    let (mut world, context, _) = world(Band::Realtime);
    let usual = asked_for(context);
    let over = scheduling::MAX_TIME + 1;
    let set_before = SetSchedulingProperties { in_process_priority: 3, quantum: 7, ..usual };
    assert_eq!(set(&mut world, &set_before), Status::Ok.word());
    let before = told(&world, 1, context);
    let another = Handle(context.0 ^ 1 << 32);
    for (message, expected) in [
        (SetSchedulingProperties { band: 4, ..usual }, Status::InvalidParameter),
        (
            SetSchedulingProperties { band: scheduling::BAND_REALTIME, realtime_level: 32, ..usual },
            Status::InvalidParameter,
        ),
        (SetSchedulingProperties { in_process_priority: 8, ..usual }, Status::InvalidParameter),
        (SetSchedulingProperties { in_process_priority: -8, ..usual }, Status::InvalidParameter),
        (SetSchedulingProperties { quantum: over, ..usual }, Status::InvalidParameter),
        (SetSchedulingProperties { grace_same: over, ..usual }, Status::InvalidParameter),
        (SetSchedulingProperties { grace_lower: over, ..usual }, Status::InvalidParameter),
        (SetSchedulingProperties { context: another, ..usual }, Status::InvalidHandle),
        // The handle is looked at first.
        (SetSchedulingProperties { context: another, band: 4, ..usual }, Status::InvalidHandle),
    ] {
        assert_eq!(set(&mut world, &message), expected.word(), "{message:?}");
        assert_eq!(told(&world, 1, context), before, "{message:?}");
    }
}

#[test]
fn pre_65_a_band_above_what_the_operator_granted_is_refused_and_the_highest_granted_is_not() {
    let bands = [
        (Band::Idle, scheduling::BAND_IDLE),
        (Band::Normal, scheduling::BAND_NORMAL),
        (Band::Focus, scheduling::BAND_FOCUS),
        (Band::Realtime, scheduling::BAND_REALTIME),
    ];
    for (granted, _) in &bands[1..] {
        let (mut world, context, _) = world(*granted);
        for (band, number) in bands {
            let before = told(&world, 1, context);
            let status = set(&mut world, &SetSchedulingProperties { band: number, ..asked_for(context) });
            let is_granted = band <= *granted;
            let expected = if is_granted { Status::Ok } else { Status::NotPermitted };
            assert_eq!(status, expected.word(), "{band:?} of {granted:?}");
            let now = if is_granted { band } else { before.band };
            assert_eq!(told(&world, 1, context).band, now, "{band:?} of {granted:?}");
        }
        let is_realtime = *granted == Band::Realtime;
        let expected = if is_realtime { Status::Ok } else { Status::NotPermitted };
        assert_eq!(set_class(&mut world, scheduling::CLASS_REALTIME, 0), expected.word());
        let class = world.session.vm.objects.device(GuestProcess::new(1)).unwrap().class;
        assert_eq!(class.number() == scheduling::CLASS_REALTIME, is_realtime);
    }
}

#[test]
fn pre_61_a_class_is_of_all_contexts_of_its_process_and_their_own_band_is_before_it() {
    let (mut world, context, _) = world(Band::Realtime);
    let second = world.context(1);
    let own = world.context(1);
    world.open(2);
    let others = world.context(2);
    let message = SetSchedulingProperties { in_process_priority: 2, ..asked_for(own) };
    assert_eq!(set(&mut world, &message), Status::Ok.word());
    for (class, band, weight) in [
        (scheduling::CLASS_IDLE, Band::Idle, DEFAULT_WEIGHT),
        (scheduling::CLASS_BELOW_NORMAL, Band::Normal, DEFAULT_WEIGHT / 2),
        (scheduling::CLASS_ABOVE_NORMAL, Band::Normal, DEFAULT_WEIGHT * 2),
        (scheduling::CLASS_HIGH, Band::Normal, DEFAULT_WEIGHT * 4),
        (scheduling::CLASS_REALTIME, Band::Realtime, DEFAULT_WEIGHT),
        (scheduling::CLASS_NORMAL, Band::Normal, DEFAULT_WEIGHT),
    ] {
        assert_eq!(set_class(&mut world, class, 0), Status::Ok.word());
        for context in [context, second] {
            let told = told(&world, 1, context);
            assert_eq!((told.group, told.band, told.weight), (1, band, weight), "class {class}");
        }
        let of_own = told(&world, 1, own);
        assert_eq!((of_own.band, of_own.weight, of_own.priority), (Band::Normal, weight, 2), "class {class}");
        let of_other = Parameters { group: 2, ..Parameters::default() };
        assert_eq!(told(&world, 2, others), of_other, "class {class} is not of another process");
    }
    // A context that comes later has its class, too (PRE-70).
    assert_eq!(set_class(&mut world, scheduling::CLASS_HIGH, 0), Status::Ok.word());
    let late = world.context(1);
    assert_eq!(told(&world, 1, late).weight, DEFAULT_WEIGHT * 4);
    for (class, reserved) in [(scheduling::CLASS_REALTIME + 1, 0), (scheduling::CLASS_IDLE, 1)] {
        assert_eq!(set_class(&mut world, class, reserved), Status::InvalidParameter.word());
        assert_eq!(told(&world, 1, late).weight, DEFAULT_WEIGHT * 4);
    }
}

#[test]
fn pre_64_pre_69_of_two_contexts_of_a_process_the_one_that_was_given_more_priority_is_next() {
    for raised in [false, true] {
        let (mut world, context, first) = world(Band::Normal);
        let second = world.context(1);
        let second = world.queue(1, second);
        // The engine has two; what comes after them stands on the run list, where it is the turn of the second.
        for va in [8, 16, 24] {
            world.submit(1, first, va);
        }
        world.submit(1, second, 32);
        if raised {
            let message = SetSchedulingProperties { in_process_priority: 7, ..asked_for(context) };
            assert_eq!(set(&mut world, &message), Status::Ok.word());
        }
        (0..6).for_each(|_| world.turn(1));
        let expected = if raised { [8, 16, 24, 32] } else { [8, 16, 32, 24] };
        assert_eq!(ran(&world), expected);
        assert!(world.asked.is_empty());
    }
}

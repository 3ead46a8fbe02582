//! In-process priority, quantum and grace periods of a context.

use std::time::Duration;

use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::policy::Current;
use campanile_host_gpu::sched::policy::EntityId;

use crate::machine::Load;
use crate::machine::Machine;
use crate::machine::in_band;
use crate::machine::ms;
use crate::machine::us;
use crate::machine::with_each;

fn with_priority(group: u64, priority: i8) -> Parameters {
    Parameters { priority, ..in_band(group, Band::Normal) }
}

#[test]
fn pre_64_the_highest_priority_of_a_group_with_work_runs() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        for (entity, priority) in [(0, -7), (1, 7), (2, 0), (3, 7)] {
            machine.add(entity, with_priority(0, priority), Load::busy(us(10)));
        }
        machine.run(ms(100));
        assert!((machine.share(1, ms(0), ms(100)) - 0.5).abs() < 0.03);
        assert!((machine.share(3, ms(0), ms(100)) - 0.5).abs() < 0.03);
        machine.nap(1);
        machine.nap(3);
        machine.run(ms(100));
        assert_eq!(machine.had(2, ms(100), ms(200)), ms(100));
    });
}

#[test]
fn pre_64_priorities_of_different_groups_are_not_compared() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, with_priority(0, -7), Load::busy(us(10)));
        machine.add(1, with_priority(1, 7), Load::busy(us(10)));
        machine.add(2, with_priority(1, 6), Load::busy(us(10)));
        machine.run(ms(1000));
        assert!((machine.share(0, ms(0), ms(1000)) - 0.5).abs() < 0.01);
        assert_eq!(machine.had(2, ms(0), ms(1000)), us(0));
    });
}

#[test]
fn pre_64_a_group_gets_no_less_when_its_priorities_take_turns() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, with_priority(0, 0), Load::busy(us(10)));
        machine.add(1, with_priority(0, 5), Load::bursts(ms(5), ms(5)));
        machine.add(2, with_priority(1, 0), Load::busy(us(10)));
        machine.run(ms(4000));
        let others = machine.share(2, ms(0), ms(4000));
        assert!((0.30..=0.52).contains(&others), "{others}");
    });
}

#[test]
fn pre_64_waiting_for_a_higher_priority_is_not_saved_up() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, with_priority(0, 0), Load::busy(us(10)));
        machine.add(1, with_priority(0, 5), Load::busy(us(10)));
        machine.add(2, with_priority(1, 0), Load::busy(us(10)));
        machine.run(ms(2000));
        machine.nap(1);
        machine.run(ms(500));
        let others = machine.share(2, ms(2000), ms(2500));
        assert!((others - 0.5).abs() < 0.02, "{others}");
    });
}

#[test]
fn pre_64_waiting_for_a_higher_priority_is_not_owed_by_others() {
    with_each(|choice| {
        for naps in [true, false] {
            let mut machine = Machine::new(choice);
            machine.add(0, with_priority(0, 0), Load::busy(us(10)));
            machine.add(1, with_priority(0, 5), Load::busy(us(10)));
            machine.add(2, with_priority(1, 0), Load::busy(us(10)));
            machine.run(ms(2000));
            let from = machine.now;
            if naps {
                machine.nap(0);
                machine.nap(1);
                machine.wake(0);
            } else {
                machine.change(0, |parameters| parameters.priority = 6);
            }
            machine.run(ms(50));
            let first = machine.first_run(0, from);
            assert!(first < ms(4) + us(50), "{first:?}, naps {naps}");
        }
    });
}

#[test]
fn pre_66_entities_of_a_group_wait_for_the_quantum_of_the_running_one() {
    with_each(|choice| {
        for quantum in [us(500), ms(2), ms(7)] {
            let mut machine = Machine::new(choice);
            for entity in 0..3 {
                let parameters = Parameters { quantum, ..in_band(0, Band::Normal) };
                machine.add(entity, parameters, Load::busy(us(1)));
            }
            machine.run(ms(500));
            let runs = &machine.runs[1..machine.runs.len() - 1];
            for run in runs {
                let time = run.to - run.from;
                assert!(time >= quantum && time <= quantum + us(1), "{time:?} for {quantum:?}");
            }
        }
    });
}

/// When, if ever, 1 gets the engine that 0 has had since 10 ms, if it wakes at 10.2 ms.
fn taken_over_at(choice: Choice, waker: Parameters) -> Option<Duration> {
    let mut policy = choice.make();
    let (low, high) = (EntityId(0), EntityId(1));
    policy.add(low, Parameters { quantum: ms(5), ..in_band(0, Band::Normal) }, ms(0));
    policy.add(high, waker, ms(0));
    policy.wake(low, ms(0));
    policy.charge(low, ms(10), ms(10));
    let current = Some(Current { entity: low, since: ms(10) });
    policy.charge(low, us(200), us(10_200));
    policy.wake(high, us(10_200));
    let mut now = us(10_200);
    for _ in 0..10 {
        let decision = policy.decide(current, now);
        if decision.next == Some(high) {
            return Some(now);
        }
        let until = decision.until?;
        policy.charge(low, until - now, until);
        now = until;
    }
    None
}

#[test]
fn pre_66_an_entity_that_wakes_with_a_higher_priority_leaves_its_grace_against_lower() {
    with_each(|choice| {
        for grace_lower in [us(0), us(40), ms(1)] {
            let waker = Parameters { grace_lower, ..with_priority(0, 1) };
            assert_eq!(taken_over_at(choice, waker), Some(us(10_200) + grace_lower));
        }
    });
}

#[test]
fn pre_66_an_entity_that_wakes_with_the_same_priority_leaves_its_grace_against_the_same() {
    with_each(|choice| {
        for grace_same in [us(0), us(40), ms(1), ms(20)] {
            let waker = Parameters { grace_same, ..with_priority(0, 0) };
            let at = taken_over_at(choice, waker);
            let quantum_ends = ms(15);
            if choice.name() == "fair" {
                assert_eq!(at, Some((us(10_200) + grace_same).min(quantum_ends)));
            } else {
                assert_eq!(at, Some(quantum_ends));
            }
        }
    });
}

#[test]
fn pre_66_the_same_in_realtime_between_levels() {
    with_each(|choice| {
        let mut policy = choice.make();
        let at = |group, level| Parameters { level, grace_lower: us(60), ..in_band(group, Band::Realtime) };
        policy.add(EntityId(0), at(0, 3), ms(0));
        policy.add(EntityId(1), at(1, 4), ms(0));
        policy.wake(EntityId(0), ms(0));
        policy.wake(EntityId(1), ms(1));
        let current = Some(Current { entity: EntityId(0), since: ms(0) });
        let decision = policy.decide(current, ms(1));
        assert_eq!((decision.next, decision.until), (Some(EntityId(0)), Some(us(1060))));
        assert_eq!(policy.decide(current, us(1060)).next, Some(EntityId(1)));
    });
}

#[test]
fn pre_69_a_priority_is_in_force_from_the_next_decision_on() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, with_priority(0, 0), Load::busy(us(10)));
        machine.add(1, with_priority(0, 0), Load::busy(us(10)));
        machine.run(ms(100));
        machine.change(1, |parameters| parameters.priority = 3);
        let from = machine.now;
        machine.run(ms(100));
        assert!(machine.had(0, from, machine.now) <= us(110));
        machine.change(1, |parameters| parameters.priority = -3);
        let decision = machine.policy.decide(None, machine.now);
        assert_eq!(decision.next, Some(EntityId(0)));
    });
}

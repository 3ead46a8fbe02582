//! Equal time for equal entities.

use std::time::Duration;

use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::fair::CREDIT;
use campanile_host_gpu::sched::fair::OWED;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;

use crate::machine::Load;
use crate::machine::Machine;
use crate::machine::in_band;
use crate::machine::ms;
use crate::machine::us;
use crate::machine::with_each;

/// All windows of a second in `[from, to]`, in steps of 50 ms.
fn windows(from: Duration, to: Duration) -> impl Iterator<Item = (Duration, Duration)> {
    (0..)
        .map(move |step| from + ms(50) * step)
        .map(|from| (from, from + ms(1000)))
        .take_while(move |w| w.1 <= to)
}

fn assert_equal(machine: &Machine, entities: std::ops::Range<u64>, within: f64) {
    let fair = 1.0 / (entities.end - entities.start) as f64;
    for (from, to) in windows(Duration::ZERO, machine.now) {
        for entity in entities.clone() {
            let share = machine.share(entity, from, to);
            let off = (share / fair - 1.0).abs();
            assert!(off <= within, "{entity} had {share:.4} from {from:?}, fair is {fair:.4}");
        }
    }
}

#[test]
fn mcdm_09_equal_busy_entities_get_equal_time_over_any_second() {
    with_each(|choice| {
        for count in [1, 2, 3, 7] {
            let mut machine = Machine::new(choice);
            for entity in 0..count {
                machine.add(entity, in_band(entity, Band::Normal), Load::busy(us(10)));
            }
            machine.run(ms(4000));
            assert_equal(&machine, 0..count, 0.05);
        }
    });
}

#[test]
fn mcdm_09_mcdm_10_it_is_entities_that_are_equal_however_they_are_spread_over_groups() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        for entity in 0..8 {
            let group = if entity < 6 { 100 } else { entity };
            machine.add(entity, in_band(group, Band::Normal), Load::busy(us(10)));
        }
        machine.run(ms(4000));
        assert_equal(&machine, 0..8, 0.05);
    });
}

#[test]
fn mcdm_10_tiny_and_huge_buffers_get_equal_time() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, in_band(0, Band::Normal), Load::busy(us(5)));
        machine.add(1, in_band(1, Band::Normal), Load::busy(ms(500)));
        machine.run(ms(6000));
        assert_equal(&machine, 0..2, 0.05);
        let mut machine = Machine::new(choice);
        for entity in 0..4 {
            let grain = if entity == 0 { us(5) } else { us(1700 * entity) };
            machine.add(entity, in_band(entity % 2, Band::Normal), Load::busy(grain));
        }
        machine.run(ms(4000));
        assert_equal(&machine, 0..4, 0.05);
    });
}

#[test]
fn mcdm_11_an_entity_that_had_its_quantum_is_preempted_for_one_that_is_behind() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, in_band(0, Band::Normal), Load::busy(us(10)));
        machine.add(1, in_band(1, Band::Normal), Load::busy(us(10)));
        machine.run(ms(1000));
        let quantum = Parameters::default().quantum;
        assert!(machine.runs.iter().all(|run| run.to - run.from <= quantum + us(20)), "{:?}", machine.runs);
    });
}

#[test]
fn weights_share_time_where_the_policy_weighs() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        for (entity, group, weight) in [(0, 0, 300), (1, 1, 100), (2, 0, 300), (3, 0, 100)] {
            let parameters = Parameters { weight, ..in_band(group, Band::Normal) };
            machine.add(entity, parameters, Load::busy(us(10)));
        }
        machine.run(ms(4000));
        let weighs = choice.name() == "fair";
        for (entity, fair) in [(0, 0.375), (1, 0.125), (2, 0.375), (3, 0.125)] {
            let fair = if weighs { fair } else { 0.25 };
            for (from, to) in windows(Duration::ZERO, machine.now) {
                let share = machine.share(entity, from, to);
                assert!((share / fair - 1.0).abs() <= 0.05, "{entity} had {share} not {fair}");
            }
        }
    });
}

#[test]
fn sleeping_is_not_saved_up() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, in_band(0, Band::Normal), Load::busy(us(10)));
        machine.add(1, in_band(1, Band::Normal), Load::bursts(ms(3000), ms(5000)));
        machine.run(ms(5500));
        assert!((machine.share(0, ms(5000), ms(5500)) - 0.5).abs() < 0.02);
    });
}

#[test]
fn mcdm_10_an_entity_that_drains_for_a_moment_loses_no_more_than_that_moment() {
    with_each(|choice| {
        if choice.name() != "fair" {
            return;
        }
        let mut machine = Machine::new(choice);
        // A guest that refills its queue a little late, beside one that takes 4 ms to stop.
        machine.add(0, in_band(0, Band::Normal), Load::bursts(ms(6), us(50)));
        machine.add(1, in_band(1, Band::Normal), Load::busy(ms(4)));
        machine.run(ms(4000));
        for (from, to) in windows(ms(100), machine.now) {
            let share = machine.share(0, from, to);
            assert!(share > 0.475, "{share:.4} from {from:?}");
        }
    });
}

/// An entity (0) has overrun, for which others (from 1 on) waited for 14 ms; now it can be stopped. For `fair`.
fn overrun(choice: Choice, others: u64) -> Option<Machine> {
    if choice.name() != "fair" {
        return None;
    }
    let mut machine = Machine::new(choice);
    machine.add(0, in_band(0, Band::Normal), Load::busy(ms(15)));
    machine.run(ms(1));
    for entity in 1..=others {
        machine.add(entity, in_band(entity, Band::Normal), Load::busy(us(10)));
    }
    machine.run(ms(14));
    machine.load(0, Load::busy(us(10)));
    Some(machine)
}

#[test]
fn what_is_owed_to_a_sleeping_entity_is_bounded_and_lasts_no_longer_than_it_would_take() {
    with_each(|choice| {
        for (nap, left) in [(us(50), OWED - us(50)), (ms(6), OWED - ms(6)), (ms(9), CREDIT), (ms(50), CREDIT)]
        {
            let Some(mut machine) = overrun(choice, 1) else { return };
            machine.nap(1);
            machine.run(nap);
            machine.wake(1);
            let from = machine.now;
            machine.run(ms(20));
            let first = machine.first_run(1, from);
            // The running entity has its grace, for which it pays.
            assert!(first.abs_diff(left) <= us(600), "{first:?} after {nap:?}");
        }
    });
}

#[test]
fn what_is_owed_is_not_lost_by_being_scheduled_otherwise() {
    let quantum = |parameters: &mut Parameters| parameters.quantum = ms(3);
    let focus = |parameters: &mut Parameters| parameters.band = Band::Focus;
    let normal = |parameters: &mut Parameters| parameters.band = Band::Normal;
    let changes: [&[fn(&mut Parameters)]; 2] = [&[quantum], &[focus, normal]];
    with_each(|choice| {
        for (changes, naps) in changes.iter().flat_map(|changes| [(*changes, true), (*changes, false)]) {
            let Some(mut machine) = overrun(choice, 1) else { return };
            if naps {
                machine.nap(1);
                machine.run(us(20));
            }
            for change in changes {
                machine.change(1, change);
            }
            if naps {
                machine.run(us(20));
                machine.wake(1);
            }
            let from = machine.now;
            machine.run(ms(20));
            let first = machine.first_run(1, from);
            assert!(first.abs_diff(OWED) <= us(600), "{first:?}, naps {naps}");
        }
    });
}

#[test]
fn what_is_owed_is_not_lost_by_others_that_leave_and_come_back_at_once() {
    with_each(|choice| {
        let Some(mut machine) = overrun(choice, 2) else { return };
        machine.nap(1);
        machine.nap(2);
        machine.wake(1);
        machine.wake(2);
        let from = machine.now;
        machine.run(ms(20));
        let had = [0, 1, 2].map(|entity| machine.had(entity, from, machine.now));
        assert!(had[0] < ms(1) && had[1].abs_diff(had[2]) <= ms(2) + us(50), "{had:?}");
    });
}

#[test]
fn sleeping_is_not_saved_up_whatever_the_weights() {
    // Others that weigh less move the clock far while an entity sleeps: it was owed nothing when it went.
    with_each(|choice| {
        if choice.name() != "fair" {
            return;
        }
        let mut machine = Machine::new(choice);
        for (entity, weight) in [(0, 300), (1, 100)] {
            let parameters = Parameters { weight, ..in_band(entity, Band::Normal) };
            machine.add(entity, parameters, Load::busy(us(10)));
        }
        machine.run(ms(1000));
        for _ in 0..20 {
            machine.nap(0);
            machine.run(ms(10));
            machine.wake(0);
            let from = machine.now;
            machine.run(ms(40));
            // What is due to it, but for one credit and a turn.
            let share = machine.share(1, from, machine.now);
            assert!(share > 0.17, "{share}");
        }
    });
}

#[test]
fn who_used_little_of_its_turns_for_long_does_not_keep_the_engine_for_long() {
    with_each(|choice| {
        if choice.name() != "fair" {
            return;
        }
        let mut machine = Machine::new(choice);
        // It waits for almost 4 ms each time, and never has work for more than 0.1 ms: it is owed more and more.
        machine.add(0, in_band(0, Band::Normal), Load::bursts(us(100), us(50)));
        machine.add(1, in_band(1, Band::Normal), Load::busy(ms(4)));
        machine.run(ms(2000));
        assert!(machine.share(0, ms(0), ms(2000)) < 0.05);
        machine.load(0, Load::busy(us(10)));
        machine.run(ms(1000));
        let longest = machine.runs.iter().filter(|run| run.entity == 0).map(|run| run.to - run.from).max();
        assert!(longest.is_some_and(|longest| longest < OWED + ms(5)), "{longest:?}");
        assert!((machine.share(0, ms(2000), ms(3000)) - 0.5).abs() < 0.03);
    });
}

#[test]
fn a_debt_is_not_lost_by_sleeping_nor_by_leaving() {
    with_each(|choice| {
        for leaves in [false, true] {
            let mut machine = Machine::new(choice);
            machine.add(0, in_band(0, Band::Normal), Load::busy(ms(400)));
            machine.run(ms(1));
            machine.add(1, in_band(1, Band::Normal), Load::busy(us(10)));
            machine.run(ms(400));
            assert!(machine.share(0, ms(0), ms(400)) > 0.99);
            // It is over; its process goes on at once with another context, or after a nap.
            let debtor = if leaves {
                machine.leave(0);
                2
            } else {
                machine.nap(0);
                0
            };
            if leaves {
                machine.add(2, in_band(0, Band::Normal), Load::busy(ms(400)));
            } else {
                machine.wake(0);
            }
            let from = machine.now;
            machine.run(ms(380));
            assert!(machine.share(debtor, from, machine.now) < 0.02, "leaves {leaves}");
            machine.run(ms(1000));
            assert!(machine.share(debtor, from, machine.now) > 0.1, "it is starved: leaves {leaves}");
        }
    });
}

#[test]
fn a_debt_is_not_lost_in_another_band() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, in_band(0, Band::Normal), Load::busy(ms(400)));
        machine.run(ms(1));
        machine.add(1, in_band(1, Band::Normal), Load::busy(us(10)));
        machine.run(ms(400));
        machine.change(0, |parameters| parameters.band = Band::Realtime);
        machine.run(ms(200));
        machine.change(0, |parameters| parameters.band = Band::Normal);
        machine.run(ms(201));
        let from = machine.now;
        machine.run(ms(370));
        assert!(machine.share(0, from, machine.now) < 0.02, "{}", machine.share(0, from, machine.now));
        machine.run(ms(1000));
        assert!(machine.share(0, from, machine.now) > 0.1);
    });
}

#[test]
fn a_sole_entity_goes_on_for_ever() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, in_band(0, Band::Normal), Load::busy(us(10)));
        machine.run(ms(1));
        let decision = machine.policy.decide(machine.current, machine.now);
        assert_eq!(decision.until, None);
        machine.run(ms(10_000));
        assert_eq!(machine.runs.len(), 1);
    });
}

#[test]
fn bursts_of_equals_wait_for_less_than_a_turn_each_where_time_is_owed_to_them() {
    with_each(|choice| {
        if choice.name() != "fair" {
            return;
        }
        let mut machine = Machine::new(choice);
        for entity in 0..20 {
            machine.add(entity, in_band(entity, Band::Normal), Load::busy(us(10)));
        }
        machine.add(20, in_band(20, Band::Normal), Load::bursts(us(200), ms(30)));
        // It begins level with the others; what is owed to it comes with its sleep.
        machine.run(ms(100));
        machine.waits.clear();
        machine.run(ms(3000));
        assert!(machine.longest_wait(20) < ms(1), "{:?}", machine.longest_wait(20));
    });
}

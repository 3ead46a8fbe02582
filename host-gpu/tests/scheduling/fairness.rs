//! Equal time for who is equal.

use std::time::Duration;

use campanile_host_gpu::scheduling::parameters::Band;
use campanile_host_gpu::scheduling::parameters::Parameters;

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
fn mcdm_11_who_has_had_its_quantum_is_preempted_for_who_is_behind() {
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

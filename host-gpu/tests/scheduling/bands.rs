//! Bands, levels, grace periods, and the share of normal.

use std::time::Duration;

use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::BandSettings;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_host_gpu::sched::policy::Current;
use campanile_host_gpu::sched::policy::EntityId;

use crate::machine::Load;
use crate::machine::Machine;
use crate::machine::in_band;
use crate::machine::ms;
use crate::machine::us;
use crate::machine::with_each;

/// One that is busy, of each of these, from the first on.
fn busy(choice: Choice, each: impl IntoIterator<Item = Parameters>) -> Machine {
    let mut machine = Machine::new(choice);
    for (entity, parameters) in (0..).zip(each) {
        machine.add(entity, parameters, Load::busy(us(10)));
    }
    machine
}

#[test]
fn pre_62_bands_have_their_numbers() {
    let numbers = [(Band::Idle, 0), (Band::Normal, 1), (Band::Focus, 2), (Band::Realtime, 3)];
    assert_eq!(Band::ALL.len(), 4);
    for (band, number) in numbers {
        assert_eq!(Band::from_number(number), Some(band));
        assert_eq!(band as u32, number);
    }
    assert_eq!(Band::from_number(4), None);
}

#[test]
fn pre_62_a_higher_band_comes_first() {
    with_each(|choice| {
        for pair in Band::ALL.windows(2) {
            let mut machine = busy(choice, [in_band(0, pair[0]), in_band(1, pair[1])]);
            machine.policy.set_bands(&Settings { normal_share: 0, ..Settings::default() });
            machine.run(ms(1000));
            assert_eq!(machine.had(0, ms(0), ms(1000)), Duration::ZERO, "{pair:?}");
        }
    });
}

#[test]
fn pre_62_a_lower_band_has_what_is_left() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, in_band(0, Band::Idle), Load::busy(us(10)));
        machine.add(1, in_band(1, Band::Realtime), Load::bursts(ms(3), ms(7)));
        machine.run(ms(1000));
        assert!((machine.share(0, ms(0), ms(1000)) - 0.7).abs() < 0.01);
        assert!(machine.used(ms(0), ms(1000)) > 0.999);
    });
}

#[test]
fn pre_63_higher_levels_of_realtime_come_first() {
    with_each(|choice| {
        for (low, high) in [(0, 1), (7, 8), (0, 31), (30, 31)] {
            let at = |group, level| Parameters { level, ..in_band(group, Band::Realtime) };
            let mut machine = busy(choice, [at(0, low), at(1, high)]);
            machine.run(ms(100));
            assert_eq!(machine.had(0, ms(0), ms(100)), Duration::ZERO, "{low} and {high}");
        }
    });
}

#[test]
fn pre_63_elsewhere_levels_are_ignored() {
    with_each(|choice| {
        for band in [Band::Idle, Band::Normal, Band::Focus] {
            let at = |group, level| Parameters { level, ..in_band(group, band) };
            let mut machine = busy(choice, [at(0, 0), at(1, 31)]);
            machine.run(ms(1000));
            assert!((machine.share(0, ms(0), ms(1000)) - 0.5).abs() < 0.01, "{band:?}");
        }
    });
}

#[test]
fn pre_05_mcdm_12_realtime_waits_for_no_more_than_what_cannot_be_stopped() {
    with_each(|choice| {
        for grain in [us(10), us(500), ms(2), ms(20)] {
            let mut machine = Machine::new(choice);
            for entity in 0..6 {
                let band = [Band::Idle, Band::Normal, Band::Focus][usize::from(entity % 3 == 1)];
                machine.add(entity, in_band(entity, band), Load::busy(grain));
            }
            machine.add(6, in_band(6, Band::Realtime), Load::bursts(us(300), us(7_700)));
            machine.run(ms(3000));
            let longest = machine.longest_wait(6);
            assert!(longest <= grain, "{longest:?} at {grain:?}");
            assert!(machine.waits.iter().filter(|(waiter, _)| *waiter == 6).count() > 100);
        }
    });
}

#[test]
fn mcdm_12_focus_waits_for_its_grace_and_what_cannot_be_stopped() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        let settings = Settings { normal_share: 0, ..Settings::default() };
        machine.policy.set_bands(&settings);
        for entity in 0..6 {
            machine.add(entity, in_band(entity, Band::Normal), Load::busy(us(50)));
        }
        machine.add(6, in_band(6, Band::Focus), Load::bursts(us(300), us(7_700)));
        machine.run(ms(3000));
        let most = settings.bands[Band::Focus as usize].grace + us(50);
        assert!(machine.longest_wait(6) <= most, "{:?}", machine.longest_wait(6));
    });
}

/// How long a busy entity of `low` goes on when one of `high` wakes, that stands in another group.
fn yields_after(choice: Choice, settings: &Settings, low: Parameters, high: Parameters) -> Duration {
    let mut machine = Machine::new(choice);
    machine.policy.set_bands(settings);
    machine.add(0, low, Load::busy(us(1)));
    machine.add(1, high, Load::bursts(us(100), ms(100)));
    machine.run(ms(101));
    machine.longest_wait(1)
}

#[test]
fn pre_67_a_band_that_wakes_leaves_its_grace_to_lower_ones() {
    with_each(|choice| {
        let graces = [ms(1), us(70), us(50), us(30)];
        let bands =
            graces.map(|grace| BandSettings { grace, process_quantum: ms(2), process_grace: us(500) });
        let settings = Settings { bands, normal_share: 0 };
        for high in [Band::Normal, Band::Focus, Band::Realtime] {
            for low in Band::ALL.into_iter().filter(|low| *low < high) {
                let waited = yields_after(choice, &settings, in_band(0, low), in_band(1, high));
                assert_eq!(waited, graces[high as usize], "{high:?} over {low:?}");
            }
        }
        let default = Settings::default();
        let waited = yields_after(choice, &default, in_band(0, Band::Focus), in_band(1, Band::Realtime));
        assert_eq!(waited, Duration::ZERO);
    });
}

#[test]
fn pre_67_idle_never_preempts() {
    with_each(|choice| {
        for band in [Band::Normal, Band::Focus, Band::Realtime] {
            let mut machine = busy(choice, [in_band(0, band), in_band(1, Band::Idle)]);
            machine.run(ms(500));
            assert_eq!(machine.runs.len(), 1, "{band:?}");
            let decision = machine.policy.decide(machine.current, machine.now);
            assert_eq!(decision.next, Some(EntityId(0)));
            // Only that no entity waits for ever is checked.
            assert!(decision.until.is_none_or(|until| until >= ms(1000)), "{decision:?}");
        }
    });
}

#[test]
fn pre_67_a_group_runs_for_its_process_quantum_through_all_its_members() {
    with_each(|choice| {
        if choice.name() != "fair" {
            return;
        }
        let mut settings = Settings::default();
        settings.bands[Band::Normal as usize].process_quantum = ms(12);
        let each = [0, 0, 1, 1].map(|group| Parameters { quantum: ms(3), ..in_band(group, Band::Normal) });
        let mut machine = busy(choice, each);
        machine.policy.set_bands(&settings);
        machine.run(ms(1200));
        let groups: Vec<u64> = machine.runs.iter().map(|run| run.entity / 2).collect();
        let changes = groups.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!((98..=102).contains(&changes), "{changes} of {}", groups.len());
        assert!((390..=410).contains(&machine.runs.len()), "{}", machine.runs.len());
    });
}

#[test]
fn pre_67_a_group_goes_on_with_another_entity_when_the_work_of_one_ends() {
    with_each(|choice| {
        let mut policy = choice.make();
        let (first, mate, other) = (EntityId(1), EntityId(2), EntityId(0));
        for (entity, group) in [(first, 1), (mate, 1), (other, 0)] {
            policy.add(entity, in_band(group, Band::Normal), ms(0));
        }
        policy.wake(first, ms(0));
        policy.wake(mate, ms(0));
        let current = Some(Current { entity: first, since: ms(0) });
        assert_eq!(policy.decide(current, ms(0)).next, Some(first));
        policy.charge(first, us(300), us(300));
        policy.wake(other, us(300));
        policy.sleep(first, us(300));
        assert_eq!(policy.decide(None, us(300)).next, Some(mate));
        let current = Some(Current { entity: mate, since: us(300) });
        policy.charge(mate, us(1700), ms(2));
        policy.sleep(mate, ms(2));
        policy.wake(first, ms(2));
        assert_eq!(policy.decide(current, ms(2)).next, Some(other));
    });
}

#[test]
fn pre_67_an_entity_that_wakes_behind_leaves_a_group_its_process_grace() {
    with_each(|choice| {
        if choice.name() != "fair" {
            return;
        }
        let mut settings = Settings::default();
        settings.bands[Band::Normal as usize].process_grace = us(300);
        settings.bands[Band::Normal as usize].process_quantum = ms(50);
        let mut machine = Machine::new(choice);
        machine.policy.set_bands(&settings);
        for entity in 0..2 {
            machine.add(entity, in_band(entity, Band::Normal), Load::busy(us(1)));
        }
        machine.add(2, in_band(2, Band::Normal), Load::bursts(us(100), us(20_300)));
        machine.run(ms(200));
        machine.waits.clear();
        machine.run(ms(1000));
        assert_eq!(machine.longest_wait(2), us(300));
    });
}

#[test]
fn pre_68_normal_has_its_share_while_focus_has_work() {
    with_each(|choice| {
        for percent in [0, 1, 10, 33, 50, 90] {
            let mut machine = busy(choice, [in_band(0, Band::Normal), in_band(1, Band::Focus)]);
            machine.policy.set_bands(&Settings { normal_share: percent, ..Settings::default() });
            machine.run(ms(5000));
            let share = machine.share(0, ms(0), ms(5000));
            let fair = if choice.name() == "fair" { f64::from(percent.min(50)) / 100.0 } else { 0.0 };
            assert!((share - fair).abs() <= 0.002 + fair * 0.02, "{share} instead of {fair}");
        }
        assert_eq!(Settings::default().normal_share, 10);
    });
}

#[test]
fn who_has_the_engine_for_urgent_work_does_not_keep_it_for_the_rest() {
    with_each(|choice| {
        let mut machine = busy(choice, (0..10).map(|group| in_band(group, Band::Normal)));
        machine.run(ms(10));
        let from = machine.now;
        let mut urgent = Duration::ZERO;
        for _ in 0..200 {
            machine.change(0, |parameters| parameters.band = Band::Realtime);
            let before = machine.had(0, from, machine.now);
            machine.run(us(500));
            urgent += machine.had(0, from, machine.now) - before;
            machine.change(0, |parameters| parameters.band = Band::Normal);
            machine.run(us(4_500));
        }
        let rest = machine.had(0, from, machine.now) - urgent;
        let left = machine.now - from - urgent;
        let share = rest.as_secs_f64() / left.as_secs_f64();
        // In rounds, an entity that is preempted loses its place in the round.
        let least = if choice.name() == "fair" { 0.09 } else { 0.05 };
        assert!((least..=0.11).contains(&share), "{share}");
    });
}

#[test]
fn a_fence_that_a_low_priority_queue_holds_is_signalled_within_bounds() {
    with_each(|choice| {
        for (low, high) in [
            (Band::Idle, Band::Normal),
            (Band::Idle, Band::Realtime),
            (Band::Normal, Band::Realtime),
            (Band::Idle, Band::Focus),
        ] {
            // The urgent entity would wait for what the low one does; others keep that from running.
            let mut machine = busy(choice, [in_band(0, low), in_band(1, high), in_band(2, high)]);
            machine.run(ms(10_000));
            for second in 0..8 {
                let from = ms(1_000 * second);
                assert!(
                    machine.had(0, from, from + ms(1_100)) > us(1_500),
                    "{low:?} below {high:?}, second {second}"
                );
            }
            let share = machine.share(0, ms(0), ms(10_000));
            assert!(share < 0.005 || low == Band::Normal, "{share}: no more than that");
        }
    });
}

#[test]
fn pre_68_the_share_of_normal_is_no_business_of_others() {
    with_each(|choice| {
        let each =
            [Band::Normal, Band::Focus, Band::Idle, Band::Realtime].map(|band| in_band(band as u64, band));
        let mut machine = busy(choice, each);
        machine.run(ms(400));
        assert!(machine.share(3, ms(0), ms(400)) > 0.999);
        machine.nap(3);
        machine.run(ms(400));
        assert_eq!(machine.had(2, ms(0), ms(800)), Duration::ZERO);
    });
}

#[test]
fn pre_68_what_normal_has_while_focus_sleeps_is_not_held_against_it() {
    with_each(|choice| {
        if choice.name() != "fair" {
            return;
        }
        let mut machine = busy(choice, [in_band(0, Band::Normal)]);
        machine.run(ms(1000));
        machine.add(1, in_band(1, Band::Focus), Load::busy(us(10)));
        machine.run(ms(400));
        let share = machine.share(0, ms(1000), ms(1400));
        assert!((0.09..=0.11).contains(&share), "{share}");
    });
}

#[test]
fn pre_68_normal_that_sleeps_saves_up_no_more_than_a_turn() {
    with_each(|choice| {
        for sleeps in [false, true] {
            let mut machine = Machine::new(choice);
            machine.add(1, in_band(1, Band::Focus), Load::busy(ms(400)));
            machine.run(ms(1));
            machine.add(0, in_band(0, Band::Normal), Load::busy(us(10)));
            machine.run(ms(399));
            machine.leave(1);
            machine.add(2, in_band(2, Band::Focus), Load::busy(us(10)));
            if sleeps {
                machine.nap(0);
                machine.wake(0);
            }
            machine.run(ms(36));
            let had = machine.had(0, ms(400), machine.now);
            match (choice.name(), sleeps) {
                ("fair", false) => assert!(had > ms(35), "{had:?}"),
                ("fair", true) => assert!(had > ms(3) && had < ms(8), "{had:?}"),
                _ => assert_eq!(had, ms(0)),
            }
        }
    });
}

#[test]
fn pre_69_settings_are_in_force_from_the_next_decision_on() {
    with_each(|choice| {
        let mut machine = busy(choice, [in_band(0, Band::Normal), in_band(1, Band::Normal)]);
        machine.run(ms(100));
        machine.change(0, |parameters| parameters.band = Band::Focus);
        machine.policy.set_bands(&Settings { normal_share: 0, ..Settings::default() });
        let from = machine.now;
        machine.run(ms(100));
        assert!(machine.had(1, from, machine.now) <= us(110));
        machine.change(1, |parameters| parameters.band = Band::Realtime);
        let from = machine.now;
        machine.run(ms(100));
        assert_eq!(machine.had(0, from, machine.now), us(0));
        machine.change(1, |parameters| parameters.band = Band::Idle);
        let decision = machine.policy.decide(None, machine.now);
        assert_eq!(decision.next, Some(EntityId(0)));
    });
}

#[test]
fn pre_70_parameters_hold_from_the_first_work_on() {
    with_each(|choice| {
        let mut machine = busy(choice, [in_band(0, Band::Normal)]);
        machine.run(ms(1));
        machine.add(1, in_band(1, Band::Realtime), Load::busy(us(10)));
        let decision = machine.policy.decide(machine.current, machine.now);
        assert_eq!(decision.next, Some(EntityId(1)));
    });
}

#[test]
fn pre_71_time_is_counted_by_group_and_band() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, in_band(7, Band::Normal), Load::busy(us(10)));
        machine.add(1, in_band(7, Band::Realtime), Load::bursts(ms(1), ms(3)));
        machine.add(2, in_band(8, Band::Focus), Load::bursts(ms(1), ms(3)));
        machine.add(3, in_band(8, Band::Idle), Load::busy(us(10)));
        machine.run(ms(1000));
        for (entity, group, band) in [(0, 7, Band::Normal), (1, 7, Band::Realtime), (2, 8, Band::Focus)] {
            assert_eq!(machine.policy.used(group, band), machine.had(entity, ms(0), ms(1000)), "{band:?}");
            assert!(machine.policy.used(group, band) > ms(100));
        }
        let others =
            [(7, Band::Idle), (7, Band::Focus), (8, Band::Idle), (8, Band::Realtime), (9, Band::Normal)];
        for (group, band) in others {
            assert_eq!(machine.policy.used(group, band), Duration::ZERO);
        }
    });
}

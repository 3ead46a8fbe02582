//! What holds after any sequence of reports, sensible or not.

use std::collections::BTreeMap;
use std::time::Duration;

use campanile_host_gpu::sched::choice::ALL;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::BandSettings;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_host_gpu::sched::policy::Current;
use campanile_host_gpu::sched::policy::EntityId;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prop_oneof;
use proptest::proptest;

use crate::machine::Load;
use crate::machine::Machine;
use crate::machine::in_band;
use crate::machine::ms;

#[derive(Debug, Clone, Copy)]
enum Report {
    Add(u64, Parameters),
    Change(u64, Parameters),
    Remove(u64),
    Wake(u64),
    Sleep(u64),
    Charge(u64, Duration),
    Bands(Settings),
    Time(Duration),
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        6 => (0..5_000u64).prop_map(Duration::from_micros),
        1 => (0..2_000u64).prop_map(Duration::from_millis),
        1 => any::<u64>().prop_map(Duration::from_nanos),
        1 => any::<Duration>(),
    ]
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let standing =
        (0..3u64, 0..4u32, any::<u8>(), any::<i8>(), any::<u32>(), prop_oneof![0..1200u32, 1000..1001u32]);
    (standing, duration(), duration(), duration()).prop_map(|(standing, quantum, grace_same, grace_lower)| {
        let (group, band, level, priority, weight, cap) = standing;
        let band = Band::from_number(band).unwrap_or(Band::Idle);
        Parameters { group, band, level: level % 40, priority, weight, cap, quantum, grace_same, grace_lower }
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    (duration(), duration(), duration(), 0..120u32).prop_map(
        |(grace, process_quantum, process_grace, normal_share)| Settings {
            bands: [BandSettings { grace, process_quantum, process_grace }; 4],
            normal_share,
        },
    )
}

fn report() -> impl Strategy<Value = Report> {
    let entity = || 0..8u64;
    prop_oneof![
        2 => (entity(), parameters()).prop_map(|(entity, parameters)| Report::Add(entity, parameters)),
        1 => (entity(), parameters()).prop_map(|(entity, parameters)| Report::Change(entity, parameters)),
        1 => entity().prop_map(Report::Remove),
        4 => entity().prop_map(Report::Wake),
        2 => entity().prop_map(Report::Sleep),
        4 => (entity(), duration()).prop_map(|(entity, time)| Report::Charge(entity, time)),
        1 => settings().prop_map(Report::Bands),
        4 => duration().prop_map(Report::Time),
    ]
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]
    #[test]
    fn mcdm_09_mcdm_10_equals_get_equal_time_over_any_second_whatever_comes_and_goes_beside(
        grains in proptest::collection::vec((0..4u64, 5..2_000u64), 2..6),
        others in proptest::collection::vec((0..6u64, 0..4u32, 20..5_000u64, 100..50_000u64), 0..6),
    ) {
        for &choice in ALL {
            let mut machine = Machine::new(choice);
            for (entity, &(group, grain)) in (0..).zip(&grains) {
                let load = Load::busy(Duration::from_micros(grain));
                machine.add(entity, in_band(group, Band::Normal), load);
            }
            for (entity, &(group, band, burst, pause)) in (100..).zip(&others) {
                let band = Band::from_number(band).unwrap_or(Band::Idle);
                let load = Load::bursts(Duration::from_micros(burst), Duration::from_micros(pause));
                machine.add(entity, in_band(group, band), load);
            }
            machine.run(ms(2500));
            for from in (0..=15).map(|step| ms(100) * step) {
                let shares = (0..).zip(&grains).map(|(entity, _)| machine.had(entity, from, from + ms(1000)));
                let (least, most) = shares.fold((Duration::MAX, ms(0)), |(least, most), had| (had.min(least), had.max(most)));
                // One turn more or less, of a quantum and what is not stopped then, is no unfairness.
                let allowed = most.mul_f64(0.05) + ms(2) + Duration::from_micros(2_000 + 2_000);
                assert!(most - least <= allowed, "{choice}: {least:?} and {most:?} from {from:?}");
            }
            assert!(machine.used(ms(0), ms(2500)) > 0.9999, "{choice}: the engine idles");
        }
    }
}

proptest! {
    #[test]
    fn any_reports_are_survived_and_only_entities_with_work_are_chosen(reports in proptest::collection::vec(report(), 0..120)) {
        for choice in ALL {
            let mut policy = choice.make();
            let mut awake: BTreeMap<u64, (bool, Parameters)> = BTreeMap::new();
            let mut now = Duration::ZERO;
            let mut current: Option<Current> = None;
            for &report in &reports {
                match report {
                    Report::Add(entity, parameters) => {
                        policy.add(EntityId(entity), parameters, now);
                        awake.entry(entity).or_insert((false, parameters)).1 = parameters;
                    }
                    Report::Change(entity, parameters) => {
                        policy.change(EntityId(entity), parameters, now);
                        if let Some(known) = awake.get_mut(&entity) {
                            known.1 = parameters;
                        }
                    }
                    Report::Remove(entity) => {
                        policy.remove(EntityId(entity));
                        awake.remove(&entity);
                    }
                    Report::Wake(entity) => {
                        policy.wake(EntityId(entity), now);
                        if let Some(known) = awake.get_mut(&entity) {
                            known.0 = true;
                        }
                    }
                    Report::Sleep(entity) => {
                        policy.sleep(EntityId(entity), now);
                        if let Some(known) = awake.get_mut(&entity) {
                            known.0 = false;
                        }
                    }
                    Report::Charge(entity, time) => policy.charge(EntityId(entity), time, now),
                    Report::Bands(settings) => policy.set_bands(&settings),
                    Report::Time(time) => now = now.saturating_add(time),
                }
                let decision = policy.decide(current, now);
                assert_eq!(decision, policy.decide(current, now), "{choice}: it changes its mind");
                assert!(decision.until.is_none_or(|until| until > now), "{choice}: {decision:?} at {now:?}");
                match decision.next {
                    Some(EntityId(entity)) => assert!(awake.get(&entity).is_some_and(|known| known.0), "{choice}"),
                    None => {
                        let idle = awake.values().all(|(work, parameters)| !work || parameters.cap < 1000);
                        assert!(idle, "{choice}: the engine idles though there is work");
                    }
                }
                let since = |entity| match current {
                    Some(current) if current.entity == entity => current.since,
                    _ => now,
                };
                current = decision.next.map(|entity| Current { entity, since: since(entity) });
            }
        }
    }

    #[test]
    fn only_the_highest_priority_of_a_group_is_chosen_afresh(
        each in proptest::collection::vec((0..3u64, -7..=7i8, 1..4u32, 0..4u8), 1..20),
    ) {
        for choice in ALL {
            let mut policy = choice.make();
            policy.set_bands(&Settings { normal_share: 0, ..Settings::default() });
            let mut left = Vec::new();
            for (entity, &(group, priority, band, level)) in (0..).zip(&each) {
                let band = Band::from_number(band).unwrap_or(Band::Idle);
                policy.add(EntityId(entity), Parameters { group, priority, band, level, ..Parameters::default() }, Duration::ZERO);
                policy.wake(EntityId(entity), Duration::ZERO);
                let level = if band == Band::Realtime { level } else { 0 };
                left.push((entity, group, (band, level), priority));
            }
            while let Some(EntityId(chosen)) = policy.decide(None, Duration::ZERO).next {
                let at = left.iter().position(|known| known.0 == chosen).unwrap_or_else(|| panic!("{chosen} sleeps"));
                let (_, group, tier, priority) = left.remove(at);
                assert!(left.iter().all(|other| other.2 <= tier));
                assert!(left.iter().all(|other| (other.1, other.2) != (group, tier) || other.3 <= priority));
                policy.sleep(EntityId(chosen), Duration::ZERO);
            }
            assert!(left.is_empty());
        }
    }
}

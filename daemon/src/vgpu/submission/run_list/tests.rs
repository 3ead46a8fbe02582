use crate::ids::GuestProcess;
use crate::vgpu::objects::ids::ContextHandle;
use campanile_host_gpu::ids::ContextIndex;
use std::time::Duration;

use campanile_host_gpu::sched::choice::ALL;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_protocol::handle::Handle;

use super::FIRST_GUESS;
use super::RunList;

fn at(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

fn with_two(bands: [Band; 2]) -> Vec<RunList> {
    let lists = ALL.iter().map(|choice| {
        let mut list = RunList::new(choice.make(), &Settings::default());
        for (entry, band) in (0..).zip(bands) {
            let parameters = Parameters { group: u64::from(entry), band, ..Parameters::default() };
            list.add(
                ContextIndex::new(entry),
                (GuestProcess::new(entry), ContextHandle::new(Handle(u64::from(entry) + 1))),
                parameters,
                at(0),
                at(0),
            );
        }
        list
    });
    lists.collect()
}

#[test]
fn mcdm_10_of_tiny_and_long_buffers_the_tiny_ones_come_more_often() {
    for mut list in with_two([Band::Normal; 2]) {
        let costs = [at(10), at(4_000)];
        let (mut used, mut count, mut now) = ([at(0); 2], [0_u32; 2], at(0));
        list.list(ContextIndex::new(0), true, now);
        list.list(ContextIndex::new(1), true, now);
        while now < Duration::from_secs(2) {
            let (_, _, entry) = list.next(now).unwrap();
            list.submitted(entry, Some(entry), now);
            let which = usize::try_from(entry.get()).unwrap();
            now += costs[which];
            used[which] += costs[which];
            count[which] += 1;
            list.returned(entry, used[which], None, now);
        }
        if list.policy.name() == "fair" {
            let share = used[0].as_secs_f64() / (used[0] + used[1]).as_secs_f64();
            assert!((share - 0.5).abs() < 0.025, "{share}");
        }
        assert!(count[0] > 0 && count[1] > 0);
    }
}

#[test]
fn mcdm_18_pre_57_who_waits_is_tried_again_and_keeps_nobody_from_running() {
    for mut list in with_two([Band::Realtime, Band::Idle]) {
        list.list(ContextIndex::new(0), true, at(0));
        list.list(ContextIndex::new(1), true, at(0));
        let mut tries = 0;
        let mut now = at(0);
        for _ in 0..100 {
            list.retry(now);
            let (_, _, entry) = list.next(now).unwrap();
            list.submitted(entry, Some(entry), now);
            now += at(if entry == ContextIndex::new(0) { 1 } else { 500 });
            list.returned(entry, at(0), None, now);
            if entry == ContextIndex::new(0) {
                tries += 1;
                list.block(ContextIndex::new(0), now);
            }
        }
        assert!((10..40).contains(&tries), "{tries} tries of the urgent one that waits");
        // Alone, at once.
        list.list(ContextIndex::new(1), false, now);
        list.retry(now);
        assert_eq!(list.next(now).unwrap().2, ContextIndex::new(0));
    }
}

#[test]
fn mcdm_11_a_long_buffer_makes_room_for_an_equal_after_its_quantum() {
    for mut list in with_two([Band::Normal; 2]) {
        list.list(ContextIndex::new(0), true, at(0));
        let (_, _, entry) = list.next(at(0)).unwrap();
        list.submitted(entry, Some(entry), at(0));
        list.list(ContextIndex::new(1), true, at(1));
        let Err(Some(until)) = list.must_yield(at(1)) else { panic!("at once") };
        assert!(until <= at(1) + Parameters::default().quantum);
        let mut now = until;
        while let Err(again) = list.must_yield(now) {
            now = again.expect("it is asked again");
        }
        assert!(now <= at(10_000), "{now:?}");
    }
}

#[test]
fn mcdm_24_who_has_nothing_to_give_is_passed_over_and_still_runs_on() {
    for mut list in with_two([Band::Normal; 2]) {
        list.list(ContextIndex::new(0), true, at(0));
        let (_, _, first) = list.next(at(0)).unwrap();
        list.submitted(first, Some(first), at(0));
        list.list(first, false, at(0));
        assert_eq!(list.next(at(1)), None);
        assert_eq!(list.must_yield(at(1)), Err(None), "alone");
        list.list(ContextIndex::new(1), true, at(2));
        assert_eq!(list.next(at(2)).unwrap().2, ContextIndex::new(1));
        list.remove(ContextIndex::new(0));
        list.remove(ContextIndex::new(1));
        assert_eq!(list.next(at(3)), None);
    }
}

#[test]
fn pre_05_more_urgent_work_has_the_running_buffer_make_room_and_less_urgent_has_not() {
    for mut list in with_two([Band::Normal, Band::Realtime]) {
        list.list(ContextIndex::new(0), true, at(0));
        let (_, _, entry) = list.next(at(0)).unwrap();
        list.submitted(entry, Some(entry), at(0));
        assert_eq!(list.must_yield(at(5)), Err(None));
        list.list(ContextIndex::new(1), true, at(10));
        assert_eq!(list.must_yield(at(10)), Ok(()), "realtime does not wait (PRE-67)");
        list.returned(ContextIndex::new(0), at(10), None, at(10));
        assert_eq!(list.next(at(10)).unwrap().2, ContextIndex::new(1));
        list.submitted(ContextIndex::new(1), Some(ContextIndex::new(1)), at(10));
        list.list(ContextIndex::new(0), true, at(20));
        assert!(list.must_yield(at(900_000)).is_err(), "the least urgent waits (PRE-05)");
    }
}

fn is_listed(list: &RunList, entry: u32) -> bool {
    list.members[&ContextIndex::new(entry)].is_listed
}

#[test]
fn pre_57_one_that_waits_is_listed_again_after_two_milliseconds_and_not_before() {
    for mut list in with_two([Band::Normal; 2]) {
        list.list(ContextIndex::new(0), true, at(0));
        list.list(ContextIndex::new(1), true, at(0));
        assert_eq!(list.retry_at(), None);
        list.block(ContextIndex::new(0), at(10));
        assert_eq!(list.retry_at(), Some(at(2_010)));
        // Blocked again, it waits from then on.
        list.block(ContextIndex::new(0), at(20));
        assert_eq!((list.retry_at(), list.blocked.len()), (Some(at(2_020)), 1));
        list.retry(at(2_019));
        assert!(!is_listed(&list, 0));
        list.retry(at(2_020));
        assert_eq!((is_listed(&list, 0), list.retry_at()), (true, None));
    }
}

#[test]
fn pre_57_of_several_that_wait_one_is_tried_at_a_time_the_longest_first() {
    for mut list in with_two([Band::Normal; 2]) {
        list.block(ContextIndex::new(1), at(0));
        list.block(ContextIndex::new(0), at(1));
        // Nothing else would run.
        list.retry(at(5));
        assert_eq!([0, 1].map(|entry| is_listed(&list, entry)), [false, true]);
        list.retry(at(2_000));
        assert!(!is_listed(&list, 0));
        list.retry(at(2_001));
        assert!(is_listed(&list, 0));
    }
}

#[test]
fn one_that_was_listed_since_it_waited_is_not_tried_again() {
    for mut list in with_two([Band::Normal; 2]) {
        list.list(ContextIndex::new(1), true, at(0));
        list.block(ContextIndex::new(0), at(0));
        list.list(ContextIndex::new(0), true, at(1));
        list.list(ContextIndex::new(0), false, at(2));
        list.retry(at(5_000));
        assert_eq!((is_listed(&list, 0), list.retry_at()), (false, None));
    }
}

#[test]
fn those_that_have_work_are_counted_once_each_and_no_more_when_they_are_gone() {
    for mut list in with_two([Band::Normal; 2]) {
        let counts = |list: &RunList| (list.listed, list.told);
        for _ in 0..2 {
            list.list(ContextIndex::new(0), true, at(0));
            list.list(ContextIndex::new(1), true, at(0));
        }
        assert_eq!(counts(&list), (2, 2));
        list.give(ContextIndex::new(0), false);
        list.submitted(ContextIndex::new(0), Some(ContextIndex::new(0)), at(0));
        assert_eq!(counts(&list), (1, 2), "the engine has one of it");
        list.submitted(ContextIndex::new(0), Some(ContextIndex::new(0)), at(0));
        list.returned(ContextIndex::new(0), at(10), Some(ContextIndex::new(0)), at(10));
        assert_eq!(counts(&list), (1, 2), "and another");
        list.returned(ContextIndex::new(0), at(20), None, at(20));
        assert_eq!(counts(&list), (1, 1));
        list.give(ContextIndex::new(1), true);
        list.list(ContextIndex::new(1), false, at(30));
        assert_eq!(counts(&list), (0, 0));
        // What is gone, or comes anew, has no work.
        for again in [false, true] {
            list.list(ContextIndex::new(0), true, at(40));
            if again {
                list.add(
                    ContextIndex::new(0),
                    (GuestProcess::new(7), ContextHandle::new(Handle(9))),
                    Parameters::default(),
                    at(0),
                    at(40),
                );
            } else {
                list.remove(ContextIndex::new(0));
            }
            assert_eq!(counts(&list), (0, 0), "{again}");
            list.add(
                ContextIndex::new(0),
                (GuestProcess::new(0), ContextHandle::new(Handle(1))),
                Parameters::default(),
                at(0),
                at(40),
            );
        }
        list.list(ContextIndex::new(0), true, at(50));
        list.submitted(ContextIndex::new(0), Some(ContextIndex::new(0)), at(50));
        list.block(ContextIndex::new(1), at(50));
        list.clear();
        assert_eq!((counts(&list), list.head, list.retry_at()), ((0, 0), None, None));
    }
}

#[test]
fn mcdm_24_one_that_was_passed_over_has_its_turn_when_it_has_something_again() {
    for mut list in with_two([Band::Realtime, Band::Normal]) {
        list.list(ContextIndex::new(0), true, at(0));
        list.submitted(ContextIndex::new(0), Some(ContextIndex::new(0)), at(0));
        list.give(ContextIndex::new(0), false);
        list.list(ContextIndex::new(1), true, at(0));
        assert_eq!(list.next(at(1)).map(|(_, _, entry)| entry), Some(ContextIndex::new(1)));
        list.list(ContextIndex::new(0), true, at(2));
        assert_eq!(
            list.next(at(2)),
            Some((GuestProcess::new(0), ContextHandle::new(Handle(1)), ContextIndex::new(0)))
        );
    }
}

#[test]
fn mcdm_10_a_buffer_is_paid_for_in_advance_and_what_it_took_is_settled_when_it_is_back() {
    for mut list in with_two([Band::Normal; 2]) {
        let of = |list: &RunList| {
            let member = &list.members[&ContextIndex::new(0)];
            [member.prepaid, member.expected, member.used, member.elapsed]
        };
        // What its entry has had before is not paid for.
        list.add(
            ContextIndex::new(0),
            (GuestProcess::new(0), ContextHandle::new(Handle(1))),
            Parameters::default(),
            at(1_000),
            at(0),
        );
        list.list(ContextIndex::new(0), true, at(0));
        list.submitted(ContextIndex::new(0), Some(ContextIndex::new(0)), at(0));
        assert_eq!(of(&list), [FIRST_GUESS, FIRST_GUESS, at(1_000), at(0)]);
        list.returned(ContextIndex::new(0), at(1_030), None, at(30));
        assert_eq!(of(&list), [at(20), at(30), at(1_030), at(0)]);
        list.submitted(ContextIndex::new(0), Some(ContextIndex::new(0)), at(30));
        assert_eq!(of(&list)[0], at(30), "less what was paid too much");
        // While another waits, it pays for what it has run.
        list.list(ContextIndex::new(1), true, at(30));
        for now in [40, 130] {
            let _asked = list.must_yield(at(now));
        }
        assert_eq!(of(&list), [at(100), at(30), at(1_030), at(100)]);
        assert_eq!(list.head, Some((ContextIndex::new(0), at(30), at(130))));
        list.returned(ContextIndex::new(0), at(1_110), Some(ContextIndex::new(1)), at(140));
        assert_eq!(of(&list), [at(20), at(80), at(1_110), at(0)]);
    }
}

#[test]
fn an_engine_has_its_oldest_context_since_it_came_to_it_without_a_break() {
    for mut list in with_two([Band::Normal; 2]) {
        list.list(ContextIndex::new(0), true, at(0));
        list.submitted(ContextIndex::new(0), Some(ContextIndex::new(0)), at(5));
        list.submitted(ContextIndex::new(0), Some(ContextIndex::new(0)), at(6));
        assert_eq!(list.head, Some((ContextIndex::new(0), at(5), at(6))));
        list.returned(ContextIndex::new(0), at(1), Some(ContextIndex::new(0)), at(7));
        assert_eq!(list.head, Some((ContextIndex::new(0), at(5), at(7))));
        list.returned(ContextIndex::new(0), at(2), Some(ContextIndex::new(1)), at(8));
        assert_eq!(list.head, Some((ContextIndex::new(1), at(8), at(8))));
        list.forgotten(Some(ContextIndex::new(0)), at(9));
        assert_eq!(list.head, Some((ContextIndex::new(0), at(9), at(9))));
        list.forgotten(None, at(10));
        assert_eq!((list.head, list.must_yield(at(11))), (None, Err(None)));
    }
}

#[test]
fn mcdm_09_one_that_used_much_waits_until_the_other_has_had_as_much() {
    for mut list in with_two([Band::Normal; 2]).into_iter().filter(|list| list.policy.name() == "fair") {
        list.list(ContextIndex::new(0), true, at(0));
        list.list(ContextIndex::new(1), true, at(0));
        let mut used = [at(0); 2];
        let mut turns = Vec::new();
        let mut now = at(0);
        for _ in 0..6 {
            let (_, _, entry) = list.next(now).unwrap();
            turns.push(entry);
            list.submitted(entry, Some(entry), now);
            let took = at(if entry == turns[0] { 4_000 } else { 1_000 });
            now += took;
            used[entry.get() as usize] += took;
            list.returned(entry, used[entry.get() as usize], None, now);
        }
        let of_first = turns.iter().filter(|entry| **entry == turns[0]).count();
        assert!(of_first <= 2, "{turns:?}");
    }
}

//! Reports out of order, and of entities that a policy does not know.

use campanile_host_gpu::sched::choice::ALL;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::policy::Current;
use campanile_host_gpu::sched::policy::EntityId;

use crate::machine::in_band;
use crate::machine::ms;
use crate::machine::with_each;

#[test]
fn each_policy_has_a_name_of_its_own() {
    for (place, choice) in ALL.iter().enumerate() {
        assert!(ALL[..place].iter().all(|other| other.name() != choice.name()));
        assert_eq!(choice.make().name(), choice.name());
    }
}

#[test]
fn without_work_no_entity_is_chosen_and_nothing_is_waited_for() {
    with_each(|choice| {
        let mut policy = choice.make();
        let nothing = policy.decide(None, ms(0));
        assert_eq!((nothing.next, nothing.until), (None, None));
        policy.add(EntityId(0), in_band(0, Band::Normal), ms(0));
        let current = Some(Current { entity: EntityId(0), since: ms(0) });
        assert_eq!(policy.decide(current, ms(0)), nothing);
    });
}

#[test]
fn an_unknown_entity_changes_nothing() {
    with_each(|choice| {
        let mut policy = choice.make();
        let stranger = EntityId(9);
        policy.wake(stranger, ms(0));
        policy.change(stranger, in_band(0, Band::Realtime), ms(0));
        policy.charge(stranger, ms(5), ms(5));
        policy.remove(stranger);
        policy.sleep(stranger, ms(5));
        let current = Some(Current { entity: stranger, since: ms(0) });
        let nothing = policy.decide(current, ms(5));
        assert_eq!((nothing.next, nothing.until), (None, None));
    });
}

#[test]
fn an_entity_that_runs_and_sleeps_or_is_removed_is_followed_by_another() {
    with_each(|choice| {
        for leaves in [false, true] {
            let mut policy = choice.make();
            for entity in 0..2 {
                policy.add(EntityId(entity), in_band(entity, Band::Normal), ms(0));
                policy.wake(EntityId(entity), ms(0));
            }
            let first = policy.decide(None, ms(0)).next.unwrap();
            if leaves {
                policy.remove(first);
            } else {
                policy.sleep(first, ms(0));
            }
            let current = Some(Current { entity: first, since: ms(0) });
            let other = policy.decide(current, ms(0));
            assert_eq!((other.next, other.until), (Some(EntityId(1 - first.0)), None));
        }
    });
}

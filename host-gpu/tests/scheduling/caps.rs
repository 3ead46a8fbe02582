//! Caps.

use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::policy::EntityId;

use crate::machine::Load;
use crate::machine::Machine;
use crate::machine::in_band;
use crate::machine::ms;
use crate::machine::us;
use crate::machine::with_each;

fn capped(cap: u32, band: Band) -> Parameters {
    Parameters { cap, ..in_band(0, band) }
}

#[test]
fn a_cap_holds_though_no_other_wants_the_engine() {
    with_each(|choice| {
        for cap in [1, 10, 250, 500, 999] {
            for band in [Band::Normal, Band::Realtime] {
                let mut machine = Machine::new(choice);
                machine.add(0, capped(cap, band), Load::busy(us(1)));
                machine.run(ms(10_000));
                let share = machine.share(0, ms(1000), ms(10_000));
                let fair = f64::from(cap) / 1000.0;
                assert!((share / fair - 1.0).abs() < 0.06, "{share} for {fair} in {band:?}");
            }
        }
    });
}

#[test]
fn what_a_cap_leaves_is_for_others_of_any_band() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, capped(300, Band::Realtime), Load::busy(us(10)));
        machine.add(1, in_band(1, Band::Idle), Load::busy(us(10)));
        machine.run(ms(5000));
        assert!((machine.share(1, ms(1000), ms(5000)) - 0.7).abs() < 0.02);
        assert!(machine.used(ms(0), ms(5000)) > 0.9999);
    });
}

#[test]
fn a_cap_holds_over_runs_that_cannot_be_stopped() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, capped(200, Band::Normal), Load::busy(ms(500)));
        machine.run(ms(30_000));
        let share = machine.share(0, ms(2500), ms(30_000));
        assert!((0.18..=0.22).contains(&share), "{share}");
    });
}

#[test]
fn who_is_capped_is_asked_for_again_when_it_may_run() {
    with_each(|choice| {
        let mut policy = choice.make();
        policy.add(EntityId(0), capped(500, Band::Normal), ms(0));
        policy.wake(EntityId(0), ms(0));
        policy.charge(EntityId(0), ms(60), ms(60));
        policy.charge(EntityId(0), ms(60), ms(120));
        let decision = policy.decide(None, ms(120));
        assert_eq!(decision.next, None);
        let until = decision.until.unwrap();
        // It owes 40 ms then, 80 ms of waiting, and begins again with a little in hand.
        assert!(until > ms(200) && until < ms(205), "{until:?}");
        assert_eq!(policy.decide(None, until - us(1)).next, None);
        assert_eq!(policy.decide(None, until).next, Some(EntityId(0)));
    });
}

#[test]
fn a_cap_can_be_lifted_and_set() {
    with_each(|choice| {
        let mut machine = Machine::new(choice);
        machine.add(0, capped(100, Band::Normal), Load::busy(us(10)));
        machine.run(ms(1000));
        machine.change(0, |parameters| parameters.cap = 1000);
        machine.run(ms(1000));
        assert_eq!(machine.had(0, ms(1000), ms(2000)), Duration::from_secs(1));
        machine.change(0, |parameters| parameters.cap = 100);
        machine.run(ms(2000));
        assert!((machine.share(0, ms(3000), ms(4000)) - 0.1).abs() < 0.01);
    });
}

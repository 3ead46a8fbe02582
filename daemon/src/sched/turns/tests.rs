use std::collections::BTreeMap;
use std::time::Duration;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::sched::choice::ALL;
use campanile_host_gpu::sched::choice::Choice;
use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Settings;
use campanile_protocol::engine::scheduling::Urgency;
use campanile_protocol::handshake::grant::Phase;

use super::EngineId;
use super::Operation;
use super::Share;
use super::Turns;

const TIMEOUT: Duration = Duration::from_secs(2);
const A: EngineId = EngineId(1);
const B: EngineId = EngineId(2);
const C: EngineId = EngineId(3);
const REALTIME: Urgency = Urgency { band: 3, level: 0 };

struct World {
    turns: Turns,
    phases: BTreeMap<EngineId, Phase>,
    urgencies: BTreeMap<EngineId, Urgency>,
}

impl World {
    fn new(engines: &[(EngineId, NodeKind)]) -> Self {
        let shared = |&(engine, node)| (engine, node, Share::default());
        Self::with_shares(&engines.iter().map(shared).collect::<Vec<_>>())
    }

    fn with_shares(engines: &[(EngineId, NodeKind, Share)]) -> Self {
        Self::with_normal_share(Settings::DEFAULT_NORMAL_SHARE, engines)
    }

    fn with_normal_share(normal_share: u32, engines: &[(EngineId, NodeKind, Share)]) -> Self {
        Self::over(Turns::new(Choice::default(), normal_share), engines)
    }

    fn over(mut turns: Turns, engines: &[(EngineId, NodeKind, Share)]) -> Self {
        for &(engine, node, share) in engines {
            turns.add(engine, EngineAddress::new(0, node), Some(TIMEOUT), share, Duration::ZERO);
        }
        Self {
            turns,
            phases: engines.iter().map(|&(engine, ..)| (engine, Phase::Idle)).collect(),
            urgencies: engines.iter().map(|&(engine, ..)| (engine, Urgency { band: 1, level: 0 })).collect(),
        }
    }

    fn set(&mut self, engine: EngineId, phase: Phase) {
        self.phases.insert(engine, phase);
    }

    /// Decides, and carries out; all but what is said of contention.
    fn decide_at(&mut self, now: Duration) -> (Vec<Operation>, Option<Duration>) {
        let (mut operations, until) = self.decide_all_at(now);
        operations.retain(|operation| !matches!(operation, Operation::Contend(..)));
        (operations, until)
    }

    /// What is said of contention.
    fn contends(&mut self, now: u64) -> Vec<(EngineId, bool)> {
        let said = |operation| match operation {
            Operation::Contend(engine, is_contended) => Some((engine, is_contended)),
            _ => None,
        };
        self.decide_all_at(Duration::from_millis(now)).0.into_iter().filter_map(said).collect()
    }

    fn decide_all_at(&mut self, now: Duration) -> (Vec<Operation>, Option<Duration>) {
        let (phases, urgencies) = (self.phases.clone(), self.urgencies.clone());
        let (operations, until) =
            self.turns.decide(|engine| phases[&engine], |engine| urgencies[&engine], now);
        for operation in &operations {
            match *operation {
                Operation::Give(engine) => self.set(engine, Phase::Granted),
                Operation::Revoke(engine) => self.set(engine, Phase::Revoking),
                Operation::Reclaim(engine) => self.set(engine, Phase::Idle),
                Operation::Boost(_) | Operation::Hung(_) | Operation::Contend(..) => {}
            }
        }
        (operations, until)
    }

    fn decide(&mut self, now: u64) -> Vec<Operation> {
        self.decide_at(Duration::from_millis(now)).0
    }

    /// Runs for `end`: an engine that is asked to yield does so `late` later, and has more work. Time that each had.
    fn run(&mut self, end: Duration, late: Duration) -> BTreeMap<EngineId, Duration> {
        let mut now = Duration::ZERO;
        let mut had: BTreeMap<EngineId, Duration> = BTreeMap::new();
        let mut yields: Option<(EngineId, Duration)> = None;
        while now < end {
            if let Some((engine, _)) = yields.take_if(|(_, at)| *at <= now) {
                self.set(engine, Phase::Yielded);
            }
            let (operations, until) = self.decide_at(now);
            for operation in operations {
                if let Operation::Revoke(engine) = operation {
                    yields = Some((engine, now + late));
                }
            }
            let next = until.into_iter().chain(yields.map(|(_, at)| at)).min().unwrap_or(end).min(end);
            assert!(next > now, "a decision that leads to nothing but another at once");
            let holds = |(_, phase): &(&EngineId, &Phase)| matches!(phase, Phase::Granted | Phase::Revoking);
            if let Some((&engine, _)) = self.phases.iter().find(holds) {
                *had.entry(engine).or_default() += next - now;
            }
            now = next;
        }
        had
    }
}

fn share(had: &BTreeMap<EngineId, Duration>, engine: EngineId) -> f64 {
    let all: Duration = had.values().sum();
    had[&engine].as_secs_f64() / all.as_secs_f64()
}

#[test]
fn a_sole_runner_keeps_the_grant() {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
    world.set(A, Phase::Want);
    assert_eq!(world.decide(0), [Operation::Give(A)]);
    assert_eq!(world.decide(10_000), []);
}

#[test]
fn the_next_is_granted_only_after_the_last_has_yielded() {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute), (C, NodeKind::Compute)]);
    for engine in [A, B, C] {
        world.set(engine, Phase::Want);
    }
    assert_eq!(world.decide(0), [Operation::Give(A)]);
    assert_eq!(world.decide(100), [Operation::Revoke(A)]);
    assert_eq!(world.decide(101), []);
    world.set(A, Phase::Want);
    assert_eq!(
        world.decide(102),
        [Operation::Give(B)],
        "the one that had nothing yet, although A wants again"
    );
    assert_eq!(world.decide(202), [Operation::Revoke(B)]);
    world.set(B, Phase::Yielded);
    assert_eq!(world.decide(203), [Operation::Give(C)]);
}

#[test]
fn an_engine_that_sleeps_keeps_its_node_until_another_wants_it() {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
    world.set(A, Phase::Want);
    assert_eq!(world.decide(0), [Operation::Give(A)]);
    world.set(A, Phase::Parked);
    assert_eq!(world.decide(10_000), []);
    world.set(A, Phase::Granted);
    assert_eq!(world.decide(10_001), [], "awake again");
    world.set(A, Phase::Parked);
    world.set(B, Phase::Want);
    assert_eq!(world.decide(10_002), [Operation::Reclaim(A)]);
    assert_eq!(world.decide(10_002), [Operation::Give(B)]);
    world.set(A, Phase::Want);
    assert_eq!(world.decide(10_003), [], "B has had nothing yet");
    assert_eq!(world.decide(10_103), [Operation::Revoke(B)]);
}

#[test]
fn mcdm_19_nodes_do_not_wait_for_each_other() {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Copy)]);
    world.set(A, Phase::Want);
    world.set(B, Phase::Want);
    assert_eq!(world.decide(0), [Operation::Give(A), Operation::Give(B)]);
    assert_eq!(world.decide(1), []);
}

#[test]
fn pre_02_an_engine_that_never_yields_was_asked_to_and_is_reported_once() {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
    world.set(A, Phase::Want);
    let _given = world.decide(0);
    world.set(B, Phase::Want);
    let _woken = world.decide(1);
    assert_eq!(world.decide(100), [Operation::Revoke(A)]);
    let limit = 100 + u64::try_from(TIMEOUT.as_millis()).unwrap();
    assert_eq!(world.decide(limit - 1), []);
    assert_eq!(world.decide(limit), [Operation::Hung(A)]);
    assert_eq!(world.decide(limit + 1), []);
    world.turns.remove(A);
    world.phases.remove(&A);
    assert_eq!(world.decide(limit + 2), [Operation::Give(B)]);
}

#[test]
fn mcdm_09_equal_vgpus_share_a_node_by_time_however_late_one_yields() {
    for late in [Duration::from_micros(1), Duration::from_micros(700), Duration::from_millis(4)] {
        let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
        world.set(A, Phase::Want);
        world.set(B, Phase::Want);
        let had = world.run(Duration::from_secs(1), late);
        assert!((share(&had, A) - 0.5).abs() < 0.025, "{had:?}");
    }
}

#[test]
fn mcdm_11_weights_are_kept_by_asking_for_the_node_back() {
    let heavy = Share { weight: 300, ..Share::default() };
    let mut world =
        World::with_shares(&[(A, NodeKind::Compute, heavy), (B, NodeKind::Compute, Share::default())]);
    world.set(A, Phase::Want);
    world.set(B, Phase::Want);
    let had = world.run(Duration::from_secs(1), Duration::from_micros(200));
    assert!((share(&had, A) - 0.75).abs() < 0.0375, "{had:?}");
}

#[test]
fn a_capped_vgpu_gets_no_more_than_its_cap_even_alone() {
    let capped = Share { cap: 250, ..Share::default() };
    let mut world = World::with_shares(&[(A, NodeKind::Compute, capped)]);
    world.set(A, Phase::Want);
    let had = world.run(Duration::from_secs(4), Duration::from_micros(200));
    let part = had[&A].as_secs_f64() / 4.0;
    assert!((part - 0.25).abs() < 0.0125 + 0.025 / 4.0, "{part}");
}

#[test]
fn mcdm_11_another_share_and_timeout_hold_from_the_next_decision_on() {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
    let change = |world: &mut World, engine, timeout, share| {
        world.turns.change(engine, timeout, share, Duration::ZERO);
    };
    // One that has gone is not there to be changed.
    change(&mut world, C, None, Share::default());
    change(&mut world, A, Some(TIMEOUT), Share { weight: 300, ..Share::default() });
    world.set(A, Phase::Want);
    world.set(B, Phase::Want);
    let had = world.run(Duration::from_secs(1), Duration::from_micros(200));
    assert!((share(&had, A) - 0.75).abs() < 0.0375, "{had:?}");
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
    change(&mut world, A, Some(TIMEOUT / 2), Share::default());
    world.set(A, Phase::Want);
    let _given = world.decide(0);
    world.set(B, Phase::Want);
    let _woken = world.decide(1);
    assert_eq!(world.decide(100), [Operation::Revoke(A)]);
    let limit = 100 + u64::try_from(TIMEOUT.as_millis()).unwrap() / 2;
    assert_eq!(world.decide(limit - 1), []);
    assert_eq!(world.decide(limit), [Operation::Hung(A)]);
}

#[test]
fn pre_65_mcdm_12_realtime_work_delays_no_other_vgpu_without_a_grant() {
    let granted = Share { highest_band: Band::Realtime, ..Share::default() };
    for (share, is_at_once) in [(granted, true), (Share::default(), false)] {
        let mut world =
            World::with_shares(&[(A, NodeKind::Compute, Share::default()), (B, NodeKind::Compute, share)]);
        world.set(A, Phase::Want);
        assert_eq!(world.decide(0), [Operation::Give(A)]);
        world.urgencies.insert(B, REALTIME);
        world.set(B, Phase::Want);
        let at_once = world.decide(1) == [Operation::Boost(A), Operation::Revoke(A)];
        assert_eq!(at_once, is_at_once);
    }
}

#[test]
fn pre_65_an_engine_that_got_urgent_work_while_it_stopped_has_the_node_back_at_once() {
    let granted = Share { highest_band: Band::Realtime, ..Share::default() };
    let mut world =
        World::with_shares(&[(A, NodeKind::Compute, Share::default()), (B, NodeKind::Compute, granted)]);
    world.set(A, Phase::Want);
    world.set(B, Phase::Want);
    world.urgencies.insert(B, Urgency { band: 1, level: 0 });
    assert_eq!(world.decide(0), [Operation::Give(A)]);
    assert_eq!(world.decide(100), [Operation::Revoke(A)]);
    world.set(A, Phase::Yielded);
    assert_eq!(world.decide(101), [Operation::Give(B)]);
    assert_eq!(world.decide(301), [Operation::Revoke(B)], "A's turn");
    world.urgencies.insert(B, REALTIME);
    world.set(B, Phase::Yielded);
    assert_eq!(world.decide(302), [Operation::Give(B)]);
}

#[test]
fn pre_69_an_urgency_that_is_over_gives_the_node_back_to_its_turn() {
    let granted = Share { highest_band: Band::Realtime, ..Share::default() };
    let mut world =
        World::with_shares(&[(A, NodeKind::Compute, Share::default()), (B, NodeKind::Compute, granted)]);
    world.set(A, Phase::Want);
    world.set(B, Phase::Want);
    world.urgencies.insert(B, REALTIME);
    assert_eq!(world.decide(0), [Operation::Give(B)]);
    assert_eq!(world.decide(900), [], "realtime goes on");
    world.urgencies.insert(B, Urgency { band: 1, level: 0 });
    assert_eq!(world.decide(901), [Operation::Revoke(B)], "it has had its turn long ago");
}

#[test]
fn pre_68_a_vgpu_of_normal_work_gets_what_the_operator_says_beside_one_of_focus_work() {
    let focus = Share { highest_band: Band::Focus, ..Share::default() };
    for percent in [10, 40] {
        let mut world = World::with_normal_share(
            percent,
            &[(A, NodeKind::Compute, focus), (B, NodeKind::Compute, Share::default())],
        );
        for engine in [A, B] {
            world.set(engine, Phase::Want);
            world.urgencies.insert(engine, Urgency { band: 2, level: 0 });
        }
        let had = world.run(Duration::from_secs(2), Duration::from_micros(100));
        let normal = share(&had, B) * 100.0;
        assert!((normal - f64::from(percent)).abs() < 2.0, "{normal} % of {percent}");
    }
}

#[test]
fn pre_63_of_two_vgpus_with_realtime_work_the_higher_level_goes_first_and_boosts_no_latency() {
    let granted = Share { highest_band: Band::Realtime, ..Share::default() };
    let mut world = World::with_shares(&[(A, NodeKind::Compute, granted), (B, NodeKind::Compute, granted)]);
    world.urgencies.insert(A, Urgency { band: 3, level: 2 });
    world.set(A, Phase::Want);
    assert_eq!(world.decide(0), [Operation::Give(A)]);
    world.urgencies.insert(B, Urgency { band: 3, level: 1 });
    world.set(B, Phase::Want);
    assert_eq!(world.decide(1), [], "its level is lower");
    world.urgencies.insert(B, Urgency { band: 3, level: 9 });
    assert_eq!(world.decide(2), [], "A may go on for a moment");
    assert_eq!(world.decide(3), [Operation::Revoke(A)], "A is as realtime as B");
}

#[test]
fn an_engine_is_told_once_whether_another_wants_its_node() {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute), (C, NodeKind::Copy)]);
    assert_eq!(world.contends(0), [], "no engine wants a node");
    world.set(A, Phase::Want);
    world.set(C, Phase::Want);
    assert_eq!(world.contends(1), [(B, true)], "another than itself, and of the same node");
    assert_eq!(world.contends(2), []);
    world.set(B, Phase::Want);
    assert_eq!(world.contends(3), [(A, true)]);
    world.set(B, Phase::Idle);
    assert_eq!(world.contends(4), [(A, false)]);
    world.set(B, Phase::Want);
    assert_eq!(world.contends(5), [(A, true)]);
    world.turns.remove(B);
    assert_eq!(world.contends(6), [(A, false)], "it is gone");
    world.turns.add(B, EngineAddress::new(0, NodeKind::Compute), None, Share::default(), Duration::ZERO);
    assert_eq!(world.contends(7), [(A, true), (B, true)]);
    world.set(A, Phase::Idle);
    world.set(B, Phase::Idle);
    assert_eq!(world.contends(8), [(A, false), (B, false)]);
}

#[test]
fn a_capped_vgpu_keeps_no_node_asleep_wanted_or_not() {
    let capped = Share { cap: 999, ..Share::default() };
    let mut world =
        World::with_shares(&[(A, NodeKind::Compute, capped), (B, NodeKind::Copy, Share::default())]);
    assert_eq!(world.contends(0), [(A, true)]);
    assert_eq!(world.contends(1), []);
}

#[test]
fn an_engine_is_charged_for_the_time_that_it_has_its_node_awake() {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
    let held =
        |world: &World| world.turns.held().map(|(of, time)| (of, time.as_millis())).collect::<Vec<_>>();
    world.set(A, Phase::Want);
    let _given = world.decide(5);
    assert_eq!(held(&world), []);
    let _goes_on = world.decide(15);
    assert_eq!(held(&world), [(A, 10)]);
    world.set(A, Phase::Parked);
    let _sleeps = world.decide(18);
    assert_eq!(held(&world), [(A, 13)]);
    world.set(A, Phase::Granted);
    let _awake = world.decide(118);
    assert_eq!(held(&world), [(A, 13)], "it slept, and no other wanted the node");
    world.set(A, Phase::Idle);
    let _done = world.decide(120);
    assert_eq!(held(&world), [(A, 15)]);
    world.set(B, Phase::Want);
    let _given = world.decide(200);
    let _goes_on = world.decide(201);
    assert_eq!(held(&world), [(A, 15), (B, 1)]);
    world.turns.remove(A);
    assert_eq!(held(&world), [(B, 1)]);
}

#[test]
fn tdr_12_a_holder_asked_while_no_other_waits_is_late_from_then_on_and_an_engine_without_its_node_is_not_asked()
 {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
    world.set(A, Phase::Want);
    let at = Duration::from_millis;
    assert!(!world.turns.ask(A, at(0)), "it has no node yet");
    let _given = world.decide(0);
    assert!(!world.turns.ask(B, at(10)), "another has the node");
    assert!(world.turns.ask(A, at(10)));
    assert!(!world.turns.ask(A, at(11)), "it was asked");
    world.set(A, Phase::Revoking);
    let due = at(10) + TIMEOUT;
    assert_eq!(world.decide_at(at(500)), (vec![], Some(due)));
    assert_eq!(world.decide_at(due), (vec![Operation::Hung(A)], None));
    // One that slept when it was asked was not.
    let mut world = World::new(&[(A, NodeKind::Compute)]);
    world.set(A, Phase::Want);
    let _given = world.decide(0);
    assert!(world.turns.ask(A, at(10)));
    let _goes_on = world.decide(20);
    assert!(world.turns.ask(A, at(30)), "it can be asked again");
}

#[test]
fn the_supervisor_decides_again_when_something_is_due_and_else_when_it_is_woken() {
    let mut world = World::new(&[(A, NodeKind::Compute), (B, NodeKind::Compute)]);
    let at = Duration::from_millis;
    assert_eq!(world.decide_at(at(0)), (vec![], None));
    world.set(A, Phase::Want);
    assert_eq!(world.decide_at(at(1)), (vec![Operation::Give(A)], None), "it may go on for ever");
    world.set(A, Phase::Parked);
    assert_eq!(world.decide_at(at(2)), (vec![], None));
    world.set(B, Phase::Want);
    assert_eq!(world.decide_at(at(3)), (vec![Operation::Reclaim(A)], Some(at(3))), "then it is free");
    assert_eq!(world.decide_at(at(3)), (vec![Operation::Give(B)], None));
    world.set(A, Phase::Want);
    let (operations, until) = world.decide_at(at(4));
    assert!(
        operations.is_empty() && until.is_some_and(|until| until > at(4)),
        "{operations:?} until {until:?}"
    );
    assert_eq!(world.decide_at(at(100)), (vec![Operation::Revoke(B)], Some(at(100) + TIMEOUT)));
    assert_eq!(world.decide_at(at(101)), (vec![], Some(at(100) + TIMEOUT)));
}

#[test]
fn a_vgpu_keeps_its_node_for_a_quantum_whatever_the_policy() {
    for policy in ALL {
        let engines = [A, B].map(|engine| (engine, NodeKind::Compute, Share::default()));
        let mut world = World::over(Turns::new(*policy, Settings::DEFAULT_NORMAL_SHARE), &engines);
        world.set(A, Phase::Want);
        world.set(B, Phase::Want);
        assert_eq!(world.decide(0), [Operation::Give(A)], "{policy:?}");
        assert_eq!(world.decide(3), [], "{policy:?}");
        assert_eq!(world.decide(4), [Operation::Revoke(A)], "{policy:?}");
    }
}

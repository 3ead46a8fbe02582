//! Turns between daemons.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::ids::ContextIndex;
use campanile_protocol::engine::block::GRANT;
use campanile_protocol::engine::block::PROGRESS;
use campanile_protocol::engine::block::context_report;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;
use campanile_protocol::handshake::grant;
use campanile_protocol::handshake::grant::Grant;
use campanile_protocol::handshake::grant::Phase;

use super::super::member::Member;
use super::world::COMPUTE;
use super::world::COPY;
use super::world::Engine;
use super::world::Host;
use super::world::Process;
use super::world::until;
use crate::listener::Listener;
use crate::listener::SocketError;
use crate::sched::alarm::Hang;
use crate::sched::meter::Preemption;
use crate::sched::schedule::Participant;
use crate::sched::schedule::Schedule;
use crate::sched::share::Share;
use crate::sched::testing::participant;

#[test]
fn cont_18_engines_of_several_daemons_take_turns_on_a_device_that_they_share_and_on_no_other() {
    let host = Host::new();
    let _broker = host.broker();
    let (a, b) = (host.member(&["gpu#0"]), host.member(&["other#0", "gpu#0"]));
    let first = Engine::at(&a, COMPUTE);
    first.gets_node();
    let second = Engine::at(&b, EngineAddress::new(1, NodeKind::Compute));
    second.ask();
    first.until(Phase::Revoking);
    assert_eq!(second.word().phase, Phase::Want, "the node is not free yet");
    assert!(grant::yield_turn(first.handle.shared.word(GRANT).unwrap()));
    first.handle.asks.signal();
    second.until(Phase::Granted);
    // A node of that device that no engine has, and one of another device.
    for engine in [Engine::at(&a, COPY), Engine::at(&b, COMPUTE)] {
        engine.gets_node();
    }
    second.gives_node_back();
    first.until(Phase::Granted);
    let yields = first.meters.preemptions(COMPUTE, Preemption::Yield);
    assert_eq!(yields.buckets.iter().sum::<u64>(), 1, "it was asked once");
    until(
        || {
            first.handle.asks.signal();
            !a.held(first.id).is_zero() && first.meters.times(COMPUTE).held >= a.held(first.id)
        },
        "it has had its node for no time",
    );
    a.remove(first.id);
    assert_eq!(a.held(first.id), Duration::ZERO);
    assert!(!first.meters.times(COMPUTE).held.is_zero(), "what it had is kept");
}

#[test]
fn cont_18_weights_hold_between_daemons() {
    let host = Host::new();
    let _broker = host.broker();
    let members = [(); 2].map(|()| host.member(&["gpu#0"]));
    let shares = [300, 100].map(|weight| Share { weight, ..Share::default() });
    let engines = [0, 1].map(|index: usize| {
        Engine::of(&members[index], Participant { share: shares[index], ..participant(COMPUTE) })
    });
    engines.iter().for_each(Engine::ask);
    // Each has its node whenever it gets it, until it is asked to yield.
    let held = || [0, 1].map(|index: usize| members[index].held(engines[index].id));
    until(
        || {
            for engine in &engines {
                if grant::yield_turn(engine.handle.shared.word(GRANT).unwrap()) {
                    engine.handle.asks.signal();
                }
            }
            held().iter().sum::<Duration>() > Duration::from_millis(400)
        },
        "no turns are given",
    );
    let [heavy, light] = held();
    assert!(heavy > light * 2 && heavy < light * 5, "{heavy:?} to {light:?}, and not 3 to 1");
    let due = [0, 1].map(|index: usize| engines[index].meters.times(COMPUTE).due);
    assert!(due[0] > due[1] * 2, "{due:?}");
}

#[test]
fn cont_19_a_daemon_that_ends_costs_others_nothing_and_its_node_is_theirs_when_its_engine_has_ended() {
    let host = Host::new();
    let _broker = host.broker();
    let (a, b) = (host.member(&["gpu#0"]), host.member(&["gpu#0"]));
    let process = Process::start();
    let lost = Engine::of(&a, process.participant(COMPUTE, None));
    lost.gets_node();
    let copies = Engine::at(&b, COPY);
    copies.gets_node();
    drop(a);
    let waits = Engine::at(&b, COMPUTE);
    waits.ask();
    lost.until(Phase::Revoking);
    copies.gives_node_back();
    copies.gets_node();
    assert_eq!(waits.word().phase, Phase::Want, "its process may run");
    drop(process);
    waits.until(Phase::Granted);
}

#[test]
fn cont_19_a_process_that_does_not_end_with_its_daemon_holds_up_others_for_its_timeout_at_the_most() {
    let host = Host::new();
    let _broker = host.broker();
    let (a, b) = (host.member(&["gpu#0"]), host.member(&["gpu#0"]));
    let process = Process::start();
    let lost = Engine::of(&a, process.participant(COMPUTE, Some(Duration::from_millis(100))));
    lost.gets_node();
    drop(a);
    let waits = Engine::at(&b, COMPUTE);
    waits.gets_node();
}

#[test]
fn cont_11_engines_keep_what_they_have_without_a_broker_and_the_next_one_goes_on_from_there() {
    let host = Host::new();
    let broker = host.broker();
    let (a, b) = (host.member(&["gpu#0"]), host.member(&["gpu#0"]));
    let (has, wants) = (Engine::at(&a, COMPUTE), Engine::at(&b, COMPUTE));
    let sleeps = Engine::at(&a, COPY);
    has.gets_node();
    sleeps.gets_node();
    assert!(grant::park(sleeps.handle.shared.word(GRANT).unwrap()));
    let before = has.word();
    drop(broker);
    wants.ask();
    // One that comes while there is none, one that goes, one whose share is changed.
    let late = Engine::at(&b, COPY);
    late.ask();
    let gone = Engine::at(&a, COMPUTE);
    a.remove(gone.id);
    b.retune(wants.id, None, Share { weight: 7, ..Share::default() });
    assert_eq!(has.word(), before, "it runs on");
    let _next = host.broker();
    // The first that is given says that the next broker has begun; one that sleeps gives way to that.
    late.until(Phase::Granted);
    assert_eq!(sleeps.word(), Grant { phase: Phase::Idle, generation: 1 });
    has.until(Phase::Revoking);
    assert_eq!(has.word().generation, before.generation, "it was not given twice");
    assert_eq!(wants.word().phase, Phase::Want, "another one has it");
    has.gives_node_back();
    wants.until(Phase::Granted);
    assert_eq!((has.alarm.take(), wants.alarm.take(), sleeps.alarm.take()), (None, None, None));
}

#[test]
fn cont_11_a_suspend_that_was_not_reported_before_is_waited_for_by_the_next_broker() {
    let host = Host::new();
    let broker = host.broker();
    let member = host.member(&["gpu#0"]);
    let timeout = Some(Duration::from_millis(100));
    let [silent, reports] =
        [(); 2].map(|()| Engine::of(&member, Participant { timeout, ..participant(COMPUTE) }));
    drop(broker);
    for engine in [&silent, &reports] {
        member.expect_suspend(engine.id, ContextIndex::new(5), 9);
    }
    reports.handle.shared.word(context_report(5)).unwrap().store(9, Ordering::Release);
    let _next = host.broker();
    assert_eq!(silent.alarmed().hang, Hang::NotSuspended);
    assert_eq!(reports.alarm.take(), None);
}

#[test]
fn cont_20_a_hang_is_told_to_its_daemon_and_the_node_is_free_when_that_has_ended_the_engine() {
    let host = Host::new();
    let _broker = host.broker();
    let (a, b) = (host.member(&["gpu#0"]), host.member(&["gpu#0"]));
    let timeout = Some(Duration::from_millis(100));
    let hangs = Engine::of(&a, Participant { timeout, ..participant(COMPUTE) });
    let stuck = Progress { steps: 7, is_exempt: false, work: Work::HwQueue };
    hangs.handle.shared.word(PROGRESS).unwrap().store(stuck.word(), Ordering::Release);
    hangs.gets_node();
    assert!(!a.keeps_node(hangs.id), "it may");
    let waits = Engine::at(&b, COMPUTE);
    waits.ask();
    let sighting = hangs.alarmed();
    assert!(matches!(sighting.hang, Hang::NotYielded | Hang::NoProgress), "{sighting:?}");
    assert_eq!(sighting.progress, stuck);
    assert!(a.keeps_node(hangs.id), "it was asked, and stands still");
    assert_eq!((waits.word().phase, waits.alarm.take()), (Phase::Want, None));
    a.remove(hangs.id);
    waits.until(Phase::Granted);
}

#[test]
fn a_daemon_without_a_broker_does_not_start_and_two_brokers_do_not_serve_one_socket() {
    let host = Host::new();
    let start = || Member::start(&host.path, vec!["gpu#0".to_owned()]).map(drop).unwrap_err();
    assert_eq!(start().kind(), std::io::ErrorKind::NotFound);
    let broker = host.broker();
    let second = Listener::bind_packets_for_group(&host.path).map(drop).unwrap_err();
    assert!(matches!(second, SocketError::InUse { .. }), "{second}");
    let five = vec!["gpu#0".to_owned(); 5];
    let why = Member::start(&host.path, five).map(drop).unwrap_err().to_string();
    assert!(why.contains("5 devices"), "{why}");
    drop(broker);
    assert_eq!(start().kind(), std::io::ErrorKind::NotFound, "it has removed its file");
    let _mute = Listener::bind_packets_for_group(&host.path).unwrap();
    assert_eq!(start().kind(), std::io::ErrorKind::TimedOut, "it says nothing");
}

#[test]
fn cont_11_a_daemon_that_follows_one_with_vms_waits_for_no_broker_and_has_its_turns_when_there_is_one() {
    let host = Host::new();
    let follow = |devices: usize| Member::follow(&host.path, vec!["gpu#0".to_owned(); devices]);
    let member = follow(1).unwrap();
    let engine = Engine::at(&member, COPY);
    engine.ask();
    let broker = host.broker();
    engine.until(Phase::Granted);
    drop(follow(5).unwrap());
    drop(member);
    drop(broker);
}

#[test]
fn a_daemon_waits_for_no_broker_that_does_not_read() {
    let host = Host::new();
    let broker = host.broker();
    let member = host.member(&["gpu#0"]);
    let engine = Engine::at(&member, COMPUTE);
    engine.gets_node();
    drop(broker);
    // It reads nothing. The member gives that line up, and comes again.
    let still = Listener::bind_packets_for_group(&host.path).unwrap();
    let mut lines = Vec::new();
    for weight in (1..=10_000).cycle() {
        if lines.len() == 2 {
            break;
        }
        member.retune(engine.id, None, Share { weight, ..Share::default() });
        lines.extend(still.socket.accept().ok());
    }
    drop((still, lines));
    let _next = host.broker();
    let other = host.member(&["gpu#0"]);
    let wants = Engine::at(&other, COMPUTE);
    wants.ask();
    engine.until(Phase::Revoking);
    engine.gives_node_back();
    wants.until(Phase::Granted);
}

//! Claims about stopping, resuming and resetting.

use campanile_daemon::frontend::vhost::counters::Count;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::bench::eventually;
use crate::device::ECHO;
use crate::device::PARK;
use crate::device::SLOW;
use crate::device::Seen;

const PARKED: [u8; 32] = [PARK; 32];

/// One command parked, one answered.
fn with_parked(bench: &Bench) -> Vm {
    let mut vm = Vm::started(bench);
    vm.control.request(0, &PARKED);
    vm.control.offer(0);
    vm.control.round(2, &[ECHO; 32]);
    vm
}

#[test]
fn get_vring_base_is_a_barrier_and_parked_answers_follow_the_restart() {
    let bench = Bench::new();
    let mut vm = with_parked(&bench);
    assert_eq!(vm.stop(), [2, 0]);
    bench.script.release();
    bench.script.await_seen(&Seen::Event);
    vm.control.assert_silent();
    assert_eq!(bench.count(Count::Answers), 2, "held is accepted");
    // As after a pause with a snapshot: everything again on the same connection.
    vm.front.set_features(vm.front.get_features().unwrap()).unwrap();
    vm.start([2, 0]);
    assert_eq!(vm.control.wait(), (0, 32));
    assert_eq!(vm.control.response(0, 32), PARKED);
    assert_eq!(bench.count(Count::Resets), 0);
    assert_eq!(vm.control.round(4, &[ECHO; 32]), [ECHO; 32]);
}

#[test]
fn command_that_runs_at_the_stop_is_answered_after_the_restart() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.request(0, &[SLOW; 32]);
    vm.control.offer(0);
    vm.control.kick();
    eventually("taken", || bench.count(Count::Commands) == 1);
    assert_eq!(vm.stop(), [1, 0]);
    vm.control.assert_silent();
    vm.start([1, 0]);
    assert_eq!(vm.control.wait(), (0, 32));
}

#[test]
fn parked_answer_waits_while_the_ring_is_disabled() {
    let bench = Bench::new();
    let mut vm = with_parked(&bench);
    vm.enable(false);
    bench.script.release();
    bench.script.await_seen(&Seen::Event);
    vm.control.assert_silent();
    vm.enable(true);
    assert_eq!(vm.control.wait(), (0, 32));
}

#[test]
fn reset_device_resets_and_voids_what_is_parked() {
    let bench = Bench::new();
    let mut vm = Vm::with(bench.front_end(VhostUserProtocolFeatures::SHMEM, 0), 256, true);
    vm.start([0, 0]);
    vm.control.request(0, &PARKED);
    vm.control.offer(0);
    vm.control.round(2, &[ECHO; 32]);
    vm.stop();
    vm.front.reset_device().unwrap();
    bench.script.await_seen(&Seen::Reset);
    vm.control.clear();
    vm.start([0, 0]);
    bench.script.release();
    bench.script.await_seen(&Seen::Event);
    eventually("void", || bench.count(Count::Void) == 1);
    vm.control.assert_silent();
    // The head is free again, and the position starts at zero.
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    assert_eq!(bench.count(Count::Resets), 1);
}

#[test]
fn reset_device_on_running_rings_stops_them() {
    let bench = Bench::new();
    let mut vm = Vm::with(bench.front_end(VhostUserProtocolFeatures::SHMEM, 0), 256, true);
    vm.start([0, 0]);
    vm.control.round(2, &[ECHO; 32]);
    vm.front.reset_device().unwrap();
    vm.control.request(0, &[ECHO; 32]);
    vm.control.offer(0);
    vm.control.kick.write(1).unwrap();
    vm.control.assert_silent();
}

#[test]
fn stop_of_all_rings_then_base_zero_is_a_reset() {
    let bench = Bench::new();
    let mut vm = with_parked(&bench);
    vm.stop();
    vm.front.set_features(vm.front.get_features().unwrap()).unwrap();
    vm.control.clear();
    // There before the rings start: must come after the reset.
    vm.control.request(6, &[ECHO; 32]);
    vm.control.offer(6);
    vm.start([0, 0]);
    assert_eq!(vm.control.wait(), (6, 32));
    let seen = bench.script.seen();
    let reset = seen.iter().position(|seen| *seen == Seen::Reset).unwrap();
    let first = seen.iter().rposition(|seen| matches!(seen, Seen::Command(..))).unwrap();
    assert!(reset < first);
    bench.script.release();
    eventually("void", || bench.count(Count::Void) == 1);
    assert_eq!(bench.count(Count::Resets), 1);
}

/// The worker is in the middle of a batch of the ring that the guest resets and starts again.
#[test]
fn no_command_of_the_new_guest_comes_before_the_reset() {
    let bench = Bench::new();
    let mut vm = Vm::with(bench.front_end(VhostUserProtocolFeatures::SHMEM, 0), 256, true);
    vm.start([0, 0]);
    for _ in 0..10 {
        let before = bench.count(Count::Commands);
        vm.control.request(0, &[SLOW; 32]);
        vm.control.offer(0);
        vm.control.kick.write(1).unwrap();
        eventually("taken", || bench.count(Count::Commands) == before + 1);
        vm.stop();
        vm.front.reset_device().unwrap();
        vm.control.clear();
        vm.control.request(2, &[ECHO; 32]);
        vm.control.offer(2);
        vm.start([0, 0]);
        assert_eq!(vm.control.wait(), (2, 32));
        vm.stop();
        vm.front.reset_device().unwrap();
        vm.control.clear();
        vm.start([0, 0]);
    }
    let order: Vec<Seen> = bench
        .script
        .seen()
        .into_iter()
        .filter(|seen| matches!(seen, Seen::Command(..) | Seen::Reset))
        .collect();
    for pair in order.windows(2) {
        assert!(pair.contains(&Seen::Reset), "two commands without a reset between them");
    }
}

#[test]
fn several_resets_in_a_row_each_count() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    for turn in 1..=5 {
        vm.control.round(0, &[ECHO; 32]);
        vm.stop();
        vm.front.set_features(vm.front.get_features().unwrap()).unwrap();
        vm.control.clear();
        vm.start([0, 0]);
        assert_eq!(bench.count(Count::Resets), turn);
    }
}

#[test]
fn unused_rings_that_start_again_are_no_reset() {
    let bench = Bench::new();
    let vm = Vm::started(&bench);
    vm.stop();
    vm.front.set_features(vm.front.get_features().unwrap()).unwrap();
    vm.start([0, 0]);
    assert_eq!(bench.count(Count::Resets), 0);
}

#[test]
fn pause_and_resume_lose_nothing() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    for turn in 0..20u16 {
        vm.control.request(turn * 2, &[SLOW; 32]);
        vm.control.offer(turn * 2);
        vm.control.kick();
        let bases = vm.stop();
        vm.start(bases);
    }
    for turn in 0..20 {
        assert_eq!(vm.control.wait().0, turn * 2);
    }
    assert_eq!(bench.count(Count::Commands), 20);
}

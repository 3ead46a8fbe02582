//! Claims about rings that run.

use std::time::Duration;

use campanile_daemon::frontend::vhost::counters::Count;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use crate::bench::Bench;
use crate::bench::EVENT_IDX;
use crate::bench::Vm;
use crate::bench::eventually;
use crate::device::ECHO;
use crate::device::PARK;
use crate::device::POKE;
use crate::device::Script;
use crate::device::Seen;

pub(crate) fn request(kind: u8) -> Vec<u8> {
    let mut request = vec![0; 32];
    request[0] = kind;
    request
}

#[test]
fn command_is_echoed() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    assert_eq!(vm.control.round(0, &request(ECHO)), request(ECHO));
    assert_eq!(vm.cursor.round(4, &request(ECHO)), request(ECHO));
    assert_eq!(bench.count(Count::Commands), 2);
    assert_eq!(bench.count(Count::Answers), 2);
    assert!(bench.script.seen().contains(&Seen::Command(1, request(ECHO))));
}

#[test]
fn answer_is_cut_to_the_room_there_is() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    let mut long = request(ECHO);
    long.resize(100, 7);
    assert_eq!(vm.control.round(0, &long), long[..64]);
}

/// A guest that kicks only when asked, and sleeps only after asking: every lost notification is a hang.
#[test]
fn guest_that_trusts_event_idx_never_hangs() {
    let bench = Bench::with(Script::new(false, true));
    let mut vm = Vm::started(&bench);
    let (mut sent, mut done, mut kicks) = (0u32, 0u32, 0u32);
    let mut free: Vec<u16> = (0..128).map(|head| head * 2).collect();
    while done < 100_000 {
        let burst = 1 + usize::try_from(sent % 7).unwrap();
        for _ in 0..burst {
            let Some(head) = free.pop() else { break };
            vm.control.request(head, &request(ECHO));
            vm.control.offer(head);
            sent += 1;
        }
        kicks += u32::from(vm.control.kick());
        if free.len() < 64 || sent % 3 == 0 {
            let (head, _) = vm.control.wait();
            free.push(head);
            done += 1;
            while let Some((head, _)) = vm.control.used() {
                free.push(head);
                done += 1;
            }
        }
    }
    assert!(kicks < sent, "kicks were suppressed");
    assert!(bench.count(Count::Interrupts) < u64::from(sent), "interrupts were suppressed");
}

#[test]
fn interrupt_comes_when_used_event_is_crossed_and_not_before() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.want_interrupt(3);
    for head in [0, 2, 4] {
        vm.control.request(head, &request(ECHO));
        vm.control.offer(head);
        vm.control.kick();
        let wanted = head / 2 + 1;
        eventually("answer", || vm.control.used_index() == wanted);
        let is_wanted = head == 4;
        let timeout = if is_wanted { Duration::from_secs(10) } else { Duration::from_millis(50) };
        assert_eq!(vm.control.interrupted(timeout), is_wanted);
    }
    eventually("its count", || bench.count(Count::Interrupts) == 1);
}

#[test]
fn interrupt_flag_is_honoured_without_event_idx() {
    let bench = Bench::new();
    let mut vm = Vm::with(bench.front_end(VhostUserProtocolFeatures::SHMEM, EVENT_IDX), 256, false);
    vm.start([0, 0]);
    assert_eq!(vm.control.round(0, &request(ECHO)), request(ECHO));
    // The answer is there before its interrupt, and that before its count.
    eventually("its count", || bench.count(Count::Interrupts) == 1);
    while vm.control.interrupted(Duration::ZERO) {}
    vm.control.refuse_interrupts();
    vm.control.request(2, &request(ECHO));
    vm.control.offer(2);
    vm.control.kick();
    eventually("answer", || vm.control.used_index() == 2);
    assert!(!vm.control.interrupted(Duration::from_millis(50)));
    assert_eq!(bench.count(Count::Interrupts), 1);
}

#[test]
fn enable_serves_what_is_there_without_a_kick() {
    let bench = Bench::new();
    let mut vm = Vm::plain(&bench);
    vm.control.request(0, &request(ECHO));
    vm.control.offer(0);
    vm.prepare([0, 0]);
    vm.control.assert_silent();
    vm.enable(true);
    assert_eq!(vm.control.wait().0, 0);
    assert_eq!(bench.count(Count::Kicks), 0);
}

#[test]
fn disabled_ring_is_left_alone_and_catches_up() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.round(0, &request(ECHO));
    vm.enable(false);
    vm.control.request(2, &request(ECHO));
    vm.control.offer(2);
    vm.control.kick();
    vm.control.assert_silent();
    vm.enable(true);
    assert_eq!(vm.control.wait().0, 2);
}

#[test]
fn ring_without_a_call_descriptor_is_served_and_the_interrupt_comes_later() {
    let bench = Bench::new();
    let mut vm = Vm::plain(&bench);
    vm.set_memory();
    vm.front.set_vring_num(0, 256).unwrap();
    vm.set_addresses(&vm.control);
    vm.front.set_vring_base(0, 0).unwrap();
    vm.front.set_vring_kick(0, &vm.control.kick).unwrap();
    vm.front.set_vring_enable(0, true).unwrap();
    vm.control.want_interrupt(1);
    vm.control.request(0, &request(ECHO));
    vm.control.offer(0);
    vm.control.kick();
    eventually("answer", || vm.control.used_index() == 1);
    eventually("interrupt considered", || bench.count(Count::Answers) == 1);
    std::thread::sleep(Duration::from_millis(5));
    vm.front.set_vring_call(0, &vm.control.call).unwrap();
    assert!(vm.control.interrupted(Duration::from_secs(10)));
}

/// The device's own event is seen within one batch, whatever the guest sends.
#[test]
fn flood_does_not_starve_the_device() {
    let bench = Bench::new();
    let absent = VhostUserProtocolFeatures::SHMEM;
    let mut vm = Vm::with(bench.front_end(absent, 0), 1024, true);
    vm.control.request(0, &request(POKE));
    vm.control.offer(0);
    for head in 1..500 {
        vm.control.request(head * 2, &request(ECHO));
        vm.control.offer(head * 2);
    }
    vm.start([0, 0]);
    eventually("all answers", || vm.control.used_index() == 500);
    let seen: Vec<Seen> = bench
        .script
        .seen()
        .into_iter()
        .filter(|seen| matches!(seen, Seen::Command(..) | Seen::Event))
        .collect();
    let event = seen.iter().position(|seen| *seen == Seen::Event).unwrap();
    assert!(event <= 64, "the event came after {event} commands");
}

#[test]
fn head_in_flight_is_not_taken_twice() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.request(0, &request(PARK));
    for _ in 0..10 {
        vm.control.offer(0);
    }
    vm.control.kick();
    eventually("refused", || bench.count(Count::Malformed) == 9);
    assert_eq!(bench.count(Count::Commands), 1);
    bench.script.release();
    assert_eq!(vm.control.wait().0, 0);
    vm.control.assert_silent();
    assert_eq!(vm.control.round(0, &request(ECHO)), request(ECHO));
}

#[test]
fn index_that_jumps_stops_the_ring_until_it_is_started_again() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.round(0, &request(ECHO));
    vm.control.store(vm.control.avail_ring() + 2, 1000);
    vm.control.kick.write(1).unwrap();
    vm.control.assert_silent();
    vm.cursor.round(0, &request(ECHO));
    vm.stop();
    vm.control.clear();
    vm.cursor.clear();
    vm.start([0, 0]);
    assert_eq!(vm.control.round(0, &request(ECHO)), request(ECHO));
}

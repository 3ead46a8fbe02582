//! A move that ends before the guest runs at the target, and power states that do not move.

use std::cell::RefCell;

use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::PowerName;
use campanile_daemon::operator::verb::Verb;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_protocol::handshake::power;
use campanile_test_vmm::migration::error::Step;
use campanile_test_vmm::migration::error::Whereabouts;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::vm::LoopbackVm;

use crate::migration::Guest;
use crate::migration::Hosts;
use crate::processes::EngineView;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RETRY;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::support::until;

const V0: &str = "v0";

/// As a VMM that has everything stopped for a move, looks around and thinks better of it.
fn abort(hosts: &Hosts, vm: &LoopbackVm, while_paused: impl FnMut()) {
    let options = MigrateOptions {
        while_paused: Box::new(while_paused),
        give_up_at: Some(Step::Save),
        ..MigrateOptions::default()
    };
    let error = vm.migrate(hosts.daemons[1].socket(0), options).unwrap_err();
    assert_eq!((error.step, error.guest), (Step::Save, Whereabouts::Source), "{error}");
}

/// The power state of the vGPU of a host, as the operator is told.
fn told_power(hosts: &Hosts, index: usize) -> String {
    hosts.ask(index, &Verb::Status)["vgpus"][0]["session"]["power"].as_str().unwrap().to_owned()
}

#[test]
fn lm_27_nothing_that_an_operator_asks_for_is_done_to_a_vgpu_that_stands_still() {
    let hosts = Hosts::new(&["--spin", "600000000"]);
    let mut guest = Guest::new(&hosts.daemons[0]);
    let vgpu = || V0.to_owned();
    let verbs = [
        Verb::Reset { vgpu: vgpu(), node: None },
        Verb::ResetAdapter { vgpu: Some(vgpu()) },
        Verb::Power { vgpu: vgpu(), state: PowerName::D3 },
        Verb::Power { vgpu: vgpu(), state: PowerName::D0 },
    ];
    let answers = RefCell::new(Vec::new());
    for round in 2..4 {
        abort(&hosts, &guest.vm, || {
            let ask = |verb| client::ask(&hosts.control(0), verb).map_err(|error| error.to_string());
            answers.borrow_mut().extend(verbs.iter().map(ask));
        });
        let answers = std::mem::take(&mut *answers.borrow_mut());
        assert_eq!(answers.len(), verbs.len());
        for (answer, verb) in answers.into_iter().zip(&verbs) {
            let refused = answer.expect_err(&format!("{verb:?} was done"));
            assert!(refused.contains("the vGPU stands still for a migration"), "{verb:?}: {refused}");
        }
        guest.work(round);
        guest.check();
    }
    let counters = hosts.ask(0, &Verb::Metrics)["vgpus"][0]["counters"].clone();
    assert_eq!(
        (&counters["devices_lost"], &counters["d3_transitions"]),
        (&0.into(), &0.into()),
        "{counters}"
    );
    assert_eq!(told_power(&hosts, 0), "D0");
}

#[test]
fn lm_27_lm_56_an_engine_that_slept_when_a_move_was_aborted_is_awake_after_it_and_sleeps_again() {
    let hosts = Hosts::new(&["--spin", "100"]);
    let vm = hosts.daemons[0].vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    for round in 0..3 {
        while queue.submit(&CommandBuffer::new()) != CONNECTED {
            queue.connect().unwrap();
        }
        queue.wait(queue.value);
        until(&format!("sleep in round {round}"), || {
            queue.status() == RETRY && EngineView::of(&hosts.daemons[0]).power() == power::ASLEEP
        });
        abort(&hosts, &vm, || ());
    }
}

#[test]
fn lm_56_a_vgpu_comes_again_in_d0_where_the_operator_had_sent_the_target_to_d3_before() {
    let hosts = Hosts::new(&["--spin", "600000000"]);
    let mut guest = Guest::new(&hosts.daemons[0]);
    let options = MigrateOptions {
        after_pass: Box::new(|_| {
            // The VMM has connected to the target, which is empty.
            hosts.ask(1, &Verb::Power { vgpu: V0.to_owned(), state: PowerName::D3 });
            assert_eq!(told_power(&hosts, 1), "D3");
            Next::Stop
        }),
        ..MigrateOptions::default()
    };
    guest.vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
    assert_eq!(told_power(&hosts, 1), "D0");
    guest.work(2);
    guest.check();
    // It goes there when it is told to now, and not before.
    let asleep = hosts.ask(1, &Verb::Power { vgpu: V0.to_owned(), state: PowerName::D3 });
    assert_eq!(asleep["power"], "D3");
    assert!(crate::processes::engines(&hosts.daemons[1]).is_empty());
}

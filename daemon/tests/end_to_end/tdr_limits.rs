//! Limits, levels and debug modes, and what follows: blocked processes, adapter resets, quarantine.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_HUNG;
use campanile_protocol::device_page::DEVICE_RESET;
use campanile_test_vmm::vm::LoopbackVm;
use serde_json::Value;

use crate::operator::Operated;
use crate::processes::engines;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::signals::kill_at_rest;
use crate::support::Ends;
use crate::support::until;
use crate::tdr_resilience::Load;
use crate::tdr_support::hang;
use crate::tdr_support::hang_and;

fn open(vm: &Arc<LoopbackVm>) -> Result<Device, DriverError> {
    Device::open(vm.open("test").unwrap())
}

fn why_blocked<T: std::fmt::Debug>(outcome: Result<T, DriverError>) -> String {
    match outcome {
        Err(DriverError::Refused { status: Status::Blocked, text, .. }) => text,
        other => panic!("not blocked: {other:?}"),
    }
}

fn quarantine(operated: &Operated) -> Value {
    operated.ask(&["status"])["vgpus"][0]["quarantined"].clone()
}

/// Ends an engine of the first vGPU, not one of `spared`, as often as it takes until its devices are lost.
fn kill_once(operated: &Operated, vm: &Arc<LoopbackVm>, spared: &[u32]) {
    let (guest, context) = copy_guest(vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let resets = || operated.counter(0, "engines_reset") + operated.counter(0, "adapters_reset");
    let before = resets();
    let own = engines(&operated.daemon).into_iter().find(|pid| !spared.contains(pid)).unwrap();
    kill_at_rest(own);
    until("a reset", || resets() > before);
    if guest.device_status() == DEVICE_ACTIVE {
        queue.run(&CommandBuffer::new());
    } else {
        assert_eq!((guest.device_status(), queue.status()), (DEVICE_RESET, ABORT));
    }
}

#[test]
fn tdr_21_tdr_84_a_process_that_hangs_past_its_limit_is_blocked_and_its_neighbours_are_not() {
    let operated = Operated::with(1, &["--tdr-timeout", "150"]);
    let vm = operated.daemon.vm(0);
    let mut device = open(&vm).unwrap();
    for _ in 0..4 {
        assert_eq!(hang(&device).status, DEVICE_HUNG);
        device = device.recreate().unwrap();
    }
    let last = hang(&device);
    let why = why_blocked(device.recreate());
    assert!(why.contains("this process hung the GPU more than 4 times"), "{why}");
    assert!(why.contains(&format!("report {}", last.report)), "{why}");
    assert_eq!(operated.counter(0, "processes_blocked"), 1);
    open(&vm).unwrap().check().unwrap();
    assert_eq!(quarantine(&operated), Value::Null);
}

#[test]
fn tdr_20_tdr_72_tdr_73_resets_past_the_limit_are_promoted_then_the_vgpu_is_quarantined_until_allowed() {
    let operated = Operated::with(2, &["--tdr-limit-count", "2", "--spin", "600000000"]);
    let (vm, other_vm) = (operated.daemon.vm(0), operated.daemon.vm(1));
    let (other, context) = copy_guest(&other_vm);
    let mut its_queue = RawQueue::new(&other, context);
    assert_eq!(its_queue.connect(), Ok(CONNECTED));
    let spared = engines(&operated.daemon);
    // Engine resets that succeed do not count against the adapter: 2 of them, then 2 promoted, then the last.
    for (engines_reset, adapters_reset) in [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3)] {
        assert_eq!(quarantine(&operated), Value::Null);
        kill_once(&operated, &vm, &spared);
        assert_eq!(operated.counter(0, "engines_reset"), engines_reset);
        assert_eq!(operated.counter(0, "adapters_reset"), adapters_reset);
    }
    until("the quarantine", || quarantine(&operated) != Value::Null);
    let why = quarantine(&operated)["why"].as_str().unwrap().to_owned();
    assert!(why.contains("more than 2 adapter resets within 60 s"), "{why}");
    assert_eq!((operated.counter(0, "quarantined"), operated.counter(1, "quarantined")), (1, 0));
    let text = String::from_utf8(operated.run(&["status"]).stdout).unwrap();
    assert!(text.contains(&format!("no: {why}")), "{text}");
    assert!(why_blocked(open(&vm)).contains("this vGPU is quarantined: more than 2"));
    // A guest that begins anew has the past that it had.
    drop(vm);
    let vm = operated.daemon.vm(0);
    assert!(why_blocked(open(&vm)).contains("this vGPU is quarantined"));
    its_queue.run(&CommandBuffer::new());
    assert_eq!(
        (other.device_status(), its_queue.status()),
        (DEVICE_ACTIVE, CONNECTED),
        "nobody else's affair"
    );

    assert_eq!(operated.ask(&["allow", "--vgpu", "v0"])["was_quarantined"]["why"], why);
    assert_eq!(operated.ask(&["allow", "--vgpu", "v0"])["was_quarantined"], Value::Null);
    assert_eq!((quarantine(&operated), operated.counter(0, "quarantined")), (Value::Null, 0));
    kill_once(&operated, &vm, &spared);
}

#[test]
fn a_guest_that_hangs_for_ever_through_process_after_process_is_out_and_others_go_on_meanwhile() {
    let operated = Operated::with(2, &["--tdr-timeout", "250"]);
    let (vm, other_vm) = (operated.daemon.vm(0), operated.daemon.vm(1));
    let ends = AtomicBool::new(false);
    let load = Load::new();
    thread::scope(|scope| {
        let _ends = Ends(&ends);
        scope.spawn(|| load.run(&other_vm, Node::Compute, &ends));
        load.goes_on();
        let mut hangs = 0;
        let why = loop {
            match open(&vm) {
                Ok(device) => {
                    hang(&device);
                    hangs += 1;
                }
                refused => break why_blocked(refused),
            }
            load.goes_on();
        };
        assert!(why.contains("this vGPU is quarantined: more than 5 adapter resets"), "{why}");
        assert_eq!(hangs, 5 + 5 + 1, "five engine resets, five promoted ones, and the last");
        load.goes_on();
    });
    assert_eq!(operated.counter(1, "engines_reset"), 0);
}

#[test]
fn a_reboot_lifts_a_quarantine_where_that_is_the_policy_and_not_at_once() {
    let arguments = ["--tdr-level", "1", "--tdr-limit-time", "1", "--readmission", "reboot"];
    let operated = Operated::with(1, &[&["--tdr-timeout", "150"], &arguments[..]].concat());
    let vm = operated.daemon.vm(0);
    hang(&open(&vm).unwrap());
    assert!(quarantine(&operated) != Value::Null);
    drop(vm);
    until("a guest that begins anew late enough", || open(&operated.daemon.vm(0)).is_ok());
    assert_eq!(quarantine(&operated), Value::Null);
}

#[test]
fn tdr_16_tdr_83_at_level_1_a_timeout_is_fatal_to_the_vgpu_and_the_daemon_goes_on() {
    let operated = Operated::with(2, &["--tdr-timeout", "150", "--tdr-level", "1"]);
    let (vm, other_vm) = (operated.daemon.vm(0), operated.daemon.vm(1));
    let other = open(&other_vm).unwrap();
    let loss = hang(&open(&vm).unwrap());
    assert_eq!((loss.status, loss.is_collateral), (DEVICE_RESET, false));
    // Whichever of the two is seen first.
    let why = why_blocked(open(&vm));
    let seen = ["it made no progress in time", "it did not yield its node in time"];
    assert!(seen.iter().any(|hang| why == format!("this vGPU is quarantined: {hang}")), "{why}");
    other.check().unwrap();
}

#[test]
fn tdr_16_tdr_17_timeouts_that_are_off_or_ignored_cost_nobody_anything() {
    let off = Operated::with(1, &["--tdr-timeout", "20", "--tdr-level", "0"]);
    let ignores = Operated::with(1, &["--tdr-timeout", "20", "--tdr-debug", "1"]);
    let (vms, mut devices) = ([off.daemon.vm(0), ignores.daemon.vm(0)], Vec::new());
    for (vm, operated) in vms.iter().zip([&off, &ignores]) {
        let device = open(vm).unwrap();
        let watched = device.clone();
        devices.push(std::thread::spawn(move || hang(&watched)));
        until("an engine that runs", || {
            operated.ask(&["status"])["vgpus"][0]["session"]["engines"][0]["state"] == "running"
        });
    }
    // The one that ignores says when the other would have been reset long ago: at least once, since one that the machine
    // keeps waiting for 20 ms is ignored too.
    until("a timeout that is ignored", || ignores.counter(0, "timeouts_ignored") >= 1);
    for operated in [&off, &ignores] {
        assert_eq!((operated.counter(0, "engines_reset"), operated.counter(0, "devices_lost")), (0, 0));
        operated.ask(&["reset", "--vgpu", "v0"]);
    }
    for lost in devices {
        assert_eq!(lost.join().unwrap().reason, 1, "by the operator alone");
    }
}

#[test]
fn tdr_17_in_debug_mode_0_a_hung_engine_is_kept_for_a_debugger_until_the_operator_resets_it() {
    let operated = Operated::with(1, &["--tdr-timeout", "150", "--tdr-debug", "0"]);
    let vm = operated.daemon.vm(0);
    let device = open(&vm).unwrap();
    let loss = hang_and(&device, || {
        let engine = || operated.ask(&["status"])["vgpus"][0]["session"]["engines"][0].clone();
        until("an engine that is held", || engine()["state"] == "held");
        let stat = format!("/proc/{}/stat", engine()["pid"]);
        until("a process that is stopped", || fs::read_to_string(&stat).unwrap().contains(") T "));
        device.check().unwrap();
        operated.ask(&["reset", "--vgpu", "v0", "--node", "compute"]);
    });
    assert_eq!(loss.status, DEVICE_HUNG);
    open(&vm).unwrap().check().unwrap();
}

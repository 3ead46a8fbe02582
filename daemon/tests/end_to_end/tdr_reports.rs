//! Reports on hangs: what they say, and that they say it before and while others go on.

use std::fs;
use std::time::Instant;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::Properties;
use campanile_protocol::device_page::DEVICE_HUNG;
use campanile_protocol::device_page::DEVICE_RESET;
use serde_json::Value;

use crate::dirty::is_in_device;
use crate::operator::Operated;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::raw_queue::wait_for;
use crate::support::NEVER;
use crate::support::until;
use crate::tdr_support::ENDLESS;
use crate::tdr_support::hang;
use crate::tdr_support::hang_and;

/// As published: FNV-1a, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn tdr_04_tdr_28_tdr_81_a_hang_leaves_a_report_that_names_who_what_and_where() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().to_str().unwrap();
    let operated = Operated::with(1, &["--tdr-timeout", "200", "--state-dir", folder]);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    until("a connected doorbell", || queue.connect() == Ok(CONNECTED));
    let device = Device::open(vm.open("hangs").unwrap()).unwrap();
    let loss = hang_and(&device, || {
        // Another node of the same adapter goes on, through the collection and the reset.
        let _connected = queue.connect();
        queue.submit(&CommandBuffer::new());
    });
    assert_eq!((loss.status, loss.reason, loss.is_collateral), (DEVICE_HUNG, 6, false));
    let path = state.path().join("reports").join(format!("{:012}.json", loss.report));
    until("the report", || path.exists());
    let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (field, value) in [
        ("code", Value::from("0x141")),
        ("reason", 6.into()),
        ("vgpu", "v0".into()),
        ("node", "compute".into()),
        ("node_ordinal", 0.into()),
        ("engine_ordinal", 0.into()),
        ("outcome", "engine reset".into()),
        ("affected_count", 1.into()),
    ] {
        assert_eq!(report[field], value, "{field} in {report:#}");
    }
    let kernel = &report["guilty"]["kernel"];
    assert_eq!(kernel["fnv1a"], format!("{:016x}", fnv(ENDLESS.as_bytes())), "{report:#}");
    assert_eq!(report["affected"][0]["collateral_damage"], 0);
    assert_eq!(report["guilty"]["queue"], 0);
    let engine = &report["engine"];
    assert!(engine["work"].as_str().unwrap().starts_with("user-mode queue"), "{report:#}");
    assert_eq!((&engine["last_completed_fence"], &engine["last_submitted_fence"]), (&0.into(), &0.into()));
    assert_eq!((&engine["packet_at_fault"]["byte"], &engine["ring_consumed"]), (&0.into(), &0.into()));
    for timing in ["standstill_seen_to_decision", "decision_to_reset", "reset_to_end"] {
        assert!(report["timings_us"][timing].is_u64(), "{timing} in {report:#}");
    }
}

#[test]
fn tdr_30_tdr_39_tdr_54_the_buffer_that_hung_is_the_last_aborted_and_completes_and_the_one_behind_it_runs() {
    let state = tempfile::tempdir().unwrap();
    let operated =
        Operated::with(1, &["--tdr-timeout", "200", "--state-dir", state.path().to_str().unwrap()]);
    let vm = operated.daemon.vm(0);
    let fences = || {
        let engine = operated.ask(&["status"])["vgpus"][0]["session"]["engines"][0].clone();
        ["last_submitted_fence", "last_completed_fence"].map(|field| engine[field].as_u64().unwrap())
    };
    let works = Device::open(vm.open("works").unwrap()).unwrap();
    let mut queue = works.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let first = queue.submit(&CommandBuffer::new()).unwrap();
    queue.wait(first, Some(NEVER)).unwrap();
    assert_eq!(fences(), [1, 1]);
    let hangs = Device::open(vm.open("hangs").unwrap()).unwrap();
    let mut its_queue = hangs.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let kernel = hangs.create_kernel(&campanile_guest_driver::kernel::KernelSource::wgsl(ENDLESS)).unwrap();
    let data = hangs.create_buffer(4096).unwrap();
    let mut forever = CommandBuffer::new();
    forever.signal(data.va() + 64, 1).unwrap();
    forever.dispatch(&kernel, [1, 1, 1], &[data.binding(0)], &[]).unwrap();
    let _hung = its_queue.submit(&forever).unwrap();
    // Before it has begun, another may still be taken first.
    let begun = || data.memory().word(64).unwrap().load(std::sync::atomic::Ordering::Acquire) == 1;
    until("the buffer that hangs", begun);
    let behind = queue.submit(&CommandBuffer::new()).unwrap();
    queue.wait(behind, Some(NEVER)).unwrap();
    let path = state.path().join("reports").join(format!("{:012}.json", 1));
    // The engine's successor may be faster than the report.
    until("the report", || path.exists());
    let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // Where it was preempted before it began, it has a newer id than 2.
    let aborted = report["last_aborted_fence"].as_u64().unwrap();
    assert!(aborted >= 2, "{report:#}");
    let engine = &report["engine"];
    assert_eq!(engine["hw_queue_head"]["fence_id"], aborted);
    // Ids between the two are of buffers that were handed back.
    let completed = engine["last_completed_fence"].as_u64().unwrap();
    assert!((1..aborted).contains(&completed), "{report:#}");
    assert!(engine["last_submitted_fence"].as_u64().unwrap() >= aborted);
    // The fence is in memory before the daemon hears of it.
    until("the aborted one and the one behind it", || {
        let [submitted, completed] = fences();
        submitted == completed && completed > aborted
    });
}

#[test]
fn pre_45_a_buffer_that_was_preempted_is_flagged_when_it_is_submitted_again() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().to_str().unwrap();
    let arguments = ["--tdr-timeout", "200", "--state-dir", folder];
    let operated = Operated::with_shares(&["bands=realtime"], &arguments);
    let vm = operated.daemon.vm(0);
    let hangs = Device::open(vm.open("hangs").unwrap()).unwrap();
    let mut its_queue = hangs.create_context(Node::Compute).unwrap().create_kernel_queue().unwrap();
    let kernel = hangs.create_kernel(&campanile_guest_driver::kernel::KernelSource::wgsl(ENDLESS)).unwrap();
    let (data, room) = (hangs.create_buffer(4096).unwrap(), hangs.create_buffer(16 << 20).unwrap());
    let urgent = Device::open(vm.open("urgent").unwrap()).unwrap();
    let context = urgent.create_context(Node::Compute).unwrap();
    let properties = Properties { band: Band::Realtime(0), ..Properties::default() };
    context.set_scheduling(&properties).unwrap();
    let mut urgent = context.create_kernel_queue().unwrap();
    // Long, then endless: it is preempted while it can be, and hangs when it has come back.
    let mut forever = CommandBuffer::new();
    forever.signal(data.va() + 64, 1).unwrap();
    for value in 0..100 {
        forever.fill(room.va(), room.size(), value).unwrap();
    }
    forever.dispatch(&kernel, [1, 1, 1], &[data.binding(0)], &[]).unwrap();
    let _hung = its_queue.submit(&forever).unwrap();
    let begun = || data.memory().word(64).unwrap().load(std::sync::atomic::Ordering::Acquire) == 1;
    until("the long buffer", begun);
    let ticket = urgent.submit(&CommandBuffer::new()).unwrap();
    urgent.wait(ticket, Some(NEVER)).unwrap();
    let path = state.path().join("reports").join(format!("{:012}.json", 1));
    until("the report", || path.exists());
    let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let buffer = &report["engine"]["hw_queue_head"];
    assert_eq!(buffer["is_resubmitted"], true, "{report:#}");
    assert!(buffer["fence_id"].as_u64().unwrap() > 2, "under another fence id than its first");
}

#[test]
fn tdr_55_tdr_64_tdr_71_an_adapter_reset_completes_all_fences_and_says_who_was_a_bystander() {
    let state = tempfile::tempdir().unwrap();
    let arguments =
        ["--tdr-level", "1", "--tdr-timeout", "200", "--state-dir", state.path().to_str().unwrap()];
    let operated = Operated::with(1, &arguments);
    let vm = operated.daemon.vm(0);
    let (guest, context) = copy_guest(&vm);
    let gate = guest.vram(4096);
    let device = Device::open(vm.open("hangs").unwrap()).unwrap();
    let mut blocked = RawQueue::new(&guest, context);
    let loss = hang_and(&device, || {
        assert_eq!(blocked.connect(), Ok(CONNECTED));
        blocked.submit(&wait_for(gate.va, 1));
    });
    assert_eq!((loss.status, loss.is_collateral), (DEVICE_RESET, false));
    until("the loss of the bystander", || guest.device_status() == DEVICE_RESET);
    assert_eq!(blocked.status(), ABORT);
    assert_eq!(guest.load(campanile_protocol::device_page::LOSS), 1 << 32 | 6, "through no fault of its own");
    assert_eq!(guest.load(campanile_protocol::device_page::LOSS_REPORT), loss.report);
    for engine in operated.ask(&["status"])["vgpus"][0]["session"]["engines"].as_array().unwrap() {
        // With a device's own memory the copy engine is started again, to move the buffer that was closed out of the window.
        let moves = is_in_device() && engine["node"] == "copy";
        assert!(moves || (&engine["state"], engine["pid"].is_null()) == (&"off".into(), true), "{engine}");
        assert_eq!(engine["last_completed_fence"], engine["last_submitted_fence"]);
    }
    let path = state.path().join("reports").join(format!("{:012}.json", loss.report));
    let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!((&report["code"], &report["outcome"]), (&"0x117".into(), &"adapter reset".into()));
    let mut damage: Vec<u64> = report["affected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["collateral_damage"].as_u64().unwrap())
        .collect();
    damage.sort_unstable();
    assert_eq!(damage, [0, 1]);
}

#[test]
fn a_guest_that_floods_errors_fills_neither_log_nor_state_directory() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().to_str().unwrap();
    let operated = Operated::with(1, &["--tdr-debug", "3", "--state-dir", folder]);
    let vm = operated.daemon.vm(0);
    let (guest, _context) = copy_guest(&vm);
    let begun = Instant::now();
    for _ in 0..60 {
        // Refused while the engine comes up after the last one.
        until("a reset", || operated.run(&["reset", "--vgpu", "v0", "--node", "copy"]).status.success());
    }
    let counters = operated.ask(&["metrics"])["vgpus"][0]["counters"].clone();
    let [written, left_out] =
        ["reports_written", "reports_left_out"].map(|name| counters[name].as_u64().unwrap());
    assert_eq!(written + left_out, 60);
    // 32 at once, and one more every 2 s: none is left out where engines come up that slowly.
    let most = 32 + begun.elapsed().as_secs() / 2 + 1;
    assert!(written <= most, "{counters}");
    let files = fs::read_dir(state.path().join("reports")).unwrap().count();
    assert_eq!(files as u64, written);
    guest.round_trip();
}

#[test]
fn a_hang_without_a_state_directory_has_a_number_all_the_same() {
    let operated = Operated::with(1, &["--tdr-timeout", "150"]);
    let vm = operated.daemon.vm(0);
    let losses: Vec<_> = (0..2).map(|_| hang(&Device::open(vm.open("hangs").unwrap()).unwrap())).collect();
    assert_eq!([losses[0].report, losses[1].report], [1, 2]);
    assert!(losses[0].to_string().contains("report 1 on the host"), "{}", losses[0]);
}

//! A process for each vGPU, and the one that starts them and answers for all.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::chown;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use serde_json::Value;
use serde_json::json;

use crate::killed::Program;
use crate::killed::fill;
use crate::killed::occupy;
use crate::killed::table;
use crate::manager::Manager;
use crate::metrics::scrape;
use crate::served::Folder;
use crate::served::QUIET;
use crate::served::Served;
use crate::served::campanile;
use crate::served::text;
use crate::served::until;
use crate::upgrade::Over;
use crate::upgrade::connect;

/// How long anything may be silent, in tests that wait for that.
const SILENCE: Duration = Duration::from_secs(3);
/// An account that no machine has.
const ACCOUNT: u32 = 54321;
const WORKERS: &str = "workers = \"@/workers\"\n";

/// All that a folder's processes are, ended however a test ends.
pub(crate) struct Workers {
    pub(crate) served: Served,
}

impl Workers {
    pub(crate) fn begin(config: &str) -> Self {
        Self::by(Command::new(env!("CARGO_BIN_EXE_campanile")), config)
    }

    fn by(command: Command, config: &str) -> Self {
        let folder = Folder::with(&format!("{QUIET}{WORKERS}{config}"));
        Self { served: Served::run(folder, command, &[], Stdio::inherit()) }
    }

    /// The vGPUs by name, each with its worker and that one's keeper.
    pub(crate) fn all(&self) -> Vec<(String, Pid, Pid)> {
        let status = self.served.ask(&["status"]);
        let pid = |value: &Value| Pid::from_raw(i32::try_from(value.as_u64()?).ok()?);
        let of = |worker: &Value| {
            Some((worker["vgpu"].as_str()?.to_owned(), pid(&worker["pid"])?, pid(&worker["keeper"])?))
        };
        status["workers"].as_array().unwrap().iter().filter_map(of).collect()
    }

    pub(crate) fn of(&self, vgpu: &str) -> Option<(Pid, Pid)> {
        self.all().into_iter().find(|(name, ..)| name == vgpu).map(|(_, worker, keeper)| (worker, keeper))
    }

    /// Sends the worker of a vGPU a signal that ends it, and waits for the next.
    pub(crate) fn end(&self, vgpu: &str, signal: Signal) {
        self.end_by(vgpu, |worker| kill_process(worker, signal).unwrap());
    }

    /// Has the worker of a vGPU with a VM fail, and waits for the next.
    fn fail(&self, vgpu: &str, fault: &str) {
        self.end_by(vgpu, |_| {
            let output = self.served.ctl(&["fault", "--vgpu", vgpu, fault]);
            assert!(!output.status.success(), "it has answered: {}", text(&output.stdout));
        });
    }

    fn end_by(&self, vgpu: &str, end: impl FnOnce(Pid)) {
        let mut before = None;
        // One that does not answer in time is not listed.
        until("its worker", || {
            before = self.of(vgpu);
            before.is_some()
        });
        let before = before.unwrap();
        end(before.0);
        until("the next worker", || {
            self.of(vgpu).is_some_and(|(worker, keeper)| worker != before.0 && keeper == before.1)
        });
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.served.ctl(arguments);
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    fn spec(&self, name: &str) -> String {
        format!("name={name},socket={},vram=64M", self.served.folder.file(&format!("{name}.sock")).display())
    }

    /// The process of the schedule.
    pub(crate) fn schedule(&self) -> Option<i32> {
        let is_schedule = |pid: &i32| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"schedule"))
        };
        self.processes().into_iter().find(is_schedule)
    }

    /// The processes whose command line names the folder.
    fn processes(&self) -> BTreeSet<i32> {
        processes(&self.served.folder)
    }
}

/// The processes whose command line names a folder.
pub(crate) fn processes(folder: &Folder) -> BTreeSet<i32> {
    let name = folder.path().to_str().unwrap();
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    // One that has ended has no command line.
    let is_here = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(name))
    };
    all.filter(is_here).collect()
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.kill_all();
    }
}

impl Workers {
    /// Kills all processes.
    fn kill_all(&mut self) {
        // The one that starts others again goes first, and then keepers.
        self.served.kill();
        until("the end of all", || {
            let left = self.processes();
            for pid in &left {
                let _gone = kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL);
            }
            left.is_empty()
        });
    }
}

/// A fill by a guest of a vGPU that connects for that.
fn fill_once(workers: &Workers, name: &str) {
    drop(device(workers, name));
}

fn two() -> String {
    format!("{}{}", table("a", ""), table("b", ""))
}

fn device(workers: &Workers, name: &str) -> (Arc<LoopbackVm>, Device) {
    let vm = connect(&workers.served, name);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    fill(&device, 1, true).unwrap();
    (vm, device)
}

#[test]
fn cont_09_a_worker_that_is_killed_stopped_panics_or_asks_for_too_much_memory_costs_the_other_vm_nothing() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env("WATCHDOG_USEC", SILENCE.as_micros().to_string());
    let workers = Workers::by(command, &format!("worker-memory = \"256M\"\n{}", two()));
    let vms = ["a", "b"].map(|name| connect(&workers.served, name));
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Over(&is_over);
    let programs = vms.each_ref().map(|vm| Program::begin(vm, &is_over, true));
    let b = workers.of("b");
    let ends: [&dyn Fn(); 4] = [
        &|| workers.end("a", Signal::KILL),
        &|| workers.end("a", Signal::STOP),
        &|| workers.fail("a", "panic"),
        &|| workers.fail("a", "memory"),
    ];
    for end in ends {
        let before = programs.each_ref().map(Program::rounds);
        until("work of both", || {
            programs.iter().zip(before).all(|(program, before)| program.rounds() > before)
        });
        end();
    }
    assert_eq!(workers.of("b"), b, "it is another process");
    drop(over);
    let [lost, kept] = programs.map(Program::end);
    assert!(lost <= 4, "{lost} devices of the VM whose worker ended 4 times");
    assert_eq!(kept, 0, "devices of the other VM were lost");
}

#[test]
fn cont_22_workers_go_on_without_what_started_them_and_the_next_one_finds_and_ends_them() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env("WATCHDOG_USEC", SILENCE.as_micros().to_string());
    let mut workers = Workers::by(command, &two());
    workers.served.ask(&["vgpu", "add", &workers.spec("made")]);
    let vms = ["a", "made"].map(|name| connect(&workers.served, name));
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Over(&is_over);
    let programs = vms.each_ref().map(|vm| Program::begin(vm, &is_over, true));
    for _ in 0..2 {
        let before = workers.all();
        assert_eq!(before.len(), 3, "{before:?}");
        let schedule = workers.schedule();
        workers.served.kill();
        let rounds = programs.each_ref().map(Program::rounds);
        until("work without it", || {
            programs.iter().zip(rounds).all(|(program, rounds)| program.rounds() > rounds)
        });
        workers.served.start_again();
        until("all answers", || workers.all().len() == 3);
        assert_eq!(workers.all(), before);
        // Longer than it may be silent: the schedule speaks to a process that is gone.
        let begun = Instant::now();
        while begun.elapsed() < 2 * SILENCE {
            fill_once(&workers, "b");
        }
        assert_eq!(workers.schedule(), schedule);
    }
    drop(over);
    assert_eq!(programs.map(Program::end), [0, 0], "devices were lost");
    // What it has found is its own from there on.
    workers.end("a", Signal::KILL);
    workers.served.ask(&["vgpu", "remove", "made", "--force"]);
    assert_eq!(workers.all().len(), 2);
    let supervisor = i32::try_from(workers.served.pid()).unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::TERM).unwrap();
    until("its end", || workers.served.has_ended().is_some());
    assert_eq!(workers.served.has_ended(), Some(0));
    assert_eq!(workers.processes(), BTreeSet::new());
    workers.served.start_again();
    assert_eq!(workers.all().len(), 2, "what the operator made is gone with all the rest");
}

#[test]
fn cont_12_vms_go_on_where_all_processes_are_killed_at_once_under_a_service_manager() {
    let manager = Manager::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env("NOTIFY_SOCKET", manager.address());
    let mut workers = Workers::by(command, &two());
    let vms = ["a", "b"].map(|name| connect(&workers.served, name));
    let devices = vms.each_ref().map(|vm| Device::open(vm.open("test").unwrap()).unwrap());
    for device in &devices {
        fill(device, 1, true).unwrap();
    }
    for _ in 0..2 {
        // The last of each by its name.
        until("all that is stored", || {
            ["a", "b"].iter().all(|vgpu| manager.names().contains(&format!("campanile.{vgpu}.words")))
        });
        workers.kill_all();
        let folder = std::mem::replace(&mut workers.served.folder, Folder::with(""));
        workers.served = Served::run(folder, manager.restart(), &[], Stdio::inherit());
        until("both workers", || workers.all().len() == 2);
        for (vm, device) in vms.iter().zip(&devices) {
            assert!(vm.is_connected());
            // It has gone on, or is lost: a new one works then.
            if fill(device, 2, true).is_err() {
                fill(&Device::open(vm.open("test").unwrap()).unwrap(), 2, true).unwrap();
            }
        }
    }
    // What goes on is stored as ever, and what ends is not any more.
    drop((devices, vms));
    until("the end of what is stored", || !manager.names().iter().any(|name| name.ends_with(".connection")));
}

#[test]
fn cont_23_an_upgrade_takes_one_worker_after_the_other_and_then_what_started_them() {
    let workers = Workers::begin(&two());
    let vms = ["a", "b"].map(|name| connect(&workers.served, name));
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Over(&is_over);
    let programs = vms.each_ref().map(|vm| Program::begin(vm, &is_over, true));
    let first = workers.all();
    for round in 1..=2 {
        let before = workers.all();
        let rounds = programs.each_ref().map(Program::rounds);
        until("work of both", || {
            programs.iter().zip(rounds).all(|(program, rounds)| program.rounds() > rounds)
        });
        let upgraded = workers.served.ask(&["upgrade"]);
        let expected = (json!(2), json!([]), u64::from(workers.served.pid()));
        assert_eq!(
            (upgraded["vms"].clone(), upgraded["lost"].clone(), upgraded["pid"].as_u64().unwrap()),
            expected
        );
        until("all of the new", || {
            // The socket is another process image's for a moment.
            let output = workers.served.ctl(&["--json", "status"]);
            output.status.success() && {
                let now = workers.all();
                now.len() == 2
                    && now.iter().zip(&before).all(|(now, before)| now.1 != before.1 && now.2 == before.2)
            }
        });
        assert_eq!(workers.all().len(), first.len(), "round {round}");
    }
    drop(over);
    assert_eq!(programs.map(Program::end), [0, 0], "devices were lost");
    // The keepers start what the workers are by now.
    workers.end("a", Signal::KILL);
}

#[test]
fn cont_23_an_upgrade_leaves_workers_in_their_folder_whatever_the_configuration_says_by_then() {
    let workers = Workers::begin(&two());
    let keepers =
        |workers: &Workers| workers.all().into_iter().map(|(.., keeper)| keeper).collect::<Vec<_>>();
    let before = keepers(&workers);
    let elsewhere = WORKERS.replace("workers\"", "elsewhere\"");
    workers.served.folder.write("campanile.toml", &format!("{QUIET}{elsewhere}{}", two()));
    workers.served.ask(&["upgrade"]);
    until("the new program", || workers.served.ctl(&["status"]).status.success());
    assert_eq!(keepers(&workers), before);
    assert!(!workers.served.folder.file("elsewhere").exists());
}

#[test]
fn cont_23_a_program_that_does_not_start_replaces_nothing() {
    let workers = Workers::begin(&two());
    let (_vm, device) = device(&workers, "b");
    let before = (workers.all(), workers.processes());
    let said = workers.refused(&["upgrade", "--binary", "/bin/false"]);
    assert!(said.contains("vGPU a") && said.contains("upgraded: none"), "{said}");
    assert_eq!((workers.all(), workers.processes()), before);
    fill(&device, 2, true).unwrap();
    // Where there is no worker, it is asked what it is.
    let none = Workers::begin("");
    let pid = none.served.pid();
    assert!(none.refused(&["upgrade", "--binary", "/bin/false"]).contains("it is no campanile"));
    assert_eq!(none.served.ask(&["upgrade"])["pid"], pid);
    until("the new program", || none.served.ctl(&["status"]).status.success());
}

#[test]
fn cont_24_one_process_answers_the_operator_for_all_vgpus() {
    let config = format!("metrics = \"unix:@/metrics\"\nstate-dir = \"@/state\"\n{}", two());
    let workers = Workers::begin(&config);
    let served = &workers.served;
    let ((_first_vm, first), (_second_vm, second)) = (device(&workers, "a"), device(&workers, "b"));
    let daemon = served.ask(&["status"])["daemon"].clone();
    assert_eq!((&daemon["dumpable"], &daemon["no_new_privs"]), (&json!(false), &json!(true)));
    let names = |answer: &Value| -> Vec<String> {
        answer["vgpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|vgpu| vgpu["name"].as_str().unwrap().to_owned())
            .collect()
    };
    for verb in ["status", "vram", "metrics", "timeline", "reports"] {
        assert_eq!(names(&served.ask(&[verb])), ["a", "b"], "{verb}");
    }
    assert_eq!(served.ask(&["migration"])["departures"].as_array().unwrap().len(), 2);
    assert_eq!(served.ask(&["vgpu", "set", "a", "weight=700"])["tuning"]["weight"], 700);
    let weight = |at: usize| served.ask(&["status"])["vgpus"][at]["tuning"]["weight"].clone();
    assert_eq!((weight(0), weight(1)), (json!(700), json!(100)));
    assert!(workers.refused(&["allow", "--vgpu", "c"]).contains("there is no vGPU c; there are: a, b"));
    // A command about one is carried out by one.
    served.ask(&["reset-adapter", "--vgpu", "a"]);
    let lost = fill(&first, 2, true).unwrap_err();
    assert!(matches!(lost, DriverError::DeviceLost(_)), "{lost}");
    fill(&second, 2, true).unwrap();
    let reports = served.ask(&["reports"]);
    let of = |at: usize| reports["vgpus"][at]["reports"].as_array().unwrap().len();
    assert_eq!((of(0), of(1)), (1, 0));
    assert!(served.folder.file("state/a/reports/000000000001.json").exists());
    served.ask(&["reset-adapter"]);
    assert!(fill(&second, 3, true).is_err(), "it has its device");
    let metrics = scrape(served);
    for sample in [
        "campanile_responds{vgpu=\"a\"} 1",
        "campanile_responds{vgpu=\"b\"} 1",
        "campanile_worker_ends_total{vgpu=\"b\"} 0",
    ] {
        assert!(metrics.lines().any(|line| line == sample), "{sample} is missing in\n{metrics}");
    }
    // One that is stopped keeps no other back, and says nothing.
    let (worker, _) = workers.of("a").unwrap();
    kill_process(worker, Signal::STOP).unwrap();
    let status = served.ask(&["status"]);
    assert_eq!(status["vgpus"][0]["error"], "its process does not answer");
    assert_eq!(status["vgpus"][1]["vm_connected"], true);
    until("its silence in metrics", || scrape(served).contains("campanile_responds{vgpu=\"a\"} 0"));
    kill_process(worker, Signal::CONT).unwrap();
    until("its answer", || served.ask(&["status"])["vgpus"][0]["error"].is_null());
}

#[test]
fn cont_24_vgpus_come_and_go_with_their_workers() {
    let workers = Workers::begin(&two());
    let served = &workers.served;
    let (_vm, device) = device(&workers, "b");
    let added = served.ask(&["vgpu", "add", &workers.spec("c")]);
    assert_eq!((&added["vgpu"], &added["vram_bytes"]), (&json!("c"), &json!(64 << 20)));
    fill(&Device::open(connect(served, "c").open("test").unwrap()).unwrap(), 1, true).unwrap();
    assert!(workers.refused(&["vgpu", "add", &workers.spec("c")]).contains("another vGPU has this name"));
    let same_socket = workers.spec("c").replace("name=c", "name=d");
    assert!(workers.refused(&["vgpu", "add", &same_socket]).contains("is the one of vGPU c, too"));
    let nowhere = "name=d,socket=/no/such/folder/d.sock,vram=64M";
    assert!(
        workers.refused(&["vgpu", "add", nowhere]).contains("vGPU d: its worker has ended before it served")
    );
    assert_eq!(workers.all().len(), 3);
    // Over and over, the same name: it is free as soon as that is said.
    for _ in 0..10 {
        served.ask(&["vgpu", "add", &workers.spec("g")]);
        served.ask(&["vgpu", "remove", "g"]);
        assert!(workers.refused(&["vgpu", "add", nowhere]).contains("has ended before it served"));
    }
    let (worker, keeper) = workers.of("c").unwrap();
    assert!(workers.refused(&["vgpu", "remove", "b"]).contains("a VM has it"));
    served.ask(&["vgpu", "remove", "c", "--force"]);
    for pid in [worker, keeper] {
        assert!(!processes(&served.folder).contains(&pid.as_raw_nonzero().get()));
    }
    // The file says otherwise: b has a VM, and stays.
    served.folder.write(
        "campanile.toml",
        &format!("{QUIET}{WORKERS}{}{}", table("b", "weight = 300\n"), table("e", "")),
    );
    let reloaded = served.ask(&["reload"]);
    assert_eq!(reloaded["changed"], json!(["vGPU a: it is gone", "vGPU b: weight", "vGPU e: it is new"]));
    assert_eq!(reloaded["failed"], json!([]));
    let names: Vec<String> = workers.all().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["b", "e"]);
    served.folder.write("campanile.toml", &format!("{QUIET}{WORKERS}{}", table("e", "")));
    let reloaded = served.ask(&["reload"]);
    assert!(reloaded["failed"][0].as_str().unwrap().contains("vGPU b: a VM has it"), "{reloaded}");
    assert_eq!(workers.all().len(), 2);
    served.folder.write("campanile.toml", "nonsense = 1\n");
    assert!(workers.refused(&["reload"]).contains("nothing was changed"));
    // Nothing comes where no VM is taken.
    let drained = served.ask(&["drain"]);
    assert_eq!((&drained["drained"], &drained["vms"][0]["vgpu"]), (&json!(true), &json!("b")));
    assert_eq!(served.ask(&["status"])["drained"], true);
    assert!(workers.refused(&["vgpu", "add", &workers.spec("f")]).contains("drain"));
    fill(&device, 2, true).unwrap();
}

/// Whether a process has this memory open.
fn has_open(process: Pid, memory: &str) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).unwrap();
    open.filter_map(|file| fs::read_link(file.unwrap().path()).ok())
        .any(|link| link.to_string_lossy().contains(memory))
}

#[test]
fn cont_22_a_vm_goes_on_whose_worker_and_keeper_are_killed_at_once() {
    let workers = Workers::begin(&two());
    let (vm, device) = device(&workers, "a");
    let starter = Pid::from_raw(i32::try_from(workers.served.pid()).unwrap()).unwrap();
    for _ in 0..2 {
        // The last by its name.
        until("all that is kept", || has_open(starter, "campanile-words"));
        let (worker, keeper) = workers.of("a").unwrap();
        // So that it sees both ends at once.
        kill_process(starter, Signal::STOP).unwrap();
        for process in [keeper, worker] {
            kill_process(process, Signal::KILL).unwrap();
        }
        until("the end of both", || {
            let left = workers.processes();
            [keeper, worker].iter().all(|process| !left.contains(&process.as_raw_nonzero().get()))
        });
        kill_process(starter, Signal::CONT).unwrap();
        until("the next worker", || workers.of("a").is_some_and(|now| now.0 != worker && now.1 != keeper));
        assert!(vm.is_connected());
        // It has gone on, or is lost: a new one works then.
        if fill(&device, 2, true).is_err() {
            fill(&Device::open(vm.open("test").unwrap()).unwrap(), 2, true).unwrap();
        }
    }
    drop((device, vm));
    until("nothing that is kept", || !has_open(starter, "campanile-words"));
}

#[test]
fn cont_22_a_vm_goes_on_whose_keeper_was_killed_before_its_worker() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env("WATCHDOG_USEC", SILENCE.as_micros().to_string());
    let workers = Workers::by(command, &two());
    let (vm, device) = device(&workers, "a");
    let starter = Pid::from_raw(i32::try_from(workers.served.pid()).unwrap()).unwrap();
    for _ in 0..2 {
        let (worker, keeper) = workers.of("a").unwrap();
        kill_process(keeper, Signal::KILL).unwrap();
        until("a worker without a keeper", || workers.of("a") == Some((worker, worker)));
        // What the keeper has told is no more, and the worker tells that when it gives its next sign of life. The last by its name.
        until("what the worker has kept", || has_open(starter, "campanile-words"));
        kill_process(worker, Signal::KILL).unwrap();
        until("the next worker", || {
            workers.of("a").is_some_and(|now| now.0 != worker && now.1 != keeper && now.0 != now.1)
        });
        assert!(vm.is_connected());
        // It has gone on, or is lost: a new one works then.
        if fill(&device, 2, true).is_err() {
            fill(&Device::open(vm.open("test").unwrap()).unwrap(), 2, true).unwrap();
        }
    }
    drop((device, vm));
    until("nothing that is kept", || !has_open(starter, "campanile-words"));
}

#[test]
fn cont_22_a_schedule_that_is_killed_is_started_again() {
    let workers = Workers::begin(&two());
    let (_vm, device) = device(&workers, "a");
    let before = workers.schedule().unwrap();
    kill_process(Pid::from_raw(before).unwrap(), Signal::KILL).unwrap();
    until("the next", || workers.schedule().is_some_and(|now| now != before));
    fill(&device, 2, true).unwrap();
}

#[test]
fn cont_22_a_worker_that_is_killed_while_there_is_no_schedule_is_followed_by_another() {
    let mut workers = Workers::begin(&two());
    let (vm, first) = device(&workers, "a");
    let occupied = occupy(&first);
    let before = workers.of("a").unwrap();
    // What starts the schedule again is not there, either.
    let schedule = workers.schedule().unwrap();
    workers.served.kill();
    for pid in [Pid::from_raw(schedule).unwrap(), before.0] {
        kill_process(pid, Signal::KILL).unwrap();
    }
    until("a lost device", || first.check().is_err());
    drop(occupied);
    assert!(vm.is_connected());
    workers.served.start_again();
    until("the next worker", || {
        workers.of("a").is_some_and(|(worker, keeper)| worker != before.0 && keeper == before.1)
    });
    fill(&first.recreate().unwrap(), 3, true).unwrap();
}

#[test]
fn cont_22_a_keeper_that_is_killed_leaves_its_worker_and_both_are_started_again_when_that_has_ended() {
    let mut workers = Workers::begin(&two());
    let (_vm, first) = device(&workers, "a");
    let before = workers.of("a").unwrap();
    kill_process(before.1, Signal::KILL).unwrap();
    let is_alone = |workers: &Workers| workers.of("a") == Some((before.0, before.0));
    until("a worker without a keeper", || is_alone(&workers));
    fill(&first, 2, true).unwrap();
    // The next one that starts workers finds it, too.
    workers.served.kill();
    workers.served.start_again();
    until("a worker without a keeper", || is_alone(&workers));
    fill(&first, 3, true).unwrap();
    kill_process(before.0, Signal::KILL).unwrap();
    until("the next keeper", || workers.of("a").is_some_and(|(worker, keeper)| worker != keeper));
    drop(device(&workers, "a"));
    // It ends one of which it has lost the keeper, as all others.
    let (worker, keeper) = workers.of("a").unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    let supervisor = i32::try_from(workers.served.pid()).unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::TERM).unwrap();
    until("its end", || workers.served.has_ended().is_some());
    assert_eq!(workers.processes(), BTreeSet::new(), "{worker:?}");
}

#[test]
fn cont_22_a_keeper_that_is_killed_while_its_worker_starts_takes_it_along() {
    let mut workers = Workers::begin(&two());
    for _ in 0..2 {
        let (worker, keeper) = workers.of("a").unwrap();
        for pid in [worker, keeper] {
            kill_process(pid, Signal::KILL).unwrap();
        }
        until("the next keeper", || {
            workers.of("a").is_some_and(|(now, its)| now != worker && its != keeper && its != now)
        });
        drop(device(&workers, "a"));
    }
    // The next one is about to start.
    let (worker, keeper) = workers.of("a").unwrap();
    for pid in [worker, keeper] {
        kill_process(pid, Signal::KILL).unwrap();
    }
    let supervisor = i32::try_from(workers.served.pid()).unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::TERM).unwrap();
    until("its end", || workers.served.has_ended().is_some());
    until("the end of all", || workers.processes().is_empty());
}

#[test]
fn cont_22_what_was_found_and_gives_no_sign_of_life_is_followed_by_another() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env("WATCHDOG_USEC", SILENCE.as_micros().to_string());
    let mut workers = Workers::by(command, &two());
    let (_vm, second) = device(&workers, "b");
    let (worker, keeper) = workers.of("a").unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    until("a worker without a keeper", || workers.of("a") == Some((worker, worker)));
    workers.served.kill();
    workers.served.start_again();
    // Longer than it may be silent: both speak to what has found them.
    let schedule = workers.schedule().unwrap();
    let begun = Instant::now();
    while begun.elapsed() < 2 * SILENCE {
        fill(&second, 2, true).unwrap();
    }
    assert_eq!((workers.of("a"), workers.schedule()), (Some((worker, worker)), Some(schedule)));
    for pid in [worker, Pid::from_raw(schedule).unwrap()] {
        kill_process(pid, Signal::STOP).unwrap();
    }
    until("the next schedule", || workers.schedule().is_some_and(|now| now != schedule));
    until("the next keeper", || workers.of("a").is_some_and(|(now, its)| now != worker && its != now));
    drop(device(&workers, "a"));
    fill(&second, 3, true).unwrap();
}

#[test]
fn cont_24_a_worker_that_does_not_answer_is_ended_where_its_vgpu_is_removed_by_force() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env("WATCHDOG_USEC", SILENCE.as_micros().to_string());
    let workers = Workers::by(command, &two());
    // Its keeper kills it, which ends the connection over which it is asked.
    kill_process(workers.of("a").unwrap().0, Signal::STOP).unwrap();
    workers.served.ask(&["vgpu", "remove", "a", "--force"]);
    let names: Vec<String> = workers.all().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["b"]);
}

#[test]
fn cont_22_a_worker_of_a_vgpu_that_is_configured_no_more_is_found_and_ended() {
    let mut workers = Workers::begin(&two());
    workers.served.kill();
    workers.served.folder.write("campanile.toml", &format!("{QUIET}{WORKERS}{}", table("a", "")));
    workers.served.start_again();
    until("both", || workers.all().len() == 2);
    assert_eq!(workers.served.ask(&["reload"])["changed"], json!(["vGPU b: it is gone"]));
    assert_eq!(workers.all().len(), 1);
    assert!(workers.processes().iter().all(|pid| {
        !fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains("--worker=b")
    }));
}

#[test]
fn cont_13_a_drain_goes_on_in_a_worker_that_is_started_anew() {
    let workers = Workers::begin(&two());
    workers.served.ask(&["drain"]);
    let (worker, keeper) = workers.of("b").unwrap();
    for pid in [keeper, worker] {
        kill_process(pid, Signal::KILL).unwrap();
    }
    until("the next keeper", || workers.of("b").is_some_and(|(now, other)| now != worker && other != keeper));
    let socket = workers.served.folder.file("b.sock");
    until("its drain", || LoopbackVm::connect(&socket, &VmOptions::default()).is_err());
    workers.served.ask(&["drain", "--off"]);
    assert_eq!(workers.served.ask(&["status"])["drained"], false);
    drop(device(&workers, "b"));
}

#[test]
fn a_worker_answers_what_has_started_it_and_no_other_process() {
    let workers = Workers::begin(&two());
    let control = workers.served.folder.file("workers/a.control");
    let output = campanile(&["ctl", "--control", control.to_str().unwrap(), "status"]);
    assert_eq!(output.status.code(), Some(4));
    let said = text(&output.stderr);
    assert!(said.contains("answers the process that has locked") && said.contains("/workers/lock"), "{said}");
}

#[test]
fn workers_of_another_user_answer_what_has_started_them() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let account = format!("user = \"{ACCOUNT}:{ACCOUNT}\"\nmetrics = \"unix:@/metrics\"\n");
    let folder = Folder::with(&format!("{QUIET}{WORKERS}{account}{}", two()));
    chown(folder.path(), Some(ACCOUNT), Some(ACCOUNT)).unwrap();
    let command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    let mut workers = Workers { served: Served::run(folder, command, &[], Stdio::inherit()) };
    let all = workers.all();
    assert_eq!(all.len(), 2, "they answer");
    for (vgpu, worker, keeper) in &all {
        let user = |pid: &Pid| fs::metadata(format!("/proc/{}", pid.as_raw_nonzero())).unwrap().uid();
        let status = fs::read_to_string(format!("/proc/{}/status", worker.as_raw_nonzero())).unwrap();
        assert!(status.contains(&format!("\nUid:\t{ACCOUNT}\t")), "{vgpu}: {status}");
        assert_eq!(user(keeper), 0);
    }
    drop(device(&workers, "a"));
    assert!(scrape(&workers.served).contains("campanile_responds{vgpu=\"b\"} 1"));
    workers.served.kill();
    workers.served.start_again();
    until("all answer", || workers.all() == all);
}

#[test]
fn the_first_worker_asks_the_machine_what_it_can_do_and_the_others_know_it_then() {
    let folder = Folder::with(&format!("{QUIET}{WORKERS}{}{}", two(), table("c", "")));
    let log = folder.file("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env_remove("RUST_LOG");
    let served = Served::run(folder, command, &[], fs::File::create(&log).unwrap().into());
    let workers = Workers { served };
    // As root, each of them has a user of its own for its engines.
    let known =
        || fs::read_to_string(&log).unwrap().matches("what was found of the machine before holds").count();
    assert_eq!(known(), 2);
    workers.served.ask(&["vgpu", "add", &workers.spec("new")]);
    assert_eq!(known(), 3);
}

#[test]
fn what_the_service_manager_has_of_no_worker_is_closed_and_what_is_not_whole_is_refused_by_the_worker() {
    let folder = Folder::with(&format!("{QUIET}{WORKERS}{}", table("a", "")));
    let log = folder.file("log");
    let mut command = Command::new("sh");
    let hand_over = "exec 3</dev/zero 4</dev/zero; LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=campanile.a.log:campanile.gone.log exec \"$0\" \"$@\"";
    command.args(["-c", hand_over, env!("CARGO_BIN_EXE_campanile")]);
    let served = Served::run(folder, command, &[], fs::File::create(&log).unwrap().into());
    let workers = Workers { served };
    let said = fs::read_to_string(log).unwrap();
    assert!(said.contains("descriptor store: campanile.gone.log: of no worker; closed"), "{said}");
    assert!(said.contains("vGPU a: its VM loses the device"), "{said}");
    let open = fs::read_dir(format!("/proc/{}/fd", workers.served.pid())).unwrap();
    let files: Vec<_> = open.filter_map(|file| fs::read_link(file.unwrap().path()).ok()).collect();
    assert!(files.iter().all(|file| file.to_str() != Some("/dev/zero")), "{files:?}");
}

#[test]
fn what_cannot_be_with_workers_is_refused_in_words_that_name_it() {
    let workers = Workers::begin(&two());
    let config = workers.served.folder.config();
    let output = campanile(&["serve", "--config", &config]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    let pid = workers.served.pid();
    assert!(said.contains(&format!("/workers: process {pid} has it")), "{said}");

    let folder = Folder::with("");
    let refused = |config: &str| {
        folder.write("campanile.toml", config);
        let output = campanile(&["serve", "--config", &folder.config()]);
        assert!(!output.status.success(), "{config}");
        assert_eq!(processes(&folder), BTreeSet::new());
        text(&output.stderr)
    };
    let with = |more: &str| format!("{QUIET}{WORKERS}{more}{}", table("a", ""));
    let said = refused(&with("vram-total = \"1G\"\n"));
    assert!(
        said.contains("--vram-total") && said.contains("--workers") && said.contains("campanile.toml:"),
        "{said}"
    );
    let said = refused(&with("migrate-listen = \"unix:@/m\"\n"));
    assert!(said.contains("--migrate-listen") && said.contains("campanile.toml:"), "{said}");
    let said = refused(&format!("{QUIET}{WORKERS}{}", table("a", "weight = 5000000\n")));
    assert!(said.contains("weight") && said.contains("campanile.toml:"), "{said}");
    let long = "ä".repeat(30);
    let said = refused(&format!("{QUIET}{WORKERS}{}", table(&long, "").replace(&format!("@/{long}"), "@/a")));
    assert!(said.contains("--workers: ") && said.contains("107 are possible for a socket"), "{said}");
    // A worker that cannot serve ends all of them, with what it says.
    let said = refused(&format!(
        "{QUIET}{WORKERS}{}{}",
        table("a", ""),
        table("b", "").replace("@/b", "/no/such/folder/b")
    ));
    assert!(
        said.contains("/no/such/folder/b.sock")
            && said.contains("vGPU b: its worker has ended before it served"),
        "{said}"
    );
    fs::set_permissions(folder.file("workers"), PermissionsExt::from_mode(0o777)).unwrap();
    let said = refused(&with(""));
    assert!(
        said.contains("/workers: it is of user") && said.contains("mode 777") && said.contains("0700"),
        "{said}"
    );
}

//! Daemons of one host that share its GPU by a schedule of their own process.

use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_daemon::sched::broker::line;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use tempfile::TempDir;

use crate::killed::Kept;
use crate::killed::Program;
use crate::killed::fill;
use crate::killed::table;
use crate::served::Folder;
use crate::served::NEVER;
use crate::served::QUIET;
use crate::served::Served;
use crate::served::campanile;
use crate::served::text;
use crate::served::until;
use crate::upgrade::Line;
use crate::upgrade::Over;
use crate::upgrade::connect;

const ROOM: u64 = 16 << 20;

/// `campanile schedule`, in a folder of its own.
struct Broker {
    folder: TempDir,
    child: Child,
}

impl Broker {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = Self::run(&folder.path().join("schedule"));
        Self { folder, child }
    }

    fn run(path: &PathBuf) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        let command = command.args(["schedule", "--cpu-latency", "off", "--socket"]).arg(path);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        until("the schedule", || line::Line::connect(path).is_ok());
        child
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("schedule")
    }

    /// Ends it without a chance to say so.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::fs::remove_file(self.path()).unwrap();
    }

    fn start_again(&mut self) {
        self.child = Self::run(&self.path());
    }

    /// The configuration of a daemon that takes part, with a vGPU of this name.
    fn config(&self, name: &str, more: &str) -> String {
        format!("schedule = \"{}\"\n{}", self.path().display(), table(name, more))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// How often the engine of a daemon's only vGPU has given the copy node to others, and for how long it has had it.
fn copy_node(served: &Served) -> (u64, u64) {
    let status = served.ask(&["status"]);
    let nodes = status["vgpus"][0]["nodes"].as_array().unwrap();
    let copy = nodes.iter().find(|node| node["node"] == "copy").unwrap();
    (copy["yields"]["count"].as_u64().unwrap(), copy["held_ns"].as_u64().unwrap())
}

/// Work of `patient`, a guest of the daemon `its`, gives its node to work of `other`, and goes on.
fn gives_way(patient: &Device, its: &Served, other: &Device) {
    let before = copy_node(its);
    let (room, words) = (patient.create_buffer(ROOM).unwrap(), patient.create_buffer(4096).unwrap());
    let mut long = CommandBuffer::new();
    long.signal(words.va(), 1).unwrap();
    for value in 1..=100 {
        long.fill(room.va(), ROOM, value).unwrap();
    }
    let context = patient.create_context(Node::Copy).unwrap();
    let mut queue = context.create_kernel_queue().unwrap();
    let ticket = queue.submit(&long).unwrap();
    until("the long buffer", || words.memory().word(0).unwrap().load(Ordering::Acquire) == 1);
    fill(other, 7, true).unwrap();
    queue.wait(ticket, Some(NEVER)).unwrap();
    until("the yield", || copy_node(its).0 > before.0);
    assert!(copy_node(its).1 > before.1, "it has had its node for no time");
}

#[test]
fn cont_18_work_of_one_daemon_gives_way_to_that_of_another_one() {
    let broker = Broker::start();
    let daemons = ["a", "b"].map(|name| Served::with(&broker.config(name, "")));
    let vms = [connect(&daemons[0], "a"), connect(&daemons[1], "b")];
    let [first, second] = vms.map(|vm| Device::open(vm.open("test").unwrap()).unwrap());
    gives_way(&first, &daemons[0], &second);
    gives_way(&second, &daemons[1], &first);
}

#[test]
fn cont_19_a_daemon_that_is_killed_costs_the_vm_of_another_one_nothing() {
    let broker = Broker::start();
    let dies = Kept::begin(&broker.config("a", ""));
    let lives = Served::with(&broker.config("b", ""));
    let vms = [dies.connect("a"), connect(&lives, "b")];
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Over(&is_over);
    let programs = vms.each_ref().map(|vm| Program::begin(vm, &is_over, true));
    for _ in 0..3 {
        let before = programs.each_ref().map(Program::rounds);
        until("work of both", || {
            programs.iter().zip(before).all(|(program, before)| program.rounds() > before)
        });
        dies.kill();
    }
    drop(over);
    let [lost, kept] = programs.map(Program::end);
    assert!(lost <= 3, "{lost} devices of the VM of the daemon that was killed 3 times");
    assert_eq!(kept, 0, "devices of the other VM were lost");
    let [other, patient] = vms.map(|vm| Device::open(vm.open("test").unwrap()).unwrap());
    gives_way(&patient, &lives, &other);
}

#[test]
fn cont_01_cont_18_a_daemon_that_is_upgraded_goes_on_in_the_same_schedule() {
    let broker = Broker::start();
    let mut upgraded = Line::begin(&broker.config("a", ""));
    let stays = Served::with(&broker.config("b", ""));
    let vms = [connect(&upgraded.served, "a"), connect(&stays, "b")];
    let [first, second] = vms.each_ref().map(|vm| Device::open(vm.open("test").unwrap()).unwrap());
    gives_way(&first, &upgraded.served, &second);
    upgraded.upgrade();
    gives_way(&first, &upgraded.served, &second);
    gives_way(&second, &stays, &first);
}

#[test]
fn cont_11_work_goes_on_while_the_schedule_is_dead_and_the_next_one_goes_on_with_all_daemons() {
    let mut broker = Broker::start();
    let daemons = ["a", "b"].map(|name| Served::with(&broker.config(name, "")));
    let vms = [connect(&daemons[0], "a"), connect(&daemons[1], "b")];
    let works = Device::open(vms[0].open("test").unwrap()).unwrap();
    let other = Device::open(vms[1].open("test").unwrap()).unwrap();
    for round in 0..3 {
        // The second has the node last, and keeps it when it sleeps.
        for device in [&works, &other] {
            fill(device, round, true).unwrap();
        }
        broker.kill();
        for value in 0..5 {
            fill(&other, value, value % 2 == 0).unwrap();
        }
        broker.start_again();
        for device in [&works, &other] {
            fill(device, round, false).unwrap();
            fill(device, round, true).unwrap();
        }
    }
    gives_way(&works, &daemons[0], &other);
}

#[test]
fn a_daemon_whose_schedule_is_not_there_does_not_start_and_says_which() {
    let folder = Folder::with(&format!("{QUIET}schedule = \"@/none\"\n{}", table("a", "")));
    let output = campanile(&["serve", "--config", &folder.config()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    let named = format!("schedule {}: No such file or directory", folder.file("none").display());
    assert!(said.contains(&named), "{said}");
}

#[test]
fn cont_20_two_schedules_do_not_share_a_socket() {
    let broker = Broker::start();
    let output = campanile(&["schedule", "--socket", broker.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("another process serves this socket"), "{said}");
    let served = Served::with(&broker.config("a", ""));
    let vm = connect(&served, "a");
    fill(&Device::open(vm.open("test").unwrap()).unwrap(), 1, true).unwrap();
}

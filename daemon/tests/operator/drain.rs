//! A daemon that is drained for maintenance.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::process::Stdio;

use campanile_guest_driver::device::Device;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use serde_json::Value;
use serde_json::json;

use crate::killed::Kept;
use crate::served::NEVER;
use crate::served::Served;
use crate::served::text;
use crate::served::until;
use crate::upgrade::Line;
use crate::upgrade::connect;
use crate::upgrade::once;
use crate::upgrade::table;

/// Connects to a vGPU that turns front-ends away, and sees the end of the connection.
fn is_turned_away(served: &Served, name: &str) {
    let mut stream = UnixStream::connect(served.folder.file(&format!("{name}.sock"))).unwrap();
    // One that is served waits for what it says first.
    stream.set_read_timeout(Some(NEVER)).unwrap();
    assert_eq!(stream.read(&mut [0]).expect("the end of the connection"), 0, "it was not asked anything");
}

/// What a command that the daemon refuses says.
fn refused(served: &Served, arguments: &[&str]) -> String {
    let output = served.ctl(arguments);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stdout));
    text(&output.stderr)
}

fn left(why: &str) -> Value {
    json!({ "drained": true, "vms": [{ "vgpu": "a", "moves": false, "why": why }] })
}

const NOWHERE: &str = "no --migrate-to says where it goes; move its VM, or stop it";

#[test]
fn cont_13_a_daemon_that_is_drained_takes_no_vm_and_serves_those_that_it_has_also_after_an_upgrade() {
    let mut line = Line::begin(&format!("{}{}", table("a", ""), table("b", "")));
    let vm = connect(&line.served, "a");
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let added = line.served.folder.file("c.sock");
    let spec = format!("name=c,socket={},vram=64M", added.display());
    assert_eq!(line.served.ask(&["drain"]), left(NOWHERE));
    for is_successor in [false, true] {
        if is_successor {
            line.upgrade();
        }
        assert_eq!(line.served.ask(&["status"])["drained"], true);
        is_turned_away(&line.served, "b");
        let why = refused(&line.served, &["vgpu", "add", &spec]);
        assert!(why.contains("this daemon is being drained") && !added.exists(), "{why}");
        once(&device);
        once(&Device::open(vm.open("new").unwrap()).unwrap());
    }
    // A vGPU that files name from now on is not made either.
    let before = std::fs::read_to_string(line.served.folder.file("campanile.toml")).unwrap();
    line.served.folder.write("campanile.toml", &format!("{before}{}", table("d", "")));
    let reloaded = line.served.ask(&["reload"]);
    assert!(reloaded["failed"][0].as_str().unwrap().starts_with("vGPU d: this daemon is being drained"));
    let over = line.served.ask(&["drain", "--off"]);
    assert_eq!(
        over,
        json!({ "drained": false, "vms": [{ "vgpu": "a", "moves": false, "why": "it stays" }] })
    );
    assert_eq!(line.served.ask(&["status"])["drained"], false);
    let other = connect(&line.served, "b");
    once(&Device::open(other.open("test").unwrap()).unwrap());
    line.served.ask(&["vgpu", "add", &spec]);
    once(&device);
}

#[test]
fn cont_13_a_daemon_that_is_drained_and_killed_is_followed_by_one_that_is_drained() {
    let kept = Kept::begin(&format!("{}{}", table("a", ""), table("b", "")));
    let vm = kept.connect("a");
    assert_eq!(kept.0.ask(&["drain"]), left(NOWHERE));
    // Twice: the second successor has it from the first.
    for _ in 0..2 {
        kept.kill();
        is_turned_away(&kept.0, "b");
        once(&Device::open(vm.open("test").unwrap()).unwrap());
    }
    kept.0.ask(&["drain", "--off"]);
    kept.kill();
    let other = kept.connect("b");
    once(&Device::open(other.open("test").unwrap()).unwrap());
}

#[test]
fn cont_13_what_can_move_begins_to_and_a_target_that_is_drained_takes_none() {
    let target = Served::with(&format!("migrate-listen = \"unix:@/door\"\n{}", table("a", "")));
    let to = format!("migrate-to = \"unix:{}\"\n", target.folder.file("door").display());
    let source = Served::with(&format!("{to}{}", table("a", "")));
    let vm = connect(&source, "a");
    let departure = || source.ask(&["migration"])["departures"][0].clone();
    let moves = json!({ "drained": true, "vms": [{ "vgpu": "a", "moves": true, "why": null }] });
    assert_eq!(target.ask(&["drain"]), json!({ "drained": true, "vms": [] }));
    assert_eq!(source.ask(&["drain"]), moves);
    until("a refusal", || departure()["phase"] == "idle");
    let why = departure()["last"].as_str().unwrap().to_owned();
    assert!(why.contains("this daemon is being drained"), "{why}");
    target.ask(&["drain", "--off"]);
    // Asked once more, it begins once more; asked while it moves, it goes on.
    for _ in 0..2 {
        assert_eq!(source.ask(&["drain"]), moves);
        until("a pass", || departure()["progress"]["passes"].as_array().is_some_and(|all| !all.is_empty()));
        assert_eq!(departure()["phase"], "brownout");
    }
    source.ask(&["call-off", "--vgpu", "a"]);
    once(&Device::open(vm.open("test").unwrap()).unwrap());
}

#[test]
fn cont_13_the_operator_can_wait_until_no_vm_is_left() {
    let served = Served::with(&format!("{}{}", table("a", ""), table("b", "")));
    let [a, b] = ["a", "b"].map(|name| connect(&served, name));
    let wait = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(["ctl", "--control"]).arg(served.folder.file("control")).args(["drain", "--wait"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let waits = wait();
    until("the drain", || served.ask(&["status"])["drained"] == true);
    drop(a);
    drop(b);
    let output = waits.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "no VM is left\n");
    assert!(text(&output.stderr).ends_with("left: none\n"));
    served.ask(&["drain", "--off"]);
    let _again = connect(&served, "a");
    let waits = wait();
    until("the drain", || served.ask(&["status"])["drained"] == true);
    served.ask(&["drain", "--off"]);
    let output = waits.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("VMs are taken again"), "{}", text(&output.stderr));
    assert!(LoopbackVm::connect(served.folder.file("b.sock"), &VmOptions::default()).is_ok());
}

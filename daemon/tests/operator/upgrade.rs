//! A daemon that is replaced by another under running guests.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use serde_json::Value;
use serde_json::json;

use crate::served::Folder;
use crate::served::NEVER;
use crate::served::QUIET;
use crate::served::Served;
use crate::served::text;
use crate::served::until;

const BYTES: u64 = 1 << 20;

pub(crate) fn table(name: &str, more: &str) -> String {
    format!("[[vgpu]]\nname = \"{name}\"\nsocket = \"@/{name}.sock\"\nvram = \"64M\"\n{more}")
}

pub(crate) fn connect(served: &Served, name: &str) -> Arc<LoopbackVm> {
    LoopbackVm::connect(served.folder.file(&format!("{name}.sock")), &VmOptions::default()).unwrap()
}

/// Ends the successor that `ctl upgrade` speaks of.
pub(crate) fn end(upgraded: &Value) {
    let pid = Pid::from_raw(i32::try_from(upgraded["pid"].as_u64().unwrap()).unwrap());
    kill_process(pid.unwrap(), Signal::TERM).unwrap();
}

/// A daemon that may have successors: the last of them is ended.
pub(crate) struct Line {
    pub(crate) served: Served,
    last: Option<Pid>,
}

impl Line {
    pub(crate) fn begin(config: &str) -> Self {
        Self::of(Served::with(config))
    }

    pub(crate) fn of(served: Served) -> Self {
        Self { served, last: None }
    }

    pub(crate) fn pid(&self) -> u64 {
        self.served.ask(&["status"])["daemon"]["pid"].as_u64().unwrap()
    }

    /// Has a successor go on, and waits for the predecessor's end.
    pub(crate) fn upgrade(&mut self) -> Value {
        self.try_upgrade().unwrap()
    }

    /// The same; why the daemon goes on as it was, if it does.
    pub(crate) fn try_upgrade(&mut self) -> Result<Value, String> {
        let before = self.pid();
        let output = self.served.ctl(&["--json", "upgrade"]);
        if !output.status.success() {
            return Err(text(&output.stderr));
        }
        let done: Value = serde_json::from_slice(&output.stdout).unwrap();
        self.last = Pid::from_raw(i32::try_from(done["pid"].as_u64().unwrap()).unwrap());
        until("the predecessor's end", || {
            let state = fs::read_to_string(format!("/proc/{before}/stat"));
            // The first of them is this process's child, and waited for at the end.
            state.map_or(true, |state| state.contains(") Z "))
        });
        assert_eq!(self.pid(), done["pid"].as_u64().unwrap());
        Ok(done)
    }

    /// The daemon goes on as it was.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let before = self.pid();
        let output = self.served.ctl(&[&["upgrade"], arguments].concat());
        assert_eq!(output.status.code(), Some(4), "{}", text(&output.stdout));
        assert_eq!(self.pid(), before);
        assert!(["a.sock", "control"].iter().all(|name| self.served.folder.file(name).exists()));
        text(&output.stderr)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(last) = self.last {
            let _ended = kill_process(last, Signal::TERM);
        }
    }
}

/// Ends what works, however a test ends.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fills a buffer with one value after the other, and reads back each; how often it has.
fn work(device: &Device, is_over: &AtomicBool, rounds: &AtomicU64, by_doorbell: bool) {
    let buffer = device.create_buffer(BYTES).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut kernel = context.create_kernel_queue().unwrap();
    let mut user = by_doorbell.then(|| context.create_user_queue(&QueueOptions::default()).unwrap());
    while !is_over.load(Ordering::Relaxed) {
        let value = u32::try_from(rounds.load(Ordering::Relaxed) % 1000).unwrap();
        let mut commands = CommandBuffer::new();
        commands.fill(buffer.va(), BYTES, value).unwrap();
        if let Some(user) = &mut user {
            user.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
        } else {
            let ticket = kernel.submit(&commands).unwrap();
            kernel.wait(ticket, Some(NEVER)).unwrap();
        }
        let mut words = [0; 4];
        for offset in [0, BYTES - 4] {
            buffer.read(offset, &mut words).unwrap();
            assert_eq!(u32::from_le_bytes(words), value, "round {rounds:?} at {offset}");
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// A fill that a guest sees end.
pub(crate) fn once(device: &Device) {
    let buffer = device.create_buffer(BYTES).unwrap();
    let mut commands = CommandBuffer::new();
    commands.fill(buffer.va(), BYTES, 9).unwrap();
    let mut queue = device.create_context(Node::Copy).unwrap().create_kernel_queue().unwrap();
    let ticket = queue.submit(&commands).unwrap();
    queue.wait(ticket, Some(NEVER)).unwrap();
}

#[test]
fn cont_01_guests_work_on_while_daemon_after_daemon_takes_their_vgpus_over() {
    let mut line = Line::begin(&format!("{}{}", table("a", ""), table("b", "")));
    let (a, b) = (connect(&line.served, "a"), connect(&line.served, "b"));
    let devices: Vec<(Device, bool)> = [(&a, false), (&a, true), (&b, false), (&b, true)]
        .into_iter()
        .map(|(vm, by_doorbell)| (Device::open(vm.open("test").unwrap()).unwrap(), by_doorbell))
        .collect();
    let (is_over, rounds) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 4]);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for ((device, by_doorbell), rounds) in devices.iter().zip(&rounds) {
            let is_over = &is_over;
            scope.spawn(move || work(device, is_over, rounds, *by_doorbell));
        }
        let all_go_on = || {
            let seen = rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
            until("rounds of all four", || {
                rounds.iter().zip(seen).all(|(rounds, seen)| rounds.load(Ordering::Relaxed) > seen + 2)
            });
        };
        all_go_on();
        for _ in 0..3 {
            let done = line.upgrade();
            assert_eq!((&done["vms"], &done["lost"]), (&json!(2), &json!([])));
            all_go_on();
        }
    });
}

#[test]
fn cont_01_engines_are_open_before_anything_stands_still_and_go_on_as_those_of_the_successor() {
    let mut line = Line::begin(&format!("{}{}{}", table("a", ""), table("b", ""), table("c", "")));
    let [a, b] = ["a", "b"].map(|name| connect(&line.served, name));
    // The second one has a device, and no engine yet.
    let [device, other] = [&a, &b].map(|vm| Device::open(vm.open("test").unwrap()).unwrap());
    // Without any context, an engine has nothing to go on with.
    let _context = device.create_context(Node::Copy).unwrap();
    once(&device);
    let engine = |line: &Line, vgpu: usize| {
        let status = line.served.ask(&["status"]);
        let engines = status["vgpus"][vgpu]["session"]["engines"].as_array().unwrap().clone();
        engines.into_iter().find(|engine| engine["node"] == "copy").unwrap()["pid"].clone()
    };
    for _ in 0..2 {
        let before = engine(&line, 0);
        let done = line.upgrade();
        until("an engine", || engine(&line, 0).is_number());
        assert_ne!(engine(&line, 0), before);
        assert_eq!(done["engines_opened"], json!([engine(&line, 0)]));
        assert_eq!(engine(&line, 1), Value::Null);
        once(&device);
    }
    once(&other);
}

#[test]
fn cont_01_engines_of_vgpus_that_were_made_at_run_time_are_open_ahead_too_each_as_a_user_of_its_own() {
    let mut line = Line::begin(&table("a", ""));
    for name in ["b", "c", "d"] {
        let socket = line.served.folder.file(&format!("{name}.sock"));
        line.served.ask(&["vgpu", "add", &format!("name={name},socket={},vram=64M", socket.display())]);
    }
    let vms = ["a", "b", "c", "d"].map(|name| connect(&line.served, name));
    let devices = vms.each_ref().map(|vm| Device::open(vm.open("test").unwrap()).unwrap());
    // One that was made has no engine, and those that have are on both sides of it.
    let [a, b, _, d] = &devices;
    let _contexts = [a, b, d].map(|device| device.create_context(Node::Copy).unwrap());
    [a, b, d].into_iter().for_each(once);
    let engines = |line: &Line| -> Vec<u64> {
        let status = line.served.ask(&["status"]);
        let vgpus = status["vgpus"].as_array().unwrap();
        let engines = vgpus.iter().flat_map(|vgpu| vgpu["session"]["engines"].as_array().unwrap().clone());
        engines.filter_map(|engine| engine["pid"].as_u64()).collect()
    };
    for _ in 0..2 {
        let done = line.upgrade();
        until("three engines", || engines(&line).len() == 3);
        assert_eq!(done["engines_opened"], json!(engines(&line)));
        let user = |pid: &u64| fs::metadata(format!("/proc/{pid}")).unwrap().uid();
        let users: Vec<u32> = engines(&line).iter().map(user).collect();
        let all: BTreeSet<u32> = users.iter().copied().collect();
        let has_users = fs::metadata(format!("/proc/{}", line.pid())).unwrap().uid() == 0;
        assert_eq!(all.len(), if has_users { 3 } else { 1 }, "{users:?}");
        [a, b, d].into_iter().for_each(once);
    }
}

#[test]
fn cont_03_sockets_go_with_the_vgpus_and_the_last_daemon_removes_their_files() {
    let mut line =
        Line::begin(&format!("metrics = \"unix:@/metrics\"\nstatus = \"@/status\"\n{}", table("a", "")));
    for _ in 0..2 {
        assert_eq!(line.upgrade()["vms"], 0);
    }
    let files = ["a.sock", "control", "metrics", "status"];
    for name in files {
        UnixStream::connect(line.served.folder.file(name)).unwrap();
    }
    let a = connect(&line.served, "a");
    once(&Device::open(a.open("test").unwrap()).unwrap());
    kill_process(line.last.take().unwrap(), Signal::TERM).unwrap();
    until("the end of the files", || files.iter().all(|name| !line.served.folder.file(name).exists()));
}

#[test]
fn the_service_manager_is_told_which_process_is_the_service() {
    let folder = Folder::with(&format!("{QUIET}{}", table("a", "")));
    let manager = UnixDatagram::bind(folder.file("notify")).unwrap();
    manager.set_read_timeout(Some(NEVER)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env("NOTIFY_SOCKET", folder.file("notify"));
    let mut line = Line::of(Served::run(folder, command, &[], Stdio::inherit()));
    let pid = line.upgrade()["pid"].as_u64().unwrap();
    let mut said = Vec::new();
    while said.last() != Some(&format!("MAINPID={pid}")) {
        let mut words = [0; 64];
        let length = manager.recv(&mut words).unwrap();
        said.push(text(&words[..length]));
    }
    // Beside what it has the manager keep for it.
    said.retain(|words| !words.starts_with("FDSTORE"));
    assert_eq!(said[0], "READY=1");
}

#[test]
fn cont_04_what_the_operator_made_and_set_is_there_after_an_upgrade() {
    let mut line = Line::begin(&table("a", ""));
    let spec = format!("name=b,socket={},vram=64M", line.served.folder.file("b.sock").display());
    line.served.ask(&["vgpu", "add", &spec]);
    for values in [["weight=500", "cap=50"], ["weight=700", "cap=60"]] {
        line.served.ask(&["vgpu", "set", "b", values[0], values[1]]);
    }
    let b = connect(&line.served, "b");
    let device = Device::open(b.open("test").unwrap()).unwrap();
    for _ in 0..2 {
        line.upgrade();
        let status = line.served.ask(&["status"]);
        let vgpus = status["vgpus"].as_array().unwrap();
        assert_eq!(vgpus.len(), 2);
        assert_eq!((&vgpus[1]["tuning"]["weight"], &vgpus[1]["vm_connected"]), (&json!(700), &json!(true)));
        once(&device);
    }
}

#[test]
fn cont_05_a_connection_that_went_to_a_successor_is_whole() {
    let mut line = Line::begin(&table("a", ""));
    let a = connect(&line.served, "a");
    let device = Device::open(a.open("test").unwrap()).unwrap();
    line.upgrade();
    once(&device);
    a.reset_device().unwrap();
    assert!(device.create_buffer(BYTES).is_err(), "a guest that began anew has lost its devices");
    once(&Device::open(a.open("again").unwrap()).unwrap());
    line.upgrade();
    a.hang_up();
    until("the VM's end", || line.served.ask(&["status"])["vgpus"][0]["vm_connected"] == false);
    let other = connect(&line.served, "a");
    once(&Device::open(other.open("test").unwrap()).unwrap());
}

#[test]
fn cont_02_a_program_that_cannot_go_on_is_told_of_and_the_daemon_goes_on() {
    let line = Line::begin(&table("a", ""));
    let vm = connect(&line.served, "a");
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let program = |name: &str, text: &str| {
        line.served.folder.write(name, text);
        let file = line.served.folder.file(name);
        fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let said = line.refused(&["--binary", "/nonexistent/campanile"]);
    assert!(said.contains("/nonexistent/campanile: No such file"), "{said}");
    let said = line.refused(&["--binary", &program("ends", "#!/bin/sh\nexit 7\n")]);
    assert!(said.contains("has ended (exit status: 7)"), "{said}");
    let said = line.refused(&[
        "--binary",
        &program("babbles", "#!/bin/sh\nprintf 'no such message' >&0\nexec sleep 60\n"),
    ]);
    assert!(said.contains("a message of"), "{said}");
    // The configuration is read again, and wrong by now; or right, and without a vGPU that is in use.
    let config = fs::read_to_string(line.served.folder.file("campanile.toml")).unwrap();
    line.served.folder.write("campanile.toml", &format!("{config}weigth = 1\n"));
    let said = line.refused(&[]);
    assert!(said.contains("weigth"), "{said}");
    line.served.folder.write("campanile.toml", &config.replace("\"a\"", "\"c\"").replace("a.sock", "c.sock"));
    let said = line.refused(&[]);
    assert!(said.contains("vGPU a has a VM, and is not in the configuration"), "{said}");
    line.served.folder.write("campanile.toml", &config.replace("64M", "96M"));
    let said = line.refused(&[]);
    assert!(said.contains("vGPU a: ") && said.contains("video memory"), "{said}");
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| work(&device, &is_over, &rounds, true));
        until("rounds", || rounds.load(Ordering::Relaxed) > 3);
    });
}

#[test]
fn a_process_that_no_daemon_has_started_is_no_successor() {
    let folder = Folder::with(&table("a", ""));
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.args(["serve", "--config", &folder.config()]).env("CAMPANILE_SUCCESSOR", "1");
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("upgrade: "), "{}", text(&output.stderr));
}

//! The conformance suite of the guest tool on the loopback transport, and the tool's commands, over a daemon of its own.
//! `./ci/e2e-qemu` runs the same suite in a VM, on the drm transport.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::time::Duration;
use std::time::Instant;

use campanile_fault_layer::faults::Faults;
use campanile_guest::selftest::check::Check;
use campanile_guest::selftest::checks;
use campanile_guest::target::Machine;
use campanile_guest::target::Target;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::options::DeviceKind;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use tempfile::TempDir;

/// How long anything in these tests may take before it counts as never.
const NEVER: Duration = Duration::from_secs(60);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < NEVER, "this never came: {what}");
        std::thread::yield_now();
    }
}

struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a.sock");
        Self::serve(folder, &["--vram", "64M", "--socket", socket.to_str().unwrap()], arguments)
    }

    /// A vGPU behind the fs front.
    fn on_fs(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a.sock");
        let vgpu = format!("name=a,socket={},vram=64M,front=fs", socket.display());
        Self::serve(folder, &["--vgpu", &vgpu], arguments)
    }

    /// With engines on a Vulkan device that imports no host memory.
    fn without_imports() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let faults = Faults::install(folder.path()).unwrap();
        faults.hide(&["VK_EXT_external_memory_host"]).unwrap();
        let socket = folder.path().join("a.sock");
        let vgpu = ["--vram", "64M", "--socket", socket.to_str().unwrap()];
        Self::serve_with(folder, &faults.environment(), &vgpu, &[])
    }

    fn serve(folder: TempDir, vgpu: &[&str], arguments: &[&str]) -> Self {
        Self::serve_with(folder, &[], vgpu, arguments)
    }

    fn serve_with(folder: TempDir, under: &[(&str, String)], vgpu: &[&str], arguments: &[&str]) -> Self {
        let socket = folder.path().join("a.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.arg("serve").args(vgpu).args(arguments);
        command.envs(under.iter().map(|(name, value)| (name, value)));
        let daemon = Self { child: command.spawn().unwrap(), folder };
        until("the daemon listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        daemon
    }

    fn target(&self, claim_protocol: Option<u16>) -> Target {
        let socket: PathBuf = self.folder.path().join("a.sock");
        Target { socket: Some(socket), claim_protocol, transport: None }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn all_hold(daemon: &Daemon) {
    hold_on(checks(), &daemon.target(None).machine().unwrap());
}

fn hold_on(checks: Vec<Check>, machine: &Machine) {
    for check in checks {
        (check.holds)(machine).unwrap_or_else(|error| panic!("{}: {error:#}", check.claim));
    }
}

#[test]
fn the_suite_holds_on_loopback() {
    all_hold(&Daemon::start(&[]));
}

#[test]
fn the_suite_holds_without_a_window() {
    all_hold(&Daemon::start(&["--no-window"]));
}

#[test]
fn the_suite_holds_where_what_kernels_bind_is_copied_to_the_device_and_back() {
    all_hold(&Daemon::without_imports());
}

/// A VM whose device is a virtiofs one.
fn fs_machine(daemon: &Daemon) -> Machine {
    let options = VmOptions { device: DeviceKind::Fs, ..VmOptions::default() };
    let socket = daemon.folder.path().join("a.sock");
    Machine::LoopbackFs(LoopbackVm::connect(&socket, &options).unwrap())
}

/// Registers the pages of more queues than reads fit into the ring of this VM.
const TAKES_MANY_READS: &str = "more queues than the node has doorbells take turns, and all get done";

#[test]
fn the_suite_holds_on_the_fs_front() {
    let checks = checks();
    let (long, rest): (Vec<_>, Vec<_>) =
        checks.into_iter().partition(|check| check.claim == TAKES_MANY_READS);
    assert_eq!(long.len(), 1);
    hold_on(rest, &fs_machine(&Daemon::on_fs(&[])));
}

#[test]
fn user_mode_work_sends_nothing_but_connects_where_engines_sleep_after_each_submission() {
    let daemon = Daemon::on_fs(&["--spin", "0"]);
    let machine = fs_machine(&daemon);
    let claim = "user-mode work sends no commands";
    let check = *checks().iter().find(|check| check.claim == claim).unwrap();
    (check.holds)(&machine).unwrap();
    let device = machine.open().unwrap();
    let mut queue =
        device.create_context(Node::Copy).unwrap().create_user_queue(&QueueOptions::default()).unwrap();
    for _ in 0..3 {
        queue.submit(&CommandBuffer::new()).unwrap().spin().unwrap();
        until("its engine is asleep", || !queue.is_connected());
    }
    let (messages, commands) = (queue.reconnects(), queue.connect_commands());
    assert_eq!(messages, 3);
    assert!(commands > messages, "{commands} commands for {messages} messages");
}

#[test]
fn another_protocol_version_is_refused_with_advice() {
    let daemon = Daemon::start(&[]);
    let refused = daemon.target(Some(2)).open().unwrap_err().to_string();
    assert!(refused.contains("the daemon speaks protocol 1.1, this program 2.0: install"), "{refused}");
}

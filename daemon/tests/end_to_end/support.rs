//! A daemon of its own for each test, and guests that attach to it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_daemon::sched::broker::line::Line;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::transport::error::TransportError;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use tempfile::TempDir;

/// With this variable, as `ci/full` sets it, all these daemons have another doorbell model (UMS-08); tests that are
/// about one model ask for it.
pub(crate) const MODEL: &str = "CAMPANILE_TEST_DOORBELL_MODEL";

/// With this variable all these daemons have local memory there; tests that are about one place ask for it.
pub(crate) const LOCAL_MEMORY: &str = "CAMPANILE_TEST_LOCAL_MEMORY";

/// With this variable a `campanile schedule` gives turns to each of these daemons, in place of its own supervisor.
pub(crate) const SCHEDULE: &str = "CAMPANILE_TEST_SCHEDULE";

/// How long anything in these tests may take before it counts as never.
pub(crate) const NEVER: Duration = Duration::from_secs(60);

/// Waits until `holds` does; without end it is a failure that says what never came.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < NEVER, "this never came: {what}");
        std::thread::yield_now();
    }
}

/// Tells threads to end when it is dropped, also by a panic.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Where the environment wants local memory, for a daemon with these arguments: nothing where they say it themselves.
fn local_place(arguments: &[&str]) -> Option<OsString> {
    let place = std::env::var_os(LOCAL_MEMORY).filter(|_| !arguments.contains(&"--local-memory"))?;
    let is_linked = |pair: &&[&str]| matches!(pair, ["--vulkan-device", devices] if devices.contains(','));
    let is_protected = |pair: &&[&str]| matches!(pair, ["--dirty-tracking", "write-protect"]);
    let cannot = arguments.windows(2).find(|pair| is_linked(pair) || is_protected(pair));
    if let Some(pair) = cannot.filter(|_| place == "device") {
        eprintln!(
            "local memory is the host's in this test: {} cannot be with a device's yet",
            pair.join(" ")
        );
        return None;
    }
    Some(place)
}

/// The broker of turns of a daemon with these arguments, and its socket, where the environment wants one.
fn start_schedule(folder: &TempDir, arguments: &[&str]) -> Option<(Child, PathBuf)> {
    std::env::var_os(SCHEDULE)?;
    let path = folder.path().join("schedule");
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("schedule").arg("--socket").arg(&path);
    if !arguments.contains(&"--cpu-latency") {
        command.args(["--cpu-latency", "off"]);
    }
    for pair in arguments.windows(2) {
        if matches!(pair, ["--scheduler" | "--normal-share" | "--cpu-latency", _]) {
            command.args(pair);
        }
    }
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    until("the schedule", || Line::connect(&path).is_ok());
    Some((child, path))
}

/// A `campanile serve` process.
pub(crate) struct Daemon {
    child: Child,
    schedule: Option<Child>,
    folder: TempDir,
}

impl Daemon {
    /// With one vGPU of 64 MiB.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// With one vGPU, and more arguments.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        Self::with_vgpus(1, arguments)
    }

    /// With `doorbells` physical doorbells a node, and engines that stay awake for the length of a test, so that
    /// nothing but the test disconnects a doorbell.
    pub(crate) fn steady(doorbells: u32) -> Self {
        Self::with(&["--doorbells", &doorbells.to_string(), "--spin", "600000000"])
    }

    /// As [`Self::steady`], with the dedicated model whatever the environment says.
    pub(crate) fn dedicated(doorbells: u32) -> Self {
        Self::of_model("dedicated", doorbells)
    }

    /// As [`Self::steady`], with this doorbell model.
    pub(crate) fn of_model(model: &str, doorbells: u32) -> Self {
        let doorbells = doorbells.to_string();
        Self::with(&["--doorbells", &doorbells, "--spin", "600000000", "--doorbell-model", model])
    }

    /// With several vGPUs, named v0, v1, ….
    pub(crate) fn with_vgpus(count: usize, arguments: &[&str]) -> Self {
        Self::with_shares(&vec![""; count], arguments)
    }

    /// With one vGPU of 64 MiB for each share, such as `weight=300,bands=realtime`; an empty one says nothing.
    pub(crate) fn with_shares(shares: &[&str], arguments: &[&str]) -> Self {
        let spec = |share: &&str| match *share {
            "" => "vram=64M".to_owned(),
            share => format!("vram=64M,{share}"),
        };
        let specs: Vec<String> = shares.iter().map(spec).collect();
        Self::with_specs(&specs.iter().map(String::as_str).collect::<Vec<_>>(), arguments)
    }

    /// With several vGPUs, named v0, v1, …, each with this of its own.
    pub(crate) fn with_specs(specs: &[&str], arguments: &[&str]) -> Self {
        Self::changed(specs, arguments, |_| ())
    }

    /// As [`Self::with_specs`], started as `change` has it.
    pub(crate) fn changed(specs: &[&str], arguments: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let count = specs.len();
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.arg("serve");
        for (index, spec) in specs.iter().enumerate() {
            let socket = folder.path().join(format!("v{index}.sock"));
            command.arg("--vgpu").arg(format!("name=v{index},socket={},{spec}", socket.display()));
        }
        if let Some(model) = std::env::var_os(MODEL).filter(|_| !arguments.contains(&"--doorbell-model")) {
            command.arg("--doorbell-model").arg(model);
        }
        let schedule = start_schedule(&folder, arguments).map(|(child, path)| {
            command.arg("--schedule").arg(path);
            child
        });
        if let Some(place) = local_place(arguments) {
            command.arg("--local-memory").arg(place);
        }
        // Most tests look at the processes that run; a spare would be one more.
        if !arguments.contains(&"--spares") {
            command.args(["--spares", "off"]);
        }
        // It is the whole machine's, where other tests run.
        if !arguments.contains(&"--cpu-latency") {
            command.args(["--cpu-latency", "off"]);
        }
        command.args(arguments).stdin(Stdio::null());
        change(&mut command);
        let child = command.spawn().unwrap();
        let daemon = Self { child, schedule, folder };
        let begun = Instant::now();
        while !(0..count).all(|index| daemon.socket(index).exists()) {
            assert!(begun.elapsed() < NEVER, "the daemon does not listen");
            std::thread::yield_now();
        }
        daemon
    }

    pub(crate) fn socket(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("v{index}.sock"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A VM on vGPU `index`.
    pub(crate) fn vm(&self, index: usize) -> Arc<LoopbackVm> {
        self.vm_with(index, &VmOptions::default())
    }

    pub(crate) fn vm_with(&self, index: usize, options: &VmOptions) -> Arc<LoopbackVm> {
        let begun = Instant::now();
        loop {
            match LoopbackVm::connect(self.socket(index), options) {
                // The socket has its name before anybody listens.
                Err(TransportError::Connect { source, .. })
                    if source.kind() == ErrorKind::ConnectionRefused && begun.elapsed() < NEVER =>
                {
                    std::thread::yield_now();
                }
                connected => return connected.unwrap(),
            }
        }
    }

    /// A VM on the first vGPU, with one open device.
    pub(crate) fn device(&self) -> (Arc<LoopbackVm>, Device) {
        let vm = self.vm(0);
        let device = Device::open(vm.open("test").unwrap()).unwrap();
        (vm, device)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for child in [Some(&mut self.child), self.schedule.as_mut()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

//! A `campanile serve` process whose log can be read.

use std::fs;
use std::fs::DirEntry;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::transport::error::TransportError;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use tempfile::TempDir;

/// How long anything in these tests may take before it counts as never.
pub(crate) const NEVER: Duration = Duration::from_secs(60);

/// Polls until `condition`, or fails with `what`.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < NEVER, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The process.
pub(crate) struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    /// With `count` vGPUs of 64 MiB, and no Vulkan: these tests are about the daemon.
    pub(crate) fn start(count: usize, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.arg("serve");
        for index in 0..count {
            let socket = folder.path().join(format!("v{index}.sock"));
            command.arg("--vgpu").arg(format!("name=v{index},socket={},vram=64M", socket.display()));
        }
        for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
            command.env(variable, "/nonexistent");
        }
        command.env_remove("CAMPANILE_VULKAN_DRIVER").env("RUST_LOG", "info");
        // Engines are to have what is named here, whatever this test was started with.
        for variable in ["LD_LIBRARY_PATH", "CAMPANILE_VULKAN_LIBRARY_PATH", "RUST_BACKTRACE"] {
            command.env_remove(variable);
        }
        // Most of these tests look at the processes that run; a spare would be one more.
        if !arguments.contains(&"--spares") {
            command.args(["--spares", "off"]);
        }
        let child = command.args(arguments).stdin(Stdio::null()).stderr(log).spawn().unwrap();
        Self::listening(child, folder, count)
    }

    /// One that was started over this folder, where its sockets and its log are, once it listens.
    pub(crate) fn listening(child: Child, folder: TempDir, count: usize) -> Self {
        let daemon = Self { child, folder };
        until("the daemon listens", || (0..count).all(|index| daemon.socket(index).exists()));
        daemon
    }

    /// Where its sockets are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn socket(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("v{index}.sock"))
    }

    /// A VM on vGPU `index`.
    pub(crate) fn vm(&self, index: usize) -> Arc<LoopbackVm> {
        let mut vm = None;
        // The socket has its name before anything listens.
        until("the daemon takes a connection", || {
            match LoopbackVm::connect(self.socket(index), &VmOptions::default()) {
                Err(TransportError::Connect { source, .. })
                    if source.kind() == ErrorKind::ConnectionRefused => {}
                connected => vm = Some(connected.unwrap()),
            }
            vm.is_some()
        });
        vm.unwrap()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it has said so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// The process of the newest engine of vGPU `index`, as the log names it.
    pub(crate) fn engine(&self, index: usize) -> u32 {
        let (log, mark) = (self.log(), format!("v{index}: copy engine is process "));
        let line = log.lines().rev().find_map(|line| line.split_once(&mark));
        line.unwrap_or_else(|| panic!("no engine of v{index} in\n{log}")).1.trim().parse().unwrap()
    }

    /// Child processes that are not zombies.
    pub(crate) fn children(&self) -> Vec<u32> {
        let parent = self.child.id().to_string();
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
            let (state, of) = (fields.next()?, fields.next()?);
            (of == parent && state != "Z").then_some(pid)
        });
        processes.collect()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Open descriptors and mappings of the daemon process.
    pub(crate) fn footprint(&self) -> (usize, usize) {
        let pid = self.child.id();
        // What it reads of processes is open for a moment, several times a second.
        let is_kept = |entry: &DirEntry| fs::read_link(entry.path()).is_ok_and(|to| !to.starts_with("/proc"));
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().filter(is_kept).count();
        (descriptors, fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines().count())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! A daemon of one's own, as a child process.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use campanile_daemon::sched::broker::line::Line;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use tempfile::TempDir;

/// How long a daemon may take to listen: its probe starts a Vulkan driver first.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks for the socket.
const LOOK: Duration = Duration::from_millis(5);

/// A `campanile schedule` process.
#[derive(Debug)]
pub struct ScheduleProcess {
    child: Child,
    folder: TempDir,
}

impl ScheduleProcess {
    /// Starts one, and waits until it listens.
    pub fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for the socket")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("schedule").arg("--socket").arg(folder.path().join("schedule"));
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting the schedule")?;
        let schedule = Self { child, folder };
        let begun = Instant::now();
        while Line::connect(&schedule.socket()).is_err() {
            anyhow::ensure!(begun.elapsed() < LIMIT, "the schedule does not listen");
            std::thread::sleep(LOOK);
        }
        Ok(schedule)
    }

    /// Where daemons connect.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("schedule")
    }
}

impl Drop for ScheduleProcess {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A `campanile serve` process.
#[derive(Debug)]
pub struct DaemonProcess {
    child: Child,
    folder: TempDir,
    vgpus: usize,
    is_keeper: bool,
}

impl DaemonProcess {
    /// Starts one with one vGPU and these settings of `campanile serve`, and waits until it listens.
    pub fn start(settings: &[OsString]) -> anyhow::Result<Self> {
        Self::with_vgpus(&[""], settings)
    }

    /// With one vGPU, which has this memory: `vram=` and whatever stands beside it.
    pub fn with_memory(memory: &str, settings: &[OsString]) -> anyhow::Result<Self> {
        Self::with_specs(&[memory.to_owned()], settings)
    }

    /// Starts one with a vGPU for each of `vgpus`, which are called v0, v1, …: what each says stands behind name, socket
    /// and memory in `--vgpu`, such as `weight=3`.
    pub fn with_vgpus(vgpus: &[&str], settings: &[OsString]) -> anyhow::Result<Self> {
        let comma = |more: &str| if more.is_empty() { "" } else { "," };
        let specs: Vec<_> = vgpus.iter().map(|more| format!("vram=512M{}{more}", comma(more))).collect();
        Self::with_specs(&specs, settings)
    }

    /// Starts one with vGPUs v0, v1, … of these specifications: `vram=` and whatever stands beside it.
    pub fn with_specs(specs: &[String], settings: &[OsString]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for the sockets")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg("--control").arg(folder.path().join("control")).args(settings);
        for (index, spec) in specs.iter().enumerate() {
            let socket = folder.path().join(format!("v{index}.sock"));
            let spec = format!("name=v{index},socket={},{spec}", socket.display());
            command.arg("--vgpu").arg(spec);
        }
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting the daemon")?;
        let is_keeper = settings.iter().any(|setting| setting == "--respawn" || setting == "--workers");
        let mut daemon = Self { child, folder, vgpus: specs.len(), is_keeper };
        let begun = Instant::now();
        while !daemon.is_there() {
            if let Some(status) = daemon.child.try_wait()? {
                anyhow::bail!("the daemon ended while it started: {status}");
            }
            anyhow::ensure!(
                begun.elapsed() < LIMIT,
                "the daemon does not listen after {} s",
                LIMIT.as_secs()
            );
            // The daemon tells nobody when its socket is there.
            std::thread::sleep(LOOK);
        }
        Ok(daemon)
    }

    fn is_there(&self) -> bool {
        (0..self.vgpus).all(|index| self.socket_of(index).exists()) && self.control().exists()
    }

    /// The socket of its first vGPU.
    pub fn socket(&self) -> PathBuf {
        self.socket_of(0)
    }

    /// The socket of a vGPU.
    pub fn socket_of(&self, vgpu: usize) -> PathBuf {
        self.folder.path().join(format!("v{vgpu}.sock"))
    }

    /// Its control socket.
    pub fn control(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        // It may have ended already. A keeper that is killed leaves its daemon, and so does what has started workers.
        let keeper = self.is_keeper.then(|| kill_process(Pid::from_child(&self.child), Signal::TERM));
        if keeper.is_none_or(|told| told.is_err()) {
            let _ended = self.child.kill();
        }
        let _reaped = self.child.wait();
    }
}

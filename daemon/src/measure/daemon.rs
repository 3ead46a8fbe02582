//! A daemon of one's own, as a child process.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use tempfile::TempDir;

/// How long a daemon may take to listen: its probe starts a Vulkan driver first.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks for the socket.
const LOOK: Duration = Duration::from_millis(5);

/// A `campanile serve` process with one vGPU.
#[derive(Debug)]
pub struct DaemonProcess {
    child: Child,
    folder: TempDir,
}

impl DaemonProcess {
    /// Starts one with these settings of `campanile serve`, and waits until it listens.
    pub fn start(settings: &[OsString]) -> anyhow::Result<Self> {
        Self::start_vgpu("vram=512M", settings)
    }

    /// With a vGPU of this kind, as in `--vgpu`.
    pub fn start_vgpu(spec: &str, settings: &[OsString]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for the socket")?;
        let mut command = Command::new(std::env::current_exe()?);
        let socket = folder.path().join("vgpu.sock");
        command.arg("serve").arg("--vgpu").arg(format!("name=bench,socket={},{spec}", socket.display()));
        command.args(settings);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting the daemon")?;
        let mut daemon = Self { child, folder };
        let begun = Instant::now();
        while !daemon.socket().exists() {
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

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("vgpu.sock")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

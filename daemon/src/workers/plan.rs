//! Which processes are started, and with which command lines.

use std::ffi::OsString;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Uid;

use super::folder::Folder;
use crate::host::heartbeat;
use crate::service_manager::STORE_BEHIND;

/// How long a schedule may give no sign of life, where the environment does not say it.
const SILENCE: Duration = Duration::from_secs(30);

/// What is started, and how.
#[derive(Debug)]
pub struct Plan {
    /// Where all find each other.
    pub folder: Folder,
    /// The program.
    pub program: PathBuf,
    /// The arguments of a worker, but for which vGPU it serves.
    pub arguments: Vec<OsString>,
    /// The file of the configuration, to be named where more is said on the command line than there is.
    pub config: Option<PathBuf>,
    /// The user as which workers serve, where that is another than this process's.
    pub user: Option<Uid>,
    /// The arguments of the schedule; none where the operator names that of another process.
    pub schedule: Option<Vec<OsString>>,
}

impl Plan {
    /// The command that starts the schedule, where it is this process's.
    pub(super) fn schedule(&self) -> Option<Command> {
        let mut command = Command::new(&self.program);
        command.arg("schedule").args(self.schedule.as_ref()?);
        command.env(heartbeat::SILENCE, silence().as_micros().to_string());
        Some(prepared(command, &self.folder.schedule_notify()))
    }

    /// The command that starts the keeper of a vGPU's worker, with the words in which the operator has made the vGPU.
    pub(super) fn worker(&self, vgpu: &str, made: Option<&str>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("serve").args(&self.arguments).arg(format!("--worker={vgpu}"));
        if let Some(spec) = made {
            command.args(self.config.iter().flat_map(|file| ["--config".as_ref(), file.as_os_str()]));
            command.arg("--vgpu").arg(spec);
        }
        command.env(STORE_BEHIND, "1");
        prepared(command, &self.folder.notify(vgpu))
    }
}

/// How long the schedule may give no sign of life while it serves.
pub(super) fn silence() -> Duration {
    heartbeat::silence().unwrap_or(SILENCE)
}

/// What a service manager is to this process, this process is to what it starts.
fn prepared(mut command: Command, notify: &Path) -> Command {
    command.env("NOTIFY_SOCKET", notify).stdin(Stdio::null());
    for handed in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID"] {
        command.env_remove(handed);
    }
    command
}

//! A daemon with a folder of its own, configured by a file there.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before it counts as never.
pub(crate) const NEVER: Duration = Duration::from_secs(60);

/// What is said in each file: nothing of the machine is changed, and nothing is started ahead.
pub(crate) const QUIET: &str = "spares = \"off\"\ncpu-latency = \"off\"\ncontrol = \"@/control\"\n";

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < NEVER, "this never came: {what}");
        std::thread::yield_now();
    }
}

/// The program, with these arguments.
pub(crate) fn campanile(arguments: &[&str]) -> Output {
    // What the environment says wins over files.
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env_remove("CAMPANILE_VULKAN_DRIVER").args(arguments).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A folder with a configuration.
pub(crate) struct Folder(TempDir);

impl Folder {
    /// With this main file; `@` stands for the folder.
    pub(crate) fn with(config: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("campanile.toml", config);
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, contents: &str) {
        let file = self.file(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, contents.replace('@', self.path().to_str().unwrap())).unwrap();
    }

    pub(crate) fn config(&self) -> String {
        self.file("campanile.toml").to_str().unwrap().to_owned()
    }
}

/// `campanile serve` of such a folder.
pub(crate) struct Served {
    pub(crate) folder: Folder,
    child: Child,
    command: Command,
}

impl Served {
    /// With this main file, and what keeps tests apart.
    pub(crate) fn with(config: &str) -> Self {
        Self::of(Folder::with(&format!("{QUIET}{config}")), &[])
    }

    pub(crate) fn of(folder: Folder, arguments: &[&str]) -> Self {
        Self::logging(folder, arguments, Stdio::inherit())
    }

    /// The same, with its log there.
    pub(crate) fn logging(folder: Folder, arguments: &[&str], log: Stdio) -> Self {
        Self::run(folder, Command::new(env!("CARGO_BIN_EXE_campanile")), arguments, log)
    }

    /// The same, by this command.
    pub(crate) fn run(folder: Folder, mut command: Command, arguments: &[&str], log: Stdio) -> Self {
        command.args(["serve", "--config", &folder.config()]);
        // As `ci/full` has it; tests that are about one place say so.
        if let Ok(place) = std::env::var("CAMPANILE_TEST_LOCAL_MEMORY")
            && !fs::read_to_string(folder.config()).unwrap().contains("local-memory")
        {
            command.args(["--local-memory", &place]);
        }
        command.args(arguments).stdin(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap();
        let served = Self { child, folder, command };
        served.wait_until_served();
        served
    }

    fn wait_until_served(&self) {
        until("the control socket", || UnixStream::connect(self.folder.file("control")).is_ok());
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again.
    pub(crate) fn start_again(&mut self) {
        self.child = self.command.spawn().unwrap();
        self.wait_until_served();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// With what exit code it has ended, if it has.
    pub(crate) fn has_ended(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().unwrap())
    }

    pub(crate) fn ctl(&self, arguments: &[&str]) -> Output {
        let control = self.folder.file("control");
        campanile(&[&["ctl", "--control", control.to_str().unwrap()], arguments].concat())
    }

    /// The answer to a command that succeeds.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(&[&["--json"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

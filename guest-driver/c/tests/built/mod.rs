//! What cargo built of this workspace for tests of programs in C: the libraries with a VM in the calling process, and the daemon.

use std::env;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use tempfile::TempDir;

/// How long a daemon may take to listen.
const NEVER: Duration = Duration::from_secs(60);

/// A VM in the program that is tested. All tests that build ask for the same, so that they build it once; and so does ci/lib.sh.
const LOOPBACK: &str = "campanile-guest-driver-c/loopback,campanile-vulkan/loopback";

/// target/PROFILE: tests are target/PROFILE/deps/NAME.
fn folder_of_profile() -> PathBuf {
    env::current_exe().unwrap().ancestors().nth(2).unwrap().to_path_buf()
}

/// Builds the workspace, as far as it is not, and says where: a plain test of a library leaves no shared object that could be found,
/// nor a daemon. With `CAMPANILE_BUILT` in the environment it is built.
pub(crate) fn folder() -> PathBuf {
    let built = folder_of_profile();
    if env::var_os("CAMPANILE_BUILT").is_some() {
        let libraries = ["libvulkan_campanile.so", "libcampanile.so"].map(|name| built.join(name));
        assert!(
            libraries.iter().all(|library| library.exists()),
            "CAMPANILE_BUILT, and one is missing: {libraries:?}"
        );
        return built;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--workspace", "--all-targets", "--features", LOOPBACK])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    cargo.env("CARGO_TARGET_DIR", built.parent().unwrap());
    // Of this package; build scripts that watch it (ring's) would run again, and half of the workspace be built again.
    let is_of_package = |name: &str| {
        name == "OUT_DIR" || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_package) {
            cargo.env_remove(name);
        }
    }
    if built.ends_with("release") {
        cargo.arg("--release");
    }
    printed(&mut cargo);
    built
}

/// What a command prints; fails with all of it where the command does.
pub(crate) fn printed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// A `campanile serve` process with one vGPU, of 64 MiB where its arguments do not say how much.
pub(crate) struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    /// With further arguments of `campanile serve`.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(folder_of_profile().join("campanile"));
        command.args(["serve", "--socket"]).arg(folder.path().join("a.sock")).args(arguments);
        if !arguments.contains(&"--vram") {
            command.args(["--vram", "64M"]);
        }
        let daemon = Self { child: command.stdin(Stdio::null()).spawn().unwrap(), folder };
        let begun = Instant::now();
        // The socket has its name before the daemon listens.
        while std::os::unix::net::UnixStream::connect(daemon.socket()).is_err() {
            assert!(begun.elapsed() < NEVER, "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("a.sock")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

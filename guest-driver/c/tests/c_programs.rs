//! C programs, built by the system's compiler against the installed library, on a daemon of their own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::env;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;
use std::time::Instant;

use tempfile::TempDir;

/// How long a daemon may take to listen.
const NEVER: Duration = Duration::from_secs(60);

/// A VM in the program that is tested.
const LOOPBACK: &str = "campanile-guest-driver-c/loopback";

/// The library, installed as a user does it.
static INSTALLED: LazyLock<Installed> = LazyLock::new(Installed::new);

/// A folder of this crate.
fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What a command prints; fails with all of it where the command does.
fn printed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

#[derive(Clone, Copy)]
enum Linking {
    Shared,
    Archive,
    /// Without any shared library, as in an initramfs.
    Static,
}

struct Installed {
    prefix: TempDir,
    built: PathBuf,
}

impl Installed {
    fn new() -> Self {
        // This test is target/PROFILE/deps/NAME; a plain test of the library leaves no `libcampanile.so` that could
        // be found, nor a daemon.
        let exe = env::current_exe().unwrap();
        let built = exe.ancestors().nth(2).unwrap().to_path_buf();
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["build", "--quiet", "--workspace", "--all-targets", "--features", LOOPBACK])
            .current_dir(here("../.."));
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
        let prefix = tempfile::tempdir().unwrap();
        let mut install = Command::new(here("install"));
        printed(install.arg(prefix.path()).arg("--from").arg(&built));
        Self { prefix, built }
    }

    fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(arguments).arg("campanile");
        command.env("PKG_CONFIG_PATH", self.prefix.path().join("lib/pkgconfig"));
        printed(&mut command).split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles `source` with all warnings as errors.
    fn compile(&self, source: &str, linking: Linking) -> PathBuf {
        let program = self.prefix.path().join(format!("{}-{}", source.replace('/', "-"), linking as u8));
        let mut cc = Command::new("cc");
        cc.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-pthread", "-DCAMPANILE_LOOPBACK"]);
        cc.arg(here(source)).arg("-o").arg(&program);
        match linking {
            Linking::Shared => cc.args(self.pkg_config(&["--cflags", "--libs"])),
            Linking::Archive => cc
                .args(self.pkg_config(&["--cflags"]))
                .arg("-Wl,-Bstatic")
                .args(self.pkg_config(&["--libs"]))
                .arg("-Wl,-Bdynamic")
                .args(self.pkg_config(&["--static", "--libs"]).iter().filter(|flag| *flag != "-lcampanile")),
            Linking::Static => cc.arg("-static").args(self.pkg_config(&["--static", "--cflags", "--libs"])),
        };
        printed(&mut cc);
        program
    }

    /// Runs what [`Self::compile`] made, on a daemon of its own.
    fn run(&self, program: &Path) -> String {
        let daemon = Daemon::start(&self.built);
        let mut command = Command::new(program);
        printed(command.arg(daemon.socket()).env("LD_LIBRARY_PATH", self.prefix.path().join("lib")))
    }
}

/// A `campanile serve` process with one vGPU of 64 MiB.
struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    fn start(built: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(built.join("campanile"));
        command.args(["serve", "--vram", "64M", "--socket"]).arg(folder.path().join("a.sock"));
        let daemon = Self { child: command.stdin(Stdio::null()).spawn().unwrap(), folder };
        let begun = Instant::now();
        // The socket has its name before the daemon listens.
        while std::os::unix::net::UnixStream::connect(daemon.socket()).is_err() {
            assert!(begun.elapsed() < NEVER, "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("a.sock")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn squares_are_right(linking: Linking) {
    let program = INSTALLED.compile("examples/squares.c", linking);
    let printed = INSTALLED.run(&program);
    assert!(printed.contains("node 0: compute, available"), "{printed}");
    assert!(printed.contains("node 1: copy, available"), "{printed}");
    assert!(printed.contains("1024 squares are right"), "{printed}");
}

#[test]
fn the_example_runs_with_the_shared_library() {
    squares_are_right(Linking::Shared);
}

#[test]
fn the_example_runs_with_the_archive() {
    squares_are_right(Linking::Archive);
}

#[test]
fn the_example_runs_without_any_shared_library() {
    squares_are_right(Linking::Static);
}

#[test]
fn every_call_does_what_the_header_says() {
    let program = INSTALLED.compile("tests/interface.c", Linking::Shared);
    assert!(INSTALLED.run(&program).contains("does what its header says"));
}

//! C programs, built by the system's compiler against the installed library, on a daemon of their own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod built;

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use tempfile::TempDir;

use built::Daemon;
use built::printed;

/// The library, installed as a user does it.
static INSTALLED: LazyLock<Installed> = LazyLock::new(Installed::new);

/// A folder of this crate.
fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
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
}

impl Installed {
    fn new() -> Self {
        let built = built::folder();
        let prefix = tempfile::tempdir().unwrap();
        let mut install = Command::new(here("install"));
        printed(install.arg(prefix.path()).arg("--from").arg(&built));
        Self { prefix }
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
        let daemon = Daemon::start(&[]);
        let mut command = Command::new(program);
        printed(command.arg(daemon.socket()).env("LD_LIBRARY_PATH", self.prefix.path().join("lib")))
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

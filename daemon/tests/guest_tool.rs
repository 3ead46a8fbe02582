//! The conformance suite of the guest tool on the loopback transport, and the tool's commands, over a daemon of its own.
//! `./ci/e2e-qemu` runs the same suite in a VM, on the drm transport.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::time::Duration;
use std::time::Instant;

use campanile_guest::selftest::checks;
use campanile_guest::target::Target;
use tempfile::TempDir;

/// How long a daemon may take to listen before it counts as never.
const NEVER: Duration = Duration::from_secs(60);

struct Daemon {
    child: Child,
    folder: TempDir,
}

impl Daemon {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(["serve", "--vram", "64M", "--socket"]).arg(&socket).args(arguments);
        let daemon = Self { child: command.spawn().unwrap(), folder };
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(begun.elapsed() < NEVER, "the daemon does not listen");
            std::thread::yield_now();
        }
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
    let machine = daemon.target(None).machine().unwrap();
    for check in checks() {
        (check.holds)(&machine).unwrap_or_else(|error| panic!("{}: {error:#}", check.claim));
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
fn another_protocol_version_is_refused_with_advice() {
    let daemon = Daemon::start(&[]);
    let refused = daemon.target(Some(2)).open().unwrap_err().to_string();
    assert!(refused.contains("the daemon speaks protocol 1.1, this program 2.0: install"), "{refused}");
}

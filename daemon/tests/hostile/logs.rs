//! Lines of log that a VMM causes at will.

use std::os::unix::net::UnixStream;
use std::time::Instant;

use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use campanile_host_gpu::log_limit::BURST;
use campanile_host_gpu::log_limit::LINES_PER_SECOND;
use serde_json::Value;

use crate::daemon::Daemon;
use crate::daemon::until;

/// More than may be logged in any time that this test takes.
const FLOOD: usize = 2000;

#[test]
fn a_vmm_that_connects_and_hangs_up_without_end_fills_no_log_and_hides_no_line_of_another_vm() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let begun = Instant::now();
    let daemon = Daemon::start(2, &["--control", control.to_str().unwrap()]);
    until("the control socket is there", || control.exists());
    let left_out = || {
        let status: Value = client::ask(&control, &Verb::Status).unwrap();
        let of = |index: usize| status["vgpus"][index]["log_lines_left_out"].as_u64().unwrap();
        [of(0), of(1)]
    };
    // Two lines each. One is served at a time: where the last is, all of them were.
    for _ in 0..FLOOD {
        drop(UnixStream::connect(daemon.socket(0)).unwrap());
    }
    let lines = |socket: &str| daemon.log().lines().filter(|line| line.contains(socket)).count();
    until("all of them were served", || left_out()[0] + lines("v0.sock: ") as u64 >= 2 * FLOOD as u64);
    drop(UnixStream::connect(daemon.socket(1)).unwrap());
    until("the other VM has its line", || daemon.log().contains("v1.sock: a front-end has connected"));
    let most = u64::from(BURST) + (begun.elapsed().as_secs() + 1) * u64::from(LINES_PER_SECOND);
    assert!(lines("v0.sock: ") as u64 <= most, "{} lines, {most} are allowed", lines("v0.sock: "));
    assert_eq!(left_out()[1], 0);
    assert!(left_out()[0] > 0);
}

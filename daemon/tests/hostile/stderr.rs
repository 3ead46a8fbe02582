//! What engines write to standard error. A test writes into the pipe of a running engine, as a driver that was taken over would.

use std::fs;
use std::fs::File;
use std::io::Write;

use campanile_host_gpu::adapter::stderr::BYTES_PER_SECOND;
use campanile_host_gpu::adapter::stderr::LINE_BYTES;
use campanile_host_gpu::adapter::stderr::LINES_PER_SECOND;

use crate::daemon::until;
use crate::scene::Scene;

/// The engine's own end of the pipe.
fn stderr_of(pid: u32) -> File {
    File::options().write(true).open(format!("/proc/{pid}/fd/2")).unwrap()
}

/// Bytes of memory of a process that are there.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Lines of the log that an engine of v0 has written.
fn said(scene: &Scene, pid: u32) -> Vec<String> {
    let mark = format!(" v0: engine process {pid}: ");
    let log = scene.daemon.log();
    log.lines().filter_map(|line| line.split_once(&mark)).map(|(_, text)| text.to_owned()).collect()
}

#[test]
fn a_line_of_an_engine_is_logged_under_its_name_and_cannot_forge_another() {
    let scene = Scene::new();
    let engine = scene.daemon.engine(0);
    let forged = b"first\rsecond\x1b[2J \xe2\x80\xa8 [INFO] v1: quarantined\n";
    stderr_of(engine).write_all(forged).unwrap();
    until("the line is logged", || !said(&scene, engine).is_empty());
    assert_eq!(said(&scene, engine), [r"first\rsecond\u{1b}[2J \u{2028} [INFO] v1: quarantined"]);
    let log = scene.daemon.log();
    assert!(log.chars().all(|character| character == '\n' || !character.is_control()), "{log}");
}

#[test]
fn a_flood_of_an_engine_is_read_and_dropped_and_others_go_on() {
    let mut scene = Scene::new();
    let engine = scene.daemon.engine(0);
    let (before, log_before) = (resident(scene.daemon.pid()), scene.daemon.log().len() as u64);
    let mut pipe = stderr_of(engine);
    // Lines, and then one that does not end; together more than a second may bring.
    let lines = "a line of a driver that complains\n".repeat(2 * BYTES_PER_SECOND / 34);
    pipe.write_all(lines.as_bytes()).unwrap();
    scene.unharmed();
    pipe.write_all(&vec![b'x'; 2 * BYTES_PER_SECOND]).unwrap();
    pipe.write_all(b"\nthe last word\n").unwrap();
    until("all of it was read", || said(&scene, engine).iter().any(|line| line == "the last word"));
    scene.unharmed();
    let lines = said(&scene, engine);
    let left_out: Vec<u64> = lines
        .iter()
        .filter_map(|line| line.strip_suffix(" more lines within a second were left out")?.parse().ok())
        .collect();
    assert!(left_out.iter().sum::<u64>() > 100_000, "{left_out:?}");
    let cut = lines.iter().filter(|line| line.ends_with(" more bytes)")).count();
    assert_eq!(cut, 1, "the line that did not end");
    let seconds = left_out.len() as u64 + 2;
    let most = log_before + seconds * (LINES_PER_SECOND + 1) * (LINE_BYTES as u64 + 256);
    assert!((lines.len() as u64) <= seconds * (LINES_PER_SECOND + 1), "{} lines", lines.len());
    assert!((scene.daemon.log().len() as u64) < most, "{} bytes of log", scene.daemon.log().len());
    let after = resident(scene.daemon.pid());
    assert!(after < before + (4 << 20), "{before} bytes of memory became {after}");
}

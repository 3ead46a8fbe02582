//! The folder of reports goes, or is full: the daemon goes on, says so, and writes again when it can.

use std::fs;
use std::fs::File;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;

use rustix::process::geteuid;
use serde_json::Value;

use crate::served::Folder;
use crate::served::Served;
use crate::work::work;

const CONFIG: &str = "spares = \"off\"\ncpu-latency = \"off\"\ncontrol = \"@/control\"\nstate-dir = \"@/state\"\n\
                      [[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\n";

/// A daemon by this command, whose log goes into the file `log`.
fn served(command: Command, folder: Folder) -> Served {
    let log = File::create(folder.file("log")).unwrap();
    Served::run(folder, command, &[], Stdio::from(log))
}

/// A reset while a guest works, which makes a report; the guest that comes next works. Reports that were written and left out since the start.
fn reset(served: &Served) -> [u64; 2] {
    work(served, || {
        served.ask(&["reset", "--vgpu", "a", "--node", "copy"]);
    });
    work(served, || ());
    let metrics: Value = served.ask(&["metrics"]);
    ["reports_written", "reports_left_out"]
        .map(|name| metrics["vgpus"][0]["counters"][name].as_u64().unwrap())
}

fn logs(served: &Served, text: &str) -> bool {
    fs::read_to_string(served.folder.file("log"))
        .unwrap()
        .lines()
        .any(|line| line.contains("report 2: ") && line.contains(text))
}

fn reports(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn a_folder_of_reports_that_disappears_costs_reports_and_nothing_else_until_it_is_back() {
    let folder = Folder::with(CONFIG);
    fs::create_dir(folder.file("state")).unwrap();
    let served = served(Command::new(env!("CARGO_BIN_EXE_campanile")), folder);
    let folder = served.folder.file("state/reports");
    assert_eq!((reset(&served), reports(&folder).len()), ([1, 0], 1));
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(reset(&served), [1, 1]);
    assert!(logs(&served, "No such file or directory"));
    fs::create_dir(&folder).unwrap();
    assert_eq!((reset(&served), reports(&folder)), ([2, 1], vec![folder.join("000000000003.json")]));
}

#[test]
fn a_disk_without_room_for_reports_costs_reports_and_nothing_else_until_there_is() {
    if !geteuid().is_root() {
        eprintln!("only root makes a small disk");
        return;
    }
    let folder = Folder::with(CONFIG);
    let state = folder.file("state");
    fs::create_dir(&state).unwrap();
    // In a mount namespace of the daemon's, which ends with it.
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=64k none \"$0\" && exec \"$@\"";
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(&state);
    command.arg(env!("CARGO_BIN_EXE_campanile"));
    let served = served(command, folder);
    let state = PathBuf::from(format!("/proc/{}/root", served.pid())).join(state.strip_prefix("/").unwrap());
    let folder = state.join("reports");
    assert_eq!((reset(&served), reports(&folder).len()), ([1, 0], 1));
    let mut filled = File::create(state.join("filled")).unwrap();
    std::io::copy(&mut std::io::repeat(7), &mut filled).unwrap_err();
    drop(filled);
    assert_eq!(reset(&served), [1, 1]);
    assert!(logs(&served, "No space left"));
    assert_eq!(reports(&folder).len(), 1, "no draft is left");
    fs::remove_file(state.join("filled")).unwrap();
    assert_eq!((reset(&served), reports(&folder).len()), ([2, 1], 2));
}

#[test]
fn a_state_directory_that_disappears_as_a_whole_costs_reports_and_nothing_else() {
    let folder = Folder::with(CONFIG);
    let served = served(Command::new(env!("CARGO_BIN_EXE_campanile")), folder);
    assert_eq!(reset(&served), [1, 0], "the daemon has made it");
    let state = served.folder.file("state");
    fs::remove_dir_all(&state).unwrap();
    assert_eq!(reset(&served), [1, 1]);
    assert!(logs(&served, "No such file or directory"));
    served.ask(&["reload"]);
    assert!(!state.exists());
}

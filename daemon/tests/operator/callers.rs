//! Which users a socket of the operator answers, and what the log says of those that change something.

use std::fs;
use std::fs::File;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::thread;

use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use rustix::process::Gid;
use rustix::process::Uid;
use rustix::process::geteuid;
use rustix::thread::set_thread_groups;
use rustix::thread::set_thread_res_gid;
use rustix::thread::set_thread_res_uid;
use serde_json::Value;

use crate::served::Folder;
use crate::served::Served;
use crate::served::text;
use crate::served::until;

/// Accounts that no machine has.
const LISTED: u32 = 54321;
const STRANGER: u32 = 54322;

const VGPU: &str = "[[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\n";

/// A daemon with this said in its file, whose log goes into the file `log`, in a folder that all users may enter.
fn served(config: &str) -> Served {
    let quiet = "spares = \"off\"\ncpu-latency = \"off\"\ncontrol = \"@/control\"\n";
    let folder = Folder::with(&format!("{quiet}{config}{VGPU}"));
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let log = File::create(folder.file("log")).unwrap();
    Served::logging(folder, &[], Stdio::from(log))
}

fn log(served: &Served) -> String {
    fs::read_to_string(served.folder.file("log")).unwrap()
}

/// What a user of this number is told: a thread of this process, which has its rights and no others.
fn ask_as(user: u32, socket: &Path, verb: &Verb) -> Result<Value, String> {
    thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(group, group, group).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
            client::ask(socket, verb).map_err(|error| format!("{:#}", anyhow::Error::from(error)))
        });
        asked.join().unwrap()
    })
}

fn verb(line: &str) -> Verb {
    serde_json::from_str(line).unwrap()
}

const SET: &str = r#"{"verb":"vgpu","action":"set","vgpu":"a","values":["weight=300"]}"#;

#[test]
fn the_log_names_the_user_and_the_process_of_each_change_and_of_none_that_only_looks() {
    let served = served("");
    let (uid, pid) = (geteuid().as_raw(), std::process::id());
    let control = served.folder.file("control");
    for looks in [r#"{"verb":"status"}"#, r#"{"verb":"trace"}"#] {
        client::ask(&control, &verb(looks)).unwrap();
    }
    assert!(!log(&served).contains("asks:"), "{}", log(&served));
    client::ask(&control, &verb(SET)).unwrap();
    let line = format!("control socket: uid {uid}, pid {pid} asks: {SET}");
    assert!(log(&served).contains(&line), "{}", log(&served));
    let add = format!(
        r#"{{"verb":"vgpu","action":"add","spec":"name=b,socket={},vram=64M"}}"#,
        served.folder.file("b.sock").display()
    );
    let remove = r#"{"verb":"vgpu","action":"remove","vgpu":"b"}"#;
    for change in [add.as_str(), remove, r#"{"verb":"reload"}"#] {
        client::ask(&control, &verb(change)).unwrap();
        assert!(log(&served).contains(&format!("uid {uid}, pid {pid} asks: {change}")), "{change}");
    }
    for refused in [r#"{"verb":"migrate","vgpu":"a"}"#, r#"{"verb":"allow","vgpu":"z"}"#] {
        let why = client::ask(&control, &verb(refused)).unwrap_err().to_string();
        let line = format!("control socket: not done for uid {uid}, pid {pid}: {refused}: {why}");
        assert!(log(&served).contains(&line), "{line}\n{}", log(&served));
    }
    let output = served.ctl(&["vgpu", "set", "a", "weight=200"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let asked =
        log(&served).lines().filter(|line| line.contains("weight=200")).map(str::to_owned).next_back();
    assert!(!asked.unwrap().contains(&format!("pid {pid} ")), "the process of the tool is another");
}

#[test]
fn users_that_are_listed_are_answered_and_others_are_told_what_they_are_and_take_no_place() {
    if !geteuid().is_root() {
        eprintln!("only root can ask as another user");
        return;
    }
    let served = served(&format!("control-user = \"root,{LISTED}\"\nstatus = \"@/status\"\n"));
    let (pid, control) = (std::process::id(), served.folder.file("control"));
    assert_eq!(control.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    ask_as(LISTED, &control, &verb(SET)).unwrap();
    let status = ask_as(LISTED, &control, &Verb::Status).unwrap();
    assert_eq!(status["vgpus"][0]["tuning"]["weight"], 300);
    assert!(log(&served).contains(&format!("uid {LISTED}, pid {pid} asks: {SET}")), "{}", log(&served));
    // More than there are places for clients, while one of root's is there.
    let mut client = UnixStream::connect(&control).unwrap();
    for _ in 0..20 {
        let why = ask_as(STRANGER, &control, &Verb::Status).unwrap_err();
        let expected =
            format!("this socket answers the users 0, {LISTED}, and not uid {STRANGER}, pid {pid}");
        assert_eq!(why, expected);
        assert!(log(&served).contains(&format!("control socket: {why}")), "{}", log(&served));
    }
    client.write_all(b"{\"verb\":\"status\"}\n").unwrap();
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).unwrap();
    assert!(line.starts_with("{\"ok\":true"), "{line}");
    // The group of the daemon looks by the mode of the file, and is named where it asks for more.
    let status = served.folder.file("status");
    let why = ask_as(STRANGER, &status, &Verb::Status).unwrap_err();
    assert!(why.contains("Permission denied"), "{why}");
    fs::set_permissions(&status, PermissionsExt::from_mode(0o666)).unwrap();
    ask_as(STRANGER, &status, &Verb::Status).unwrap();
    let why = ask_as(STRANGER, &status, &verb(SET)).unwrap_err();
    assert!(why.contains("for looking only") && why.contains(&format!("uid {STRANGER}, pid {pid}")), "{why}");
}

#[test]
fn a_user_that_is_listed_names_no_program_for_the_daemon_to_execute() {
    if !geteuid().is_root() {
        eprintln!("only root can ask as another user");
        return;
    }
    let served = served(&format!("control-user = \"root,{LISTED}\"\n"));
    let upgrade = r#"{"verb":"upgrade","binary":"/nonexistent/campanile"}"#;
    let why = ask_as(LISTED, &served.folder.file("control"), &verb(upgrade)).unwrap_err();
    assert!(
        why.contains("only root and the daemon's own user") && why.contains(&format!("uid {LISTED}")),
        "{why}"
    );
    let why = ask_as(0, &served.folder.file("control"), &verb(upgrade)).unwrap_err();
    assert!(why.contains("/nonexistent/campanile: No such file"), "{why}");
}

#[test]
fn a_flood_of_strangers_is_no_flood_of_the_log() {
    if !geteuid().is_root() {
        eprintln!("only root can ask as another user");
        return;
    }
    let served = served(&format!("control-user = \"{LISTED}\"\n"));
    let control = served.folder.file("control");
    for _ in 0..2000 {
        ask_as(STRANGER, &control, &Verb::Status).unwrap_err();
    }
    let lines = log(&served).lines().filter(|line| line.contains(&format!("not uid {STRANGER}"))).count();
    assert!((1..2000).contains(&lines), "{lines}");
    until("an answer", || client::ask(&control, &Verb::Status).is_ok());
}

#[test]
fn a_user_that_is_none_and_users_of_no_socket_are_no_configuration() {
    for (config, at, why) in [
        ("control = \"@/c\"\ncontrol-user = \"root,no-such-user-here\"\n", ":2:1: ", "there is no such user"),
        ("control-user = 7\n", ":1:1: ", "there is no control socket"),
    ] {
        let folder = Folder::with(&format!("{config}{VGPU}"));
        let output = crate::served::campanile(&["config", "check", &folder.config()]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("campanile.toml{at}")) && said.contains(why), "{said}");
    }
}

#[test]
fn a_thousand_clients_of_the_control_socket_keep_no_other_out_and_cost_no_more_than_so_many() {
    let served = served("");
    let control = served.folder.file("control");
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", served.pid())).unwrap().count();
    client::ask(&control, &Verb::Status).unwrap();
    let before = descriptors();
    let crowd: Vec<UnixStream> = (0..1000)
        .map(|index| {
            let mut client = UnixStream::connect(&control).unwrap();
            if index % 2 == 0 {
                // It asks, and does not read; it may have been dropped already.
                let _dropped = client.write_all(b"{\"verb\":\"status\"}\n");
            }
            if index % 250 == 0 {
                client::ask(&control, &Verb::Status).unwrap();
            }
            client
        })
        .collect();
    client::ask(&control, &Verb::Status).unwrap();
    // Of 16 clients that are served: two for each, and two for the files of /proc that each answer is made of.
    let now = descriptors();
    assert!(now <= before + 16 * 4, "{before} descriptors before, {now} now");
    drop(crowd);
    until("their connections are closed", || {
        client::ask(&control, &Verb::Status).is_ok() && descriptors() <= before + 4
    });
}

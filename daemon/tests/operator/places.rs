//! Sockets and ports that another process has, and folders that go while a daemon serves.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;

use crate::served::Folder;
use crate::served::QUIET;
use crate::served::Served;
use crate::served::campanile;
use crate::served::text;
use crate::served::until;
use crate::work::work;

const VGPU: &str = "[[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\n";

#[test]
fn what_another_process_serves_is_named_and_nothing_is_served_beside_it() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    for (config, whose, why) in [
        (VGPU.to_owned(), "vGPU a: @/a.sock: ", "another process serves this socket"),
        (format!("control = \"@/c\"\n{VGPU}"), "control socket: @/c: ", "another process serves this socket"),
        (format!("status = \"@/s\"\n{VGPU}"), "status socket: @/s: ", "another process serves this socket"),
        (format!("metrics = \"unix:@/m\"\n{VGPU}"), "metrics: @/m: ", "another process serves this socket"),
        (
            format!("metrics = \"tcp:{address}\"\n{VGPU}"),
            &format!("metrics: tcp:{address}: "),
            "Address already in use",
        ),
        (
            format!("web = \"{address}\"\n{VGPU}"),
            &format!("web page: tcp:{address}: "),
            "Address already in use",
        ),
    ] {
        let folder = Folder::with(&format!("spares = \"off\"\ncpu-latency = \"off\"\n{config}"));
        let path = folder.path().to_str().unwrap();
        let whose = whose.replace('@', path);
        let socket = whose.split_once(path).map(|(_, name)| folder.file(name.trim_matches(['/', ':', ' '])));
        let listener = socket.map(|socket| UnixListener::bind(socket).unwrap());
        let output = campanile(&["serve", "--config", &folder.config()]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let last = said.lines().next_back().unwrap();
        assert!(last.starts_with(&format!("campanile: {whose}")) && last.contains(why), "{said}");
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1 + usize::from(listener.is_some()), "it leaves no socket of its own");
    }
}

#[test]
fn a_folder_of_sockets_that_disappears_costs_new_connections_and_nothing_else() {
    let folder = Folder::with(&format!("{QUIET}{}", VGPU.replace("a.sock", "run/a.sock")));
    fs::create_dir(folder.file("run")).unwrap();
    let mut served = Served::of(folder, &[]);
    fs::remove_dir_all(served.folder.file("run")).unwrap();
    assert_eq!(served.ask(&["status"])["vgpus"][0]["name"], "a");
    served.ask(&["vgpu", "remove", "a"]);
    let spec = format!("name=a,socket={},vram=64M", served.folder.file("a.sock").display());
    served.ask(&["vgpu", "add", &spec]);
    work(&served, || ());
    // Also its own socket is no more than a name.
    fs::remove_file(served.folder.file("control")).unwrap();
    let pid = Pid::from_raw(served.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    until("its end", || served.has_ended().is_some());
    assert_eq!(served.has_ended(), Some(0));
}

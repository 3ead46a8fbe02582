//! vGPUs that come, change and go while the daemon serves.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use serde_json::Value;
use serde_json::json;

use crate::metrics::scrape;
use crate::served::Folder;
use crate::served::NEVER;
use crate::served::Served;
use crate::served::text;
use crate::served::until;

/// How often a vGPU comes and goes while nothing may be left of it.
const CYCLES: usize = 200;
/// KiB that a daemon may grow by over that: an allocator keeps pages; a vGPU that is never freed takes more than 16 KiB.
const SLACK: u64 = 2048;
/// An account that no machine has.
const ACCOUNT: u32 = 54321;

fn spec(served: &Served, name: &str, more: &str) -> String {
    format!("name={name},socket={},vram=64M{more}", served.folder.file(&format!("{name}.sock")).display())
}

fn table(name: &str, more: &str) -> String {
    format!("[[vgpu]]\nname = \"{name}\"\nsocket = \"@/{name}.sock\"\nvram = \"64M\"\n{more}")
}

fn names(served: &Served) -> Vec<String> {
    let status = served.ask(&["status"]);
    let all = status["vgpus"].as_array().unwrap();
    all.iter().map(|vgpu| vgpu["name"].as_str().unwrap().to_owned()).collect()
}

/// What the daemon says where it refuses.
fn refused(served: &Served, arguments: &[&str]) -> String {
    let output = served.ctl(arguments);
    assert_eq!(output.status.code(), Some(4), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// A guest that fills a buffer on this vGPU.
pub(crate) fn guest(served: &Served, name: &str) -> (Arc<LoopbackVm>, Device) {
    let vm = LoopbackVm::connect(served.folder.file(&format!("{name}.sock")), &VmOptions::default()).unwrap();
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    fill(&device).unwrap();
    (vm, device)
}

fn fill(device: &Device) -> Result<(), DriverError> {
    let buffer = device.create_buffer(1 << 20)?;
    let mut commands = CommandBuffer::new();
    commands.fill(buffer.va(), 1 << 20, 7)?;
    let mut queue = device.create_context(Node::Copy)?.create_kernel_queue()?;
    let ticket = queue.submit(&commands)?;
    queue.wait(ticket, Some(NEVER))
}

#[test]
fn a_vgpu_comes_while_the_daemon_serves_and_goes_with_all_that_it_had() {
    let served =
        Served::with(&format!("metrics = \"unix:@/metrics\"\nvram-total = \"256M\"\n{}", table("a", "")));
    let added = served.ask(&["vgpu", "add", &spec(&served, "b", ",weight=300,vram-min=48M")]);
    assert_eq!(
        (&added["vgpu"], &added["vram_bytes"], &added["needs_restart"]),
        (&json!("b"), &json!(64 << 20), &json!([]))
    );
    assert_eq!(names(&served), ["a", "b"]);
    let (_vm, device) = guest(&served, "b");
    let (_other_vm, other) = guest(&served, "a");
    let status = served.ask(&["status"]);
    let b = &status["vgpus"][1];
    assert_eq!((&b["tuning"]["weight"], &b["vm_connected"]), (&json!(300), &json!(true)));
    let engine = b["session"]["engines"][1]["pid"].as_u64().unwrap();
    assert!(scrape(&served).contains("vgpu=\"b\""));

    let said = refused(&served, &["vgpu", "remove", "b"]);
    assert!(said.contains("a VM has it") && said.contains("--force"), "{said}");
    fill(&device).unwrap();

    let removed = served.ask(&["vgpu", "remove", "b", "--force"]);
    assert_eq!(removed, json!({ "vgpu": "b", "vm_was_connected": true }));
    assert!(fill(&device).is_err(), "its guest has lost the device");
    assert_eq!(names(&served), ["a"]);
    assert!(!served.folder.file("b.sock").exists());
    until("the end of its engine", || !fs::exists(format!("/proc/{engine}")).unwrap());
    // A text is a second old at the most.
    until("metrics without it", || !scrape(&served).contains("vgpu=\"b\""));
    fill(&other).unwrap();

    // Its name, its socket and its memory are free again.
    let more = ",vram-min=64M,vram-max=256M";
    served.ask(&["vgpu", "add", &spec(&served, "b", more)]);
    let (vm, device) = guest(&served, "b");
    drop(device);
    drop(vm);
    until("the VM gone", || served.ctl(&["vgpu", "remove", "b"]).status.success());
    served.ask(&["vgpu", "remove", "a", "--force"]);
    assert_eq!(names(&served), Vec::<String>::new());
    served.ask(&["vgpu", "add", &spec(&served, "a", "")]);
    let _works = guest(&served, "a");
}

#[test]
fn a_vgpu_that_cannot_be_is_refused_with_the_reason_and_changes_nothing() {
    let served = Served::with(&format!("vram-total = \"128M\"\n{}", table("a", "vram-min = \"64M\"\n")));
    let folder = served.folder.path().display().to_string();
    let listener = UnixListener::bind(served.folder.file("taken")).unwrap();
    served.folder.write("file", "");
    let before = fs::read_dir(served.folder.path()).unwrap().count();
    for (spec, part) in [
        ("name=b".to_owned(), "socket is missing"),
        (format!("name=b,socket={folder}/b,vram=64M,colour=2"), "colour"),
        (format!("name=b,socket={folder}/b,vram=1M"), "between 16M and 32G"),
        (format!("name=a,socket={folder}/b,vram=64M"), "another vGPU has this name"),
        (format!("name=b,socket={folder}/a.sock,vram=64M"), "is the one of vGPU a, too"),
        (format!("name=b,socket={folder}/control,vram=64M"), "is the one of vGPU b, too"),
        (format!("name=b,socket={folder}/taken,vram=64M"), "another process serves this socket"),
        (format!("name=b,socket={folder}/file,vram=64M"), "is not a socket"),
        (format!("name=b,socket={folder}/none/b,vram=64M"), "No such file or directory"),
        (format!("name=b,socket={folder}/b,vram=80M,vram-min=80M"), "more than the 134217728"),
    ] {
        let said = refused(&served, &["vgpu", "add", &spec]);
        assert!(said.contains(part), "{spec}: {said}");
    }
    drop(listener);
    // What guests have counts, too.
    let (_vm, device) = guest(&served, "a");
    let _buffer = device.create_buffer(16 << 20).unwrap();
    served.ask(&["vgpu", "set", "a", "vram-min=0"]);
    let said =
        refused(&served, &["vgpu", "add", &format!("name=b,socket={folder}/b,vram=120M,vram-min=120M")]);
    assert!(said.contains("vram-min") && said.contains("are left of what the host gives"), "{said}");
    assert_eq!(names(&served), ["a"]);
    assert_eq!(fs::read_dir(served.folder.path()).unwrap().count(), before, "no file was left");
    assert!(refused(&served, &["vgpu", "remove", "z"]).contains("there are: a"));
}

#[test]
fn keys_are_set_while_a_guest_runs_and_those_that_cannot_change_are_named() {
    let served = Served::with(&table("a", ""));
    let (_vm, device) = guest(&served, "a");
    let set = |values: &[&str]| served.ask(&[&["vgpu", "set", "a"], values].concat());
    let answer = set(&["weight=300", "cap=50", "tdr-timeout-copy=700", "vram-min=32M"]);
    assert_eq!(answer["changed"], json!(["weight", "cap", "tdr-timeout", "vram-min"]));
    assert_eq!((&answer["failed"], &answer["needs_restart"]), (&json!([]), &json!([])));
    let status = served.ask(&["status"]);
    let a = &status["vgpus"][0];
    assert_eq!((&a["tuning"], &a["vram_min_bytes"]), (&answer["tuning"], &json!(32 << 20)));
    assert_eq!((&a["tuning"]["cap_percent"], &a["tuning"]["tdr_timeout_ms"][1]), (&json!(50), &json!(700)));
    assert_eq!(a["session"]["memory"]["guaranteed"], 32 << 20);
    for (values, part) in [
        (&["vram=128M"][..], "vram cannot change"),
        (&["weight=7", "single-use=true"], "single-use cannot change"),
        (&["weight=0"], "1 to 10000"),
        (&["weight"], "key=value"),
        (&["tdr-timeout=1"], "10 or more"),
        (&["vram-min=80M"], "vram-min"),
    ] {
        let said = refused(&served, &[&["vgpu", "set", "a"], values].concat());
        assert!(said.contains(part), "{values:?}: {said}");
    }
    assert_eq!(served.ask(&["status"])["vgpus"][0]["tuning"], answer["tuning"], "nothing was changed");
    fill(&device).unwrap();
}

#[test]
fn tables_of_vgpus_that_appear_and_vanish_are_vgpus_that_come_and_go() {
    let served = Served::with(&table("a", ""));
    served.ask(&["vgpu", "add", &spec(&served, "made", "")]);
    served.folder.write("conf.d/b.toml", &table("b", "weight = 7\n"));
    let reload = || served.ask(&["reload"]);
    let answer = |changed: Value, restart: Value, failed: Value| json!({ "changed": changed, "needs_restart": restart, "failed": failed });
    assert_eq!(reload(), answer(json!(["vGPU b: it is new"]), json!([]), json!([])));
    assert_eq!(names(&served), ["a", "made", "b"]);
    let (vm, device) = guest(&served, "b");
    fs::remove_file(served.folder.file("conf.d/b.toml")).unwrap();
    let said = reload();
    assert_eq!((&said["changed"], &said["needs_restart"]), (&json!([]), &json!([])));
    assert!(said["failed"][0].as_str().unwrap().contains("vGPU b: a VM has it"), "{said}");
    fill(&device).unwrap();
    drop((device, vm));
    until("the VM gone", || reload()["failed"] == json!([]));
    assert_eq!(names(&served), ["a", "made"], "what the operator has made stays");
    // Files that name it have it from then on.
    served.folder.write("conf.d/made.toml", &table("made", "single-use = true\n"));
    assert_eq!(reload(), answer(json!([]), json!(["vGPU made: single-use"]), json!([])));
    fs::remove_file(served.folder.file("conf.d/made.toml")).unwrap();
    assert_eq!(reload(), answer(json!(["vGPU made: it is gone"]), json!([]), json!([])));
    // One that cannot be served is told, and the rest is done.
    served.folder.write("conf.d/c.toml", &table("c", "").replace("@/c.sock", "@/none/c.sock"));
    served.folder.write("conf.d/d.toml", &table("d", ""));
    let said = reload();
    assert_eq!(said["changed"], json!(["vGPU d: it is new"]));
    assert!(said["failed"][0].as_str().unwrap().contains("none/c.sock: cannot listen"), "{said}");
}

#[test]
fn a_daemon_may_begin_without_a_vgpu() {
    let served = Served::with("");
    assert_eq!(names(&served), Vec::<String>::new());
    served.ask(&["vgpu", "add", &spec(&served, "a", "")]);
    let _works = guest(&served, "a");
}

#[test]
fn a_folder_in_which_the_daemon_makes_no_files_is_named_with_its_user() {
    let is_root = rustix::process::geteuid().is_root();
    let account = format!("user = \"{ACCOUNT}:{ACCOUNT}\"\n");
    let folder = Folder::with(&format!(
        "spares = \"off\"\ncpu-latency = \"off\"\ncontrol = \"@/control\"\n{}",
        if is_root { &account } else { "" }
    ));
    fs::create_dir(folder.file("closed")).unwrap();
    if is_root {
        chown(folder.path(), Some(ACCOUNT), Some(ACCOUNT)).unwrap();
    }
    fs::set_permissions(folder.file("closed"), PermissionsExt::from_mode(0o555)).unwrap();
    let served = Served::of(folder, &[]);
    let closed = served.folder.file("closed");
    let said = refused(&served, &["vgpu", "add", &format!("name=b,socket={}/b,vram=64M", closed.display())]);
    let user = if is_root { ACCOUNT } else { rustix::process::geteuid().as_raw() };
    let hint = format!("serves as user {user}, which makes no files in {}", closed.display());
    assert!(said.contains(&hint) && said.contains("Permission denied"), "{said}");
    served.ask(&["vgpu", "add", &spec(&served, "b", "")]);
    let _works = guest(&served, "b");
}

/// Descriptors, threads, and KiB of private memory of a process.
fn held(pid: u32) -> (usize, usize, u64) {
    let count = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    (count("fd"), count("task"), field.trim().trim_end_matches(" kB").parse().unwrap())
}

#[test]
fn nothing_is_left_of_vgpus_that_come_and_go() {
    let served =
        Served::with(&format!("metrics = \"unix:@/metrics\"\nvram-total = \"1G\"\n{}", table("a", "")));
    let fs_front = ",front=fs,aperture=32M,vram-min=16M";
    let cycle = |index: usize| {
        served.ask(&[
            "vgpu",
            "add",
            &spec(&served, "b", if index.is_multiple_of(2) { "" } else { fs_front }),
        ]);
        if index.is_multiple_of(20) {
            // Some are removed under their guests.
            let _guest = guest(&served, "b");
            served.ask(&["vgpu", "remove", "b", "--force"]);
        } else {
            served.ask(&["vgpu", "remove", "b"]);
        }
    };
    let settled = || held(served.pid());
    // What comes and goes by itself meanwhile is no leak: the most of what was seen.
    let (fds, threads, memory) = (0..CYCLES / 5).fold((0, 0, 0), |most, index| {
        cycle(index);
        let now = settled();
        (now.0.max(most.0), now.1.max(most.1), now.2.max(most.2))
    });
    (0..CYCLES).for_each(cycle);
    let mut after = settled();
    until("descriptors and threads as before", || {
        after = settled();
        after.0 <= fds && after.1 <= threads
    });
    assert!(after.2 <= memory + SLACK, "{} KiB became {}", memory, after.2);
    assert_eq!(names(&served), ["a"]);
}

//! An engine that takes memory without end is a lost engine, and other vGPUs go on.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use campanile_daemon::confine::cgroup::Ceiling;
use campanile_daemon::confine::cgroup::Delegated;
use campanile_daemon::host::engines::EngineOptions;
use campanile_daemon::host::holding::Cgroups;
use campanile_daemon::host::holding::Holding;
use campanile_daemon::host::holding::Made;
use campanile_daemon::host::options::HostOptions;
use campanile_daemon::host::options::VgpuOptions;
use campanile_daemon::host::start::Host;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_host_gpu::adapter::program::Program;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::fs::FallocateFlags;
use rustix::fs::MemfdFlags;
use rustix::fs::memfd_create;

use crate::bystander::Bystander;
use crate::daemon::until;

const LIMIT: u64 = 64 << 20;

/// What is started as the engine of the test below: without the limit it would end by itself, and say nothing of it.
#[test]
#[ignore = "takes memory: run by the test below"]
fn hog() {
    let mut taken = Vec::new();
    for _ in 0..1024 {
        taken.push(std::hint::black_box(vec![1u8; 1 << 20]));
    }
}

/// The same with memory that is shared, or a file: no rlimit counts it. Where it is not ended it ends by itself.
#[test]
#[ignore = "takes memory: run by the tests below"]
fn shared_hog() {
    let kept: Vec<OwnedFd> = (0..3).map(|_| memfd_create("hog", MemfdFlags::empty()).unwrap()).collect();
    for file in &kept {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, LIMIT / 2).unwrap();
    }
    std::thread::sleep(Duration::from_secs(60));
}

/// A program that is an engine, or the hog as long as there is `marker`.
fn program(folder: &Path, marker: &Path, test: &str) -> Program {
    let path = folder.join("program");
    let (hog, engine) = (std::env::current_exe().unwrap(), PathBuf::from(env!("CARGO_BIN_EXE_campanile")));
    let script = format!(
        "#!/bin/sh\n[ -e {} ] && exec {} --ignored --exact hogs::{test}\nexec {} \"$@\"\n",
        marker.display(),
        hog.display(),
        engine.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    until("no process that another test starts has the script open", || {
        Command::new(&path)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    let nothing = |name: &str| (name.to_owned(), "/nonexistent".to_owned());
    Program::new(path, vec![nothing("VK_DRIVER_FILES"), nothing("VK_ICD_FILENAMES")])
}

#[test]
fn an_engine_that_takes_more_memory_than_its_limit_is_lost_for_that_reason_and_others_go_on() {
    is_lost_and_others_go_on("hog");
}

#[test]
fn an_engine_that_takes_more_shared_memory_than_its_limit_is_lost_for_that_reason_and_others_go_on() {
    is_lost_and_others_go_on("shared_hog");
}

fn is_lost_and_others_go_on(hog: &str) {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("marker");
    let vgpu = |name: &str| VgpuOptions::new(name.to_owned(), folder.path().join(name), 64 << 20);
    let options = HostOptions::new(vec![vgpu("a"), vgpu("b")], program(folder.path(), &marker, hog));
    let engines = EngineOptions { spares: false, ..options.engines.clone() };
    let holding = Holding { memory: Some(LIMIT), ..Holding::default() };
    let _host = Host::start(HostOptions { engines, holding, ..options }).unwrap();
    let [vm, other_vm] =
        ["a", "b"].map(|name| LoopbackVm::connect(folder.path().join(name), &VmOptions::default()).unwrap());
    let mut other = Bystander::new(&other_vm);
    other.compute();
    fs::write(&marker, "").unwrap();
    let device = Device::open(vm.open("hog").unwrap()).unwrap();
    let error = device.create_context(Node::Copy).err().unwrap().to_string();
    assert!(error.contains("the engine process ended: signal"), "{error}");
    assert!(error.contains("its memory was limited to 64 MiB (--engine-memory)"), "{error}");
    other.compute();
    assert!(!other.is_lost());
    fs::remove_file(&marker).unwrap();
    Bystander::new(&vm).compute();
    other.compute();
}

/// In a folder with the kernel's names: what a kernel makes of it, `ci/e2e-qemu --only cgroups` shows.
#[test]
fn cgroups_are_there_as_long_as_the_host() {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in [("cgroup.controllers", "memory\n"), ("cgroup.subtree_control", "")] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    let mut delegated = Delegated::within(folder.path(), 7).unwrap();
    let of_vgpu = delegated.make_vgpu("a", Ceiling { memory: None, processes: 1, cpus: None }).unwrap();
    let made = Made { vgpus: Mutex::default(), processes: 1, delegated: Mutex::new(delegated) };
    let cgroups = Cgroups::Made(Arc::new(made));
    let vgpu = VgpuOptions::new("a".to_owned(), folder.path().join("a.sock"), 64 << 20);
    let nothing = |name: &str| (name.to_owned(), "/nonexistent".to_owned());
    let engine = PathBuf::from(env!("CARGO_BIN_EXE_campanile"));
    let program = Program::new(engine, vec![nothing("VK_DRIVER_FILES"), nothing("VK_ICD_FILENAMES")]);
    let holding = Holding { cgroups, ..Holding::default() };
    let host = Host::start(HostOptions { holding, ..HostOptions::new(vec![vgpu], program) }).unwrap();
    assert!(of_vgpu.exists());
    drop(host);
    assert!(!of_vgpu.exists());
}

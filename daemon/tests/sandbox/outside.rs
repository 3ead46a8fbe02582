//! Engines of a real daemon, as `/proc` shows them.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;

pub(crate) const NEVER: Duration = Duration::from_secs(60);

pub(crate) struct Daemon(pub(crate) Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn start(socket: &Path, arguments: &[&str]) -> Daemon {
    start_program(Path::new(env!("CARGO_BIN_EXE_campanile")), socket, arguments)
}

pub(crate) fn start_program(program: &Path, socket: &Path, arguments: &[&str]) -> Daemon {
    let mut command = Command::new(program);
    // A spare seals itself before it is told to begin, and not before it is there.
    command.args(["serve", "--vram", "64M", "--spares", "off", "--socket"]).arg(socket).args(arguments);
    Daemon(command.stdin(Stdio::null()).spawn().unwrap())
}

/// A socket that is there may not listen yet.
fn connect(socket: &Path) -> Arc<LoopbackVm> {
    let begun = Instant::now();
    loop {
        match LoopbackVm::connect(socket, &VmOptions::default()) {
            Ok(vm) => return vm,
            Err(error) => assert!(begun.elapsed() < NEVER, "the daemon does not listen: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The lines of a `status` file, by name.
pub(crate) fn status(path: &Path) -> impl Fn(&str) -> String + use<> {
    let text = fs::read_to_string(path.join("status")).unwrap();
    move |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
    }
}

pub(crate) fn engines_of(daemon: &Daemon) -> Vec<PathBuf> {
    let parent = daemon.0.id().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_engine = |process: &Path| {
        fs::read_to_string(process.join("status")).is_ok_and(|text| {
            text.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|p| p.trim() == parent))
        })
    };
    processes.filter(|process| is_engine(process)).collect()
}

pub(crate) fn run_copies(socket: &Path, check: impl FnOnce()) {
    let vm = connect(socket);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let buffer = device.create_buffer(4096).unwrap();
    // Memory of the guest: a segment that the sealed engine maps.
    let own = device.create_guest_buffer(4096).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut commands = CommandBuffer::new();
    commands
        .fill(buffer.va(), 4096, 7)
        .unwrap()
        .barrier()
        .unwrap()
        .copy(buffer.va(), own.va(), 4096)
        .unwrap();
    queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
    let mut bytes = [0; 4096];
    own.read(0, &mut bytes).unwrap();
    assert!(bytes.chunks_exact(4).all(|word| word == 7u32.to_le_bytes()));
    check();
}

#[test]
fn every_thread_of_an_engine_is_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("v.sock");
    let daemon = start(&socket, &[]);
    run_copies(&socket, || {
        let engines = engines_of(&daemon);
        assert!(!engines.is_empty());
        for engine in engines {
            for thread in fs::read_dir(engine.join("task")).unwrap() {
                let status = status(&thread.unwrap().path());
                assert_eq!(status("NoNewPrivs"), "1");
                assert_eq!(status("Seccomp"), "2", "a filter");
                assert_ne!(status("Seccomp_filters"), "0");
                for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
                    assert_eq!(u64::from_str_radix(&status(set), 16), Ok(0), "{set} of {}", status("Name"));
                }
            }
            let limits = fs::read_to_string(engine.join("limits")).unwrap();
            let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
            assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"]);
            // What dirty tracking needs: nothing above hides the engine's memory map from its daemon's user.
            assert!(fs::File::open(engine.join("pagemap")).is_ok());
        }
    });
}

#[test]
fn without_the_sandbox_an_engine_still_gains_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("v.sock");
    let daemon = start(&socket, &["--no-sandbox"]);
    run_copies(&socket, || {
        for engine in engines_of(&daemon) {
            let status = status(&engine);
            assert_eq!((status("NoNewPrivs"), status("Seccomp")), ("1".to_owned(), "0".to_owned()));
        }
    });
}

/// How long one submission takes with and without: `cargo test … -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures"]
fn a_round_trip_costs_the_same_with_and_without() {
    for round in 0..3 {
        for arguments in [[].as_slice(), &["--no-sandbox"]] {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("v.sock");
            let _daemon = start(&socket, arguments);
            let vm = connect(&socket);
            let device = Device::open(vm.open("test").unwrap()).unwrap();
            let buffer = device.create_buffer(4096).unwrap();
            let context = device.create_context(Node::Copy).unwrap();
            let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
            let mut commands = CommandBuffer::new();
            commands.fill(buffer.va(), 64, 7).unwrap();
            for (what, pause) in [("busy", Duration::ZERO), ("after 5 ms of rest", Duration::from_millis(5))]
            {
                let count = if pause.is_zero() { 20_000 } else { 300 };
                let mut times = Vec::new();
                for _ in 0..count {
                    std::thread::sleep(pause);
                    let begun = Instant::now();
                    queue.submit(&commands).unwrap().spin().unwrap();
                    times.push(begun.elapsed());
                }
                times.sort_unstable();
                println!(
                    "{round} {arguments:?} {what}: median {:?}, p10 {:?}",
                    times[count / 2],
                    times[count / 10]
                );
            }
        }
    }
}

//! CPUs that do not sleep while realtime work comes.

use std::fs;
use std::fs::File;
use std::process::Command;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::Properties;
use campanile_guest_driver::user_queue::QueueOptions;

use crate::processes::EngineView;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

/// How long CPUs may take to wake up, of all that anybody asks: µs.
fn cpu_latency() -> i32 {
    let bytes = fs::read("/dev/cpu_dma_latency").unwrap();
    i32::from_ne_bytes(bytes.try_into().unwrap())
}

#[test]
fn cpus_stay_awake_while_realtime_work_comes_and_whoever_may_not_ask_for_that_is_told() {
    const LIMIT: i32 = 77;
    let spec = ["--cpu-latency", "77"];
    if File::options().read(true).write(true).open("/dev/cpu_dma_latency").is_err() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("v0.sock");
        command.arg("serve").args(spec).arg("--vgpu");
        command.arg(format!("name=v0,socket={},vram=64M,bands=realtime", socket.display()));
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("--cpu-latency: /dev/cpu_dma_latency"), "{said}");
        return;
    }
    let daemon = Daemon::with_shares(&["bands=realtime"], &spec);
    let view = || EngineView::of(&daemon);
    let vm = daemon.vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut run = || queue.submit(&CommandBuffer::new()).unwrap().wait(Some(NEVER)).unwrap();
    run();
    assert_eq!(view().realtime(), 0, "no realtime work so far");
    let before = cpu_latency();
    context.set_scheduling(&Properties { band: Band::Realtime(0), ..Properties::default() }).unwrap();
    until("CPUs that stay awake", || {
        run();
        cpu_latency() <= LIMIT
    });
    assert_ne!(view().realtime(), 0);
    until("CPUs that may sleep again", || cpu_latency() == before);
}

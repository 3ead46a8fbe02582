//! What is refused is counted. The daemon's library in this process, since its counters cannot be seen from
//! outside; its engines are processes as ever.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_daemon::frontend::vhost::counters::Count;
use campanile_daemon::host::options::HostOptions;
use campanile_daemon::host::options::VgpuOptions;
use campanile_daemon::host::start::Host;
use campanile_host_gpu::adapter::program::Program;
use campanile_protocol::control::message;
use campanile_protocol::control::status::Status;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::raw::RawDescriptor;
use campanile_test_vmm::vm::LoopbackVm;

use crate::attacker::Attacker;
use crate::daemon::NEVER;
use crate::ring::Ring;
use crate::wire;

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[test]
fn what_is_refused_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("a.sock");
    let nothing = |name: &str| (name.to_owned(), "/nonexistent".to_owned());
    let program = Program::new(
        PathBuf::from(env!("CARGO_BIN_EXE_campanile")),
        vec![nothing("VK_DRIVER_FILES"), nothing("VK_ICD_FILENAMES")],
    );
    let vgpus = vec![VgpuOptions::new("a".to_owned(), socket.clone(), 64 << 20)];
    let host = Host::start(HostOptions::new(vgpus, program)).unwrap();
    let (counters, shell) = (&host.vgpus[0].counters, &host.vgpus[0].shell_counters);
    let vm = LoopbackVm::connect(&socket, &VmOptions::default()).unwrap();
    let attacker = Attacker::new(&vm);
    assert_eq!((load(&counters.refused_commands), load(&counters.refused_messages)), (0, 0));
    for _ in 0..3 {
        wire::command(&vm, 0x9999, 0, &[]);
    }
    assert_eq!(load(&counters.refused_commands), 3);
    assert_eq!(attacker.status(99, &[]), Status::UnknownMessage);
    assert_eq!(load(&counters.refused_messages), 1);
    let empty = RawDescriptor { address: 0, length: 0, flags: 0, next: 0 };
    vm.raw().chain(0, &[empty]).unwrap().wait(Some(NEVER)).unwrap();
    assert_eq!((shell.get(Count::Malformed), load(&counters.refused_commands)), (1, 4));
    let ring = Ring::new(&attacker);
    ring.run_first(&attacker, &[]);
    ring.reached(&attacker, 1);
    // Last-queued is zero, behind what was done (UMS-88).
    assert_eq!(attacker.named(message::DESTROY_DOORBELL, ring.bell.doorbell), Status::Ok);
    assert_eq!(load(&counters.last_queued_errors), 1);
    let ring = Ring::at(&attacker, 1 << 33);
    ring.ring(&attacker, u64::MAX);
    attacker.fault();
    assert_eq!(load(&counters.devices_lost), 1);
    assert_eq!((load(&counters.engines_lost), shell.get(Count::Panics)), (0, 0));
}

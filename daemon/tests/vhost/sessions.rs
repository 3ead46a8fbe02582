//! Claims about connections, one after the other.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_daemon::frontend::vhost::counters::Count;
use campanile_daemon::frontend::vhost::counters::Counters;
use campanile_daemon::frontend::vhost::socket::Keeping;
use campanile_daemon::frontend::vhost::socket::VgpuSocket;
use campanile_daemon::ledger::keeping::Ledger;
use campanile_daemon::service_manager;
use campanile_host_gpu::essential_thread::EXIT_STATUS;
use vhost::VhostBackend;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::bench::eventually;
use crate::device::ECHO;
use crate::device::PANIC;
use crate::device::PARK;
use crate::device::SLOW;
use crate::device::Script;
use crate::device::Seen;

/// GET_CONFIG with a payload of 16 bytes: code, flags (version 1), size.
fn header(size: u32) -> Vec<u8> {
    [24u32, 1, size].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn each_connection_has_a_device_of_its_own() {
    let bench = Bench::new();
    for session in 1..=3 {
        let mut vm = Vm::started(&bench);
        assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
        assert_eq!(bench.count(Count::Sessions), session);
        drop(vm);
        eventually("dropped", || bench.script.count(&Seen::Dropped) == usize::try_from(session).unwrap());
    }
}

#[test]
fn hang_up_frees_the_device_with_what_is_parked() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.request(0, &[PARK; 32]);
    vm.control.offer(0);
    vm.control.kick();
    eventually("taken", || bench.count(Count::Commands) == 1);
    drop(vm);
    bench.script.await_seen(&Seen::Dropped);
    let mut next = Vm::started(&bench);
    assert_eq!(next.control.round(0, &[ECHO; 32]), [ECHO; 32]);
}

#[test]
fn hang_up_in_mid_message_frees_the_session() {
    let bench = Bench::new();
    let cuts = [header(28)[..5].to_vec(), header(28), [header(28), vec![0; 9]].concat()];
    for (number, cut) in cuts.iter().enumerate() {
        let mut stream = UnixStream::connect(&bench.path).unwrap();
        stream.write_all(cut).unwrap();
        drop(stream);
        eventually("dropped", || bench.script.count(&Seen::Dropped) == number + 1);
    }
    let mut vm = Vm::started(&bench);
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
}

#[test]
fn nonsense_ends_the_session_and_no_more() {
    let bench = Bench::new();
    for seed in 0..64u8 {
        let mut stream = UnixStream::connect(&bench.path).unwrap();
        let nonsense: Vec<u8> =
            (0..96).map(|index: u8| index.wrapping_mul(37) ^ seed.wrapping_mul(91)).collect();
        let _ = stream.write_all(&[vec![seed, 0, 0, 0, 1, 0, 0, 0, 24, 0, 0, 0], nonsense].concat());
    }
    let mut vm = Vm::started(&bench);
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
    assert_eq!(bench.count(Count::Panics), 0);
}

#[test]
fn panic_of_the_device_ends_its_session_only() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.request(0, &[PANIC; 32]);
    vm.control.offer(0);
    vm.control.kick();
    bench.script.await_seen(&Seen::Dropped);
    eventually("counted", || bench.count(Count::Panics) == 1);
    assert!(vm.front.get_features().is_err(), "the front-end sees a hang-up");
    let mut next = Vm::started(&bench);
    assert_eq!(next.control.round(0, &[ECHO; 32]), [ECHO; 32]);
}

/// A daemon of this many vGPUs that another would follow; the device of the first panics.
fn daemon_that_panics(vgpus: usize) {
    service_manager::open();
    let keeping = |name: &str| Keeping { ledger: Arc::new(Ledger::new(name)), ..Keeping::default() };
    let _others: Vec<Keeping> = (1..vgpus).map(|number| keeping(&number.to_string())).collect();
    let script = Script::new(true, false);
    let made = script.clone();
    let bench = Bench::keeping(script, move || made.device(), keeping("0"));
    let mut vm = Vm::started(&bench);
    vm.control.request(0, &[PANIC; 32]);
    vm.control.offer(0);
    vm.control.kick();
    eventually("counted", || bench.count(Count::Panics) == 1);
}

#[test]
#[ignore = "ends its process: run by the test below"]
fn daemon_of_one_vgpu_panics() {
    daemon_that_panics(1);
}

#[test]
#[ignore = "run by the test below"]
fn daemon_of_two_vgpus_panics() {
    daemon_that_panics(2);
}

#[test]
fn cont_09_panic_ends_a_daemon_of_one_vgpu_so_that_the_next_one_goes_on_with_the_connection() {
    let directory = tempfile::TempDir::new().unwrap();
    let address = directory.path().join("notify");
    let store = UnixDatagram::bind(&address).unwrap();
    let hear = || {
        let (mut bytes, mut said) = ([0; 4096], Vec::new());
        while let length @ 1.. = store.recv(&mut bytes).unwrap() {
            said.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        said
    };
    for (name, expected) in [("one_vgpu", EXIT_STATUS), ("two_vgpus", 0)] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = format!("sessions::daemon_of_{name}_panics");
        command.args(["--ignored", "--exact", "--nocapture", &name]).env("NOTIFY_SOCKET", &address);
        let (output, said) = thread::scope(|scope| {
            let heard = scope.spawn(hear);
            let output = command.output().unwrap();
            // The end of what it has said.
            UnixDatagram::unbound().unwrap().send_to(&[], &address).unwrap();
            (output, heard.join().unwrap())
        });
        assert_eq!(output.status.code(), Some(expected), "{name}: {output:?}");
        let last = said.iter().rev().find(|said| said.contains("campanile.0.connection")).unwrap();
        assert_eq!(last.starts_with("FDSTORE=1"), expected == EXIT_STATUS, "{name}: {said:?}");
    }
}

#[test]
fn device_that_cannot_be_made_costs_one_connection() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("gpu0.sock");
    let (script, made) = (Script::new(false, false), AtomicUsize::new(0));
    let made_by = script.clone();
    let factory = move || match made.fetch_add(1, Ordering::Relaxed) {
        0 => Err(std::io::Error::other("no memory")),
        1 => panic!("the test asked for it"),
        _ => made_by.device(),
    };
    let counters = Arc::new(Counters::default());
    let _socket = VgpuSocket::spawn(&path, factory, counters.clone()).unwrap();
    for _ in 0..2 {
        let front = vhost::vhost_user::Frontend::connect(&path, 2).unwrap();
        assert!(front.get_features().is_err());
    }
    let front = vhost::vhost_user::Frontend::connect(&path, 2).unwrap();
    front.get_features().unwrap();
    assert_eq!(counters.get(Count::Panics), 1);
}

#[test]
fn shutdown_ends_a_live_session() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.control.request(0, &[SLOW; 32]);
    vm.control.offer(0);
    vm.control.kick();
    let Bench { script, socket, path, .. } = bench;
    socket.shutdown();
    assert_eq!(script.count(&Seen::Dropped), 1);
    assert!(!path.exists());
    assert!(vm.front.get_features().is_err());
}

#[test]
fn second_front_end_waits_for_the_first_to_leave() {
    let bench = Bench::new();
    let first = Vm::started(&bench);
    let waiting = vhost::vhost_user::Frontend::connect(&bench.path, 2).unwrap();
    let second = std::thread::spawn(move || waiting.get_features().map(|_| ()));
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(bench.count(Count::Sessions), 1);
    drop(first);
    second.join().unwrap().unwrap();
    assert_eq!(bench.count(Count::Sessions), 2);
}

//! A guest that goes from daemon to daemon with what it has parked.

use campanile_daemon::migration::state::MAGIC;
use campanile_daemon::migration::state::PACKED;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::fs::body::MAX_TIMEOUT;
use campanile_test_vmm::migration::error::Whereabouts;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::order::Order;
use tempfile::TempDir;

use crate::machine::Worker;
use crate::machine::options;
use crate::machine::raw;
use crate::support::Daemon;
use crate::waits::Open;
use crate::waits::done;

/// Two daemons that reach each other, each with a vGPU of this kind.
struct Hosts {
    _folder: TempDir,
    daemons: [Daemon; 2],
}

impl Hosts {
    fn new(specs: [&str; 2]) -> Self {
        let folder = TempDir::new().unwrap();
        let doors = ["a", "b"].map(|name| format!("unix:{}", folder.path().join(name).display()));
        let daemons = [0, 1].map(|index| {
            let arguments = ["--migrate-listen", &doors[index], "--migrate-to", &doors[1 - index]];
            Daemon::with_specs(&[specs[index]], &arguments)
        });
        Self { _folder: folder, daemons }
    }
}

const PLAIN: &str = "vram=64M,front=fs,tag=campanile";

#[test]
fn lm_58_a_guest_moves_with_its_registered_pages_and_its_waits() {
    for order in [Order::Qemu, Order::CloudHypervisor] {
        let hosts = Hosts::new([PLAIN; 2]);
        let vm = hosts.daemons[0].vm_with(0, &options());
        let mut worker = Worker::new(&vm, 512 << 10);
        worker.work(1);
        let open = Open::new(&raw(&vm));
        let memory = open.guest.memory(BlobMemory::GuestRam, 1 << 20);
        let reads = open.guest.transport().reads(memory.resource());
        for round in 0..4u8 {
            let there = usize::from(1 - round % 2);
            let wait = open.wait(MAX_TIMEOUT);
            let after_pass = Box::new(|_: &_| Next::Stop);
            let migrate = MigrateOptions { order, live: true, after_pass, ..MigrateOptions::default() };
            vm.migrate(hosts.daemons[there].socket(0), migrate).unwrap();
            worker.check();
            worker.work(round + 2);
            assert!(!done(&wait), "nothing was done: it ends by itself, on the other host");
            assert!(reads.iter().all(|read| !read.is_done()), "the pages are still the blob's");
            // Registered anew, and given up, on this host.
            let more = open.guest.memory(BlobMemory::GuestRam, 256 << 10);
            let held = open.guest.transport().reads(more.resource());
            open.guest.unmap(&more);
            open.guest.free(more);
            assert!(held.iter().all(|read| read.wait().is_ok()));
        }
        let last = open.wait(MAX_TIMEOUT);
        let migrate = MigrateOptions { order, ..MigrateOptions::default() };
        vm.migrate(hosts.daemons[1].socket(0), migrate).unwrap();
        open.finish();
        assert!(done(&last) || done(&open.wait(0)), "answered by another host than it was asked");
        open.guest.unmap(&memory);
        open.guest.free(memory);
        assert!(reads.iter().all(|read| read.wait().is_ok()));
        drop(worker);
    }
}

#[test]
fn a_guest_moves_with_its_aperture_and_not_to_another_kind_of_device() {
    let specs = [PLAIN, "vram=64M,front=fs,tag=campanile,aperture=4M"];
    let hosts = Hosts::new(specs);
    let vm = hosts.daemons[0].vm_with(0, &options());
    let mut worker = Worker::new(&vm, 64 << 10);
    worker.work(1);
    vm.migrate(hosts.daemons[1].socket(0), MigrateOptions::default()).unwrap_err();
    worker.check();
    worker.work(2);
    let hosts = Hosts::new([specs[1]; 2]);
    let vm = hosts.daemons[0].vm_with(0, &VmOptions { aperture: 4 << 20, ..options() });
    let mut worker = Worker::new(&vm, 64 << 10);
    for (round, there) in (1..).zip([1, 0]) {
        worker.work(round);
        vm.migrate(hosts.daemons[there].socket(0), MigrateOptions::default()).unwrap();
        worker.check();
    }
    worker.work(9);
}

/// The version that a state says, and the oldest reader that it needs.
fn with_version(state: &[u8], version: u32) -> Vec<u8> {
    let mut state = state.to_vec();
    let at = state.windows(8).position(|bytes| *bytes == MAGIC).unwrap();
    for word in state[at + 8..at + 16].as_chunks_mut::<4>().0 {
        *word = version.to_le_bytes();
    }
    state
}

#[test]
fn lm_20_a_target_that_is_older_than_the_state_refuses_it_and_the_guest_goes_on() {
    let hosts = Hosts::new([PLAIN; 2]);
    let vm = hosts.daemons[0].vm_with(0, &options());
    let mut worker = Worker::new(&vm, 64 << 10);
    worker.work(1);
    let saved = vm.save().unwrap();
    // A reader of today is an older one to states of tomorrow.
    let newer = saved.with_state(with_version(saved.state(), PACKED + 1));
    let shell = saved.with_state([b"CAMPVHST\x09\0\0\0\x09\0\0\0", &saved.state()[16..]].concat());
    for refused in [newer, shell] {
        vm.restore(hosts.daemons[1].socket(0), &refused, Order::Qemu).unwrap_err();
    }
    vm.go_on(&saved).unwrap();
    worker.check();
    worker.work(2);
}

#[test]
fn lm_33_a_guest_does_not_move_to_a_smaller_vgpu_and_goes_on() {
    let hosts = Hosts::new([PLAIN, "vram=32M,front=fs,tag=campanile"]);
    let vm = hosts.daemons[0].vm_with(0, &options());
    let mut worker = Worker::new(&vm, 64 << 10);
    for round in 0..2 {
        worker.work(round);
        let error = vm.migrate(hosts.daemons[1].socket(0), MigrateOptions::default()).unwrap_err();
        assert_eq!(error.guest, Whereabouts::Source, "{error}");
        worker.check();
    }
    worker.work(9);
}

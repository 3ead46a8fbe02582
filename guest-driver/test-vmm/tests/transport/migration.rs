//! A VM that moves between two fake devices.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::TransportError;
use campanile_test_vmm::migration::error::Step;
use campanile_test_vmm::migration::error::Whereabouts;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::migration::options::Pass;
use campanile_test_vmm::migration::options::Ram;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::order::Order;
use campanile_test_vmm::vm::LoopbackVm;

use crate::fake_device;
use crate::fake_device::FakeDevice;
use crate::fake_device::vram_word;

/// Passes of a live move; commands go on meanwhile.
const PASSES: u32 = 3;

struct Host {
    device: Arc<FakeDevice>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn host() -> Host {
    let (folder, path) = crate::socket();
    let device = Arc::new(FakeDevice::new());
    // It ends with its only connection.
    let _server = fake_device::serve(Arc::clone(&device), &path);
    Host { device, path, _folder: folder }
}

/// Guest threads under load: one sends commands, one counts in video memory, one in guest RAM.
struct Guest {
    vm: Arc<LoopbackVm>,
    over: Arc<AtomicBool>,
    commands: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<u64>>,
}

fn guest(vm: &Arc<LoopbackVm>) -> Guest {
    let over: Arc<AtomicBool> = Arc::default();
    let commands: Arc<AtomicU64> = Arc::default();
    let mut threads = Vec::new();
    for kind in 0..3 {
        let (vm, over, commands) = (Arc::clone(vm), Arc::clone(&over), Arc::clone(&commands));
        threads.push(std::thread::spawn(move || {
            let _cpu = vm.virtual_cpu().unwrap();
            let process = vm.open("guest").unwrap();
            if kind == 0 {
                while !over.load(Ordering::Relaxed) {
                    process.submit(b"work", None).unwrap().wait(None).unwrap();
                    commands.fetch_add(1, Ordering::Relaxed);
                }
                return 0;
            }
            let memory = if kind == 1 { BlobMemory::Vram } else { BlobMemory::GuestRam };
            let shared = process.map(&process.create_blob(memory, 1 << 16).unwrap()).unwrap();
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                // Each store is seen by the next load, wherever the guest is then.
                for page in 0..16 {
                    let word = shared.word(page * 4096).unwrap();
                    assert_eq!(word.load(Ordering::Relaxed), count);
                    word.store(count + 1, Ordering::Relaxed);
                }
                count += 1;
                // The thread that sends commands is to have its turn on few CPUs, too.
                std::thread::yield_now();
            }
            count
        }));
    }
    let guest = Guest { vm: Arc::clone(vm), over, commands, threads };
    guest.work();
    guest
}

impl Guest {
    /// Waits until commands were answered once more.
    fn work(&self) {
        let before = self.commands.load(Ordering::Relaxed);
        assert!(crate::eventually(|| self.commands.load(Ordering::Relaxed) > before + 5));
    }

    fn end(self) {
        self.work();
        assert!(self.vm.is_connected());
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Moves a guest under load there and back, several times.
fn there_and_back(options: &VmOptions, order: Order, live: bool, ram: Ram) {
    let first = host();
    let vm = LoopbackVm::connect(&first.path, options).unwrap();
    let guest = guest(&vm);
    let mut at = first;
    for _ in 0..4 {
        let next = host();
        let after_pass = |pass: &Pass| {
            guest.work();
            if pass.number + 1 < PASSES { Next::Again } else { Next::Stop }
        };
        let moving =
            MigrateOptions { order, live, ram, after_pass: Box::new(after_pass), ..Default::default() };
        let report = vm.migrate(&next.path, moving).unwrap();
        assert_eq!(
            report.passes.len(),
            if live { PASSES as usize + 1 } else { usize::from(ram != Ram::Stays) }
        );
        assert_eq!(*next.device.transfer.loads.lock().unwrap(), 1);
        guest.work();
        at = next;
    }
    // What the guest has is what the last device has.
    vm.pause().unwrap();
    let words: Vec<_> = (0..16).map(|page| vram_word(&at.device, page * 4096)).collect();
    assert!(words.iter().any(|word| *word > 0));
    vm.resume().unwrap();
    guest.end();
}

#[test]
fn guest_threads_go_on_while_their_vm_moves_between_fakes_in_qemus_order() {
    there_and_back(&VmOptions::default(), Order::Qemu, true, Ram::Stays);
}

#[test]
fn guest_threads_go_on_while_their_vm_moves_between_fakes_in_cloud_hypervisors_order() {
    there_and_back(&VmOptions::default(), Order::CloudHypervisor, true, Ram::Stays);
}

#[test]
fn a_vm_moves_without_a_live_phase() {
    for order in [Order::Qemu, Order::CloudHypervisor] {
        there_and_back(&VmOptions::default(), order, false, Ram::Stays);
    }
}

#[test]
fn dirty_55_guest_ram_moves_by_the_log_alone() {
    let options = VmOptions { ram: 8 << 20, ..VmOptions::default() };
    for order in [Order::Qemu, Order::CloudHypervisor] {
        there_and_back(&options, order, true, Ram::Moves);
    }
}

/// What the guest reads in its RAM after a move, where the device wrote 7 between the copy and the pause.
fn read_after_move(ram: Ram) -> u64 {
    let options = VmOptions { ram: 8 << 20, ..VmOptions::default() };
    let (first, next) = (host(), host());
    let vm = LoopbackVm::connect(&first.path, &options).unwrap();
    let process = vm.open("guest").unwrap();
    let blob = process.create_blob(BlobMemory::GuestRam, 4096).unwrap();
    let word = process.map(&blob).unwrap();
    let word = word.word(0).unwrap();
    word.store(3, Ordering::Relaxed);
    let after_pass = |pass: &Pass| {
        if pass.number > 0 {
            return Next::Stop;
        }
        first.device.write_guest_blob(blob.resource_id(), 7);
        Next::Again
    };
    let moving = MigrateOptions { ram, after_pass: Box::new(after_pass), ..Default::default() };
    vm.migrate(&next.path, moving).unwrap();
    word.load(Ordering::Relaxed)
}

#[test]
fn dirty_55_what_the_device_wrote_moves_and_without_its_log_the_guest_reads_the_past() {
    assert_eq!(read_after_move(Ram::Moves), 7);
    assert_eq!(read_after_move(Ram::MovesWithoutLog), 3);
}

#[test]
fn lm_65_a_vmm_that_gives_up_leaves_the_guest_on_the_source() {
    for live in [true, false] {
        for step in Step::ALL {
            if step == Step::Window || (!live && step == Step::Passes) {
                continue;
            }
            let (first, next) = (host(), host());
            let vm = LoopbackVm::connect(&first.path, &VmOptions::default()).unwrap();
            let guest = guest(&vm);
            let moving = MigrateOptions { live, give_up_at: Some(step), ..Default::default() };
            let error = vm.migrate(&next.path, moving).unwrap_err();
            assert_eq!((error.step, error.guest), (step, Whereabouts::Source));
            assert!(matches!(error.source, TransportError::GivenUp));
            guest.work();
            // And it can still move.
            let next = host();
            vm.migrate(&next.path, MigrateOptions::default()).unwrap();
            guest.end();
        }
    }
}

#[test]
fn lm_65_a_state_that_cannot_be_saved_or_loaded_leaves_the_guest_on_the_source() {
    for load in [false, true] {
        let (first, next) = (host(), host());
        let vm = LoopbackVm::connect(&first.path, &VmOptions::default()).unwrap();
        let guest = guest(&vm);
        let failing = if load { &next.device.transfer.fail_load } else { &first.device.transfer.fail_save };
        *failing.lock().unwrap() = true;
        let error = vm.migrate(&next.path, MigrateOptions::default()).unwrap_err();
        assert_eq!(error.step, if load { Step::Load } else { Step::Save });
        assert_eq!(error.guest, Whereabouts::Source);
        guest.end();
    }
}

#[test]
fn a_source_that_dies_in_the_pause_after_its_state_is_out_is_not_missed() {
    let (first, next) = (host(), host());
    let vm = LoopbackVm::connect(&first.path, &VmOptions::default()).unwrap();
    let guest = guest(&vm);
    vm.migrate(&next.path, MigrateOptions::default()).unwrap();
    // The first device's connection is closed by now; its end lost nothing.
    assert!(vm.is_connected());
    guest.work();
    next.device.cut.lock().unwrap().as_ref().unwrap().shutdown();
    assert!(crate::eventually(|| !vm.is_connected()));
    guest.over.store(true, Ordering::Relaxed);
    for thread in guest.threads {
        // The one that sends commands lost its device.
        let _ended = thread.join();
    }
}

#[test]
fn a_target_that_is_not_there_is_said_before_anything_stops() {
    let first = host();
    let vm = LoopbackVm::connect(&first.path, &VmOptions::default()).unwrap();
    let guest = guest(&vm);
    let error = vm.migrate(first.path.with_extension("none"), MigrateOptions::default()).unwrap_err();
    assert_eq!((error.step, error.guest), (Step::Connect, Whereabouts::Source));
    guest.end();
}

#[test]
fn lm_66_a_saved_device_goes_on_here_and_elsewhere() {
    for order in [Order::Qemu, Order::CloudHypervisor] {
        let (first, next) = (host(), host());
        let vm = LoopbackVm::connect(&first.path, &VmOptions::default()).unwrap();
        let guest = guest(&vm);
        let saved = vm.save().unwrap();
        assert!(saved.state().len() > 1 << 20);
        assert!(matches!(vm.resume(), Err(TransportError::Paused)));
        let before = guest.commands.load(Ordering::Relaxed);
        vm.go_on(&saved).unwrap();
        assert!(crate::eventually(|| guest.commands.load(Ordering::Relaxed) > before));
        let saved = vm.save().unwrap();
        vm.restore(&next.path, &saved, order).unwrap();
        guest.end();
    }
}

#[test]
fn commands_of_threads_that_are_no_virtual_cpus_wait_for_the_end_of_a_pause() {
    let first = host();
    let vm = LoopbackVm::connect(&first.path, &VmOptions::default()).unwrap();
    let process = vm.open("guest").unwrap();
    let sent = vm.commands_sent();
    vm.pause().unwrap();
    let thread = std::thread::spawn(move || process.submit(b"work", None).unwrap().wait(None));
    std::thread::yield_now();
    assert_eq!(vm.commands_sent(), sent);
    vm.resume().unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
fn a_virtual_cpu_cannot_stop_itself() {
    let first = host();
    let vm = LoopbackVm::connect(&first.path, &VmOptions::default()).unwrap();
    let _cpu = vm.virtual_cpu().unwrap();
    assert!(matches!(vm.pause(), Err(TransportError::VirtualCpu)));
    assert!(matches!(vm.virtual_cpu(), Err(TransportError::VirtualCpu)));
    let error = vm
        .migrate(
            &first.path,
            MigrateOptions { live: false, order: Order::CloudHypervisor, ..Default::default() },
        )
        .unwrap_err();
    assert_eq!(error.step, Step::Pause);
}

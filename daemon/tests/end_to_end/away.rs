//! A vGPU that is taken away from its VM and comes back, here or on another daemon, while programs of the guest use it
//! (decision 64): they see a pause.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel_queue::KernelQueue;
use campanile_guest_driver::native_fence::FenceKind;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_test_vmm::vm::LoopbackVm;
use tempfile::TempDir;

use crate::operator::Operated;
use crate::support::Ends;
use crate::support::NEVER;
use crate::support::until;

const BYTES: u64 = 1 << 20;

/// Daemons, and what goes from one to another.
struct Hosts {
    folder: TempDir,
    hosts: Vec<Operated>,
}

impl Hosts {
    fn new(count: usize) -> Self {
        let hosts = (0..count).map(|_| Operated::with(1, &[])).collect();
        Self { folder: tempfile::tempdir().unwrap(), hosts }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("away")
    }

    fn host(&self, index: usize) -> &Operated {
        &self.hosts[index]
    }

    /// The vGPU's programs let go of it; how many did, and how many were lost.
    fn detach(&self, from: usize, limit: &str) -> (u64, usize) {
        let file = self.file();
        let answer =
            self.host(from).ask(&["detach", "--vgpu", "v0", "--limit", limit, file.to_str().unwrap()]);
        (answer["parked"].as_u64().unwrap(), answer["lost"].as_array().unwrap().len())
    }

    /// The device goes, and one of `to` comes.
    fn replug(&self, vm: &LoopbackVm, to: usize) {
        vm.unplug().unwrap();
        self.plug(vm, to);
    }

    fn plug(&self, vm: &LoopbackVm, to: usize) {
        let host = self.host(to);
        until("the old connection's end", || {
            !host.ask(&["status"])["vgpus"][0]["vm_connected"].as_bool().unwrap()
        });
        host.ask(&["attach", "--vgpu", "v0", self.file().to_str().unwrap()]);
        vm.plug(host.daemon.socket(0)).unwrap();
    }
}

/// Waits until a count has risen by more than `by`.
fn more(of: &AtomicU64, by: u64) {
    let before = of.load(Ordering::Relaxed);
    until("more rounds", || of.load(Ordering::Relaxed) > before + by);
}

/// A program with a bit of everything.
struct Program {
    device: Device,
    source: Buffer,
    target: Buffer,
    queue: UserQueue,
    kernel_queue: KernelQueue,
}

impl Program {
    fn open(vm: &Arc<LoopbackVm>) -> Self {
        Self::on(Device::open(vm.open("program").unwrap()).unwrap())
    }

    fn on(device: Device) -> Self {
        let (source, target) = (device.create_buffer(BYTES).unwrap(), device.create_buffer(BYTES).unwrap());
        let context = device.create_context(Node::Copy).unwrap();
        let queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        let kernel_queue = context.create_kernel_queue().unwrap();
        Self { device, source, target, queue, kernel_queue }
    }

    fn copy(&self) -> CommandBuffer {
        let mut commands = CommandBuffer::new();
        commands.copy(self.source.va(), self.target.va(), BYTES).unwrap();
        commands
    }

    /// One round through each kind of queue.
    fn round(&mut self, number: u64) {
        let value = number.to_le_bytes();
        for at in [0, BYTES - 8] {
            self.source.write(at, &value).unwrap();
        }
        let commands = self.copy();
        if number.is_multiple_of(2) {
            self.queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
        } else {
            let ticket = self.kernel_queue.submit(&commands).unwrap();
            self.kernel_queue.wait(ticket, Some(NEVER)).unwrap();
        }
        for at in [0, BYTES - 8] {
            let mut seen = [0; 8];
            self.target.read(at, &mut seen).unwrap();
            assert_eq!(seen, value, "round {number} at {at}");
        }
    }
}

#[test]
fn programs_see_a_pause_where_their_device_is_taken_away_and_comes_back_here_or_elsewhere() {
    let hosts = Hosts::new(2);
    let vm = hosts.host(0).daemon.vm(0);
    let (ends, rounds) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    std::thread::scope(|scope| {
        let end = Ends(&ends);
        for rounds in &rounds {
            let (vm, ends) = (Arc::clone(&vm), &ends);
            scope.spawn(move || {
                let mut program = Program::open(&vm);
                while !ends.load(Ordering::Acquire) {
                    program.round(rounds.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
        let go_on = || rounds.iter().for_each(|rounds| more(rounds, 4));
        go_on();
        for to in [0, 1, 1, 0] {
            let from =
                usize::from(!hosts.host(0).ask(&["status"])["vgpus"][0]["vm_connected"].as_bool().unwrap());
            assert_eq!(hosts.detach(from, "20000"), (2, 0));
            hosts.replug(&vm, to);
            go_on();
            assert_eq!(hosts.host(to).counter(0, "stayed_away"), 0);
        }
        drop(end);
    });
}

#[test]
fn who_opens_a_device_that_is_about_to_go_gets_the_one_that_comes() {
    let hosts = Hosts::new(2);
    let vm = hosts.host(0).daemon.vm(0);
    let mut program = Program::open(&vm);
    assert_eq!(hosts.detach(0, "20000"), (1, 0));
    std::thread::scope(|scope| {
        let opens = scope.spawn(|| Program::open(&vm).round(1));
        until("its refusal", || hosts.host(0).counter(0, "refused_messages") > 0);
        hosts.replug(&vm, 1);
        opens.join().unwrap();
    });
    program.round(1);
    assert_eq!(hosts.host(1).counter(0, "returned"), 1, "who was not there does not come back");
}

#[test]
fn nobody_is_lost_who_begins_or_ends_as_the_device_goes() {
    let hosts = Hosts::new(1);
    let vm = hosts.host(0).daemon.vm(0);
    let (ends, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let end = Ends(&ends);
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Acquire) {
                    match vm.open("program").map_err(DriverError::from).and_then(Device::open) {
                        Ok(device) => Program::on(device).round(rounds.fetch_add(1, Ordering::Relaxed)),
                        // There is none just now.
                        Err(DriverError::Transport(
                            TransportError::Disconnected | TransportError::DeviceReset,
                        )) => {
                            std::thread::yield_now();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        for _ in 0..10 {
            more(&rounds, 2);
            assert_eq!(hosts.detach(0, "20000").1, 0, "nobody is lost");
            hosts.replug(&vm, 0);
        }
        drop(end);
    });
    assert_eq!(hosts.host(0).counter(0, "stayed_away"), 0);
}

#[test]
fn a_program_whose_messages_have_all_slots_of_its_page_comes_back() {
    let hosts = Hosts::new(1);
    let vm = hosts.host(0).daemon.vm(0);
    let program = Program::open(&vm);
    // Answered, and nobody has come for the answers: slots are freed where somebody needs one.
    let context = program.device.create_context(Node::Copy).unwrap();
    let mut queues: Vec<KernelQueue> = (0..8).map(|_| context.create_kernel_queue().unwrap()).collect();
    let (ends, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    for _ in 0..3 {
        for _ in 0..4 {
            for queue in &mut queues {
                queue.submit(&program.copy()).unwrap();
            }
        }
        ends.store(false, Ordering::Release);
        std::thread::scope(|scope| {
            let end = Ends(&ends);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ends.load(Ordering::Acquire) {
                        drop(program.device.create_fence(FenceKind::Default, 0).unwrap());
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            more(&rounds, 4);
            assert_eq!(hosts.detach(0, "20000"), (1, 0));
            hosts.replug(&vm, 0);
            more(&rounds, 4);
            drop(end);
        });
        assert_eq!(hosts.host(0).counter(0, "stayed_away"), 0);
    }
}

#[test]
fn what_is_waited_for_is_waited_for_on_the_device_that_comes() {
    let hosts = Hosts::new(2);
    let vm = hosts.host(0).daemon.vm(0);
    let mut program = Program::open(&vm);
    let fence = program.device.create_fence(FenceKind::Default, 0).unwrap();
    program.source.write(0, &[1; 8]).unwrap();
    // Behind a fence: in kernel mode, and in user mode.
    let mut commands = CommandBuffer::new();
    commands.wait(fence.va(), 7).unwrap().copy(program.source.va(), program.target.va(), BYTES).unwrap();
    let ticket = program.kernel_queue.submit(&commands).unwrap();
    let mut commands = CommandBuffer::new();
    commands.wait(fence.va(), 8).unwrap().signal(fence.va(), 9).unwrap();
    let point = program.queue.submit(&commands).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| fence.wait(9, Some(NEVER)));
        let also_waits = scope.spawn(|| point.wait(Some(NEVER)));
        until("two waits", || vm.free_descriptors() < 1020);
        assert_eq!(hosts.detach(0, "20000"), (1, 0));
        assert!(!program.kernel_queue.is_done(ticket));
        // Stores go on while it is away.
        let word = program.source.memory().word(64).unwrap();
        word.store(77, Ordering::Relaxed);
        hosts.replug(&vm, 1);
        fence.signal(7).unwrap();
        program.kernel_queue.wait(ticket, Some(NEVER)).unwrap();
        let mut seen = [0; 8];
        program.target.read(64, &mut seen).unwrap();
        assert_eq!(u64::from_le_bytes(seen), 77, "stored while it was away");
        assert_eq!(word.load(Ordering::Relaxed), 77, "at the same address");
        fence.signal(8).unwrap();
        waits.join().unwrap().unwrap();
        also_waits.join().unwrap().unwrap();
    });
    program.round(2);
    program.round(3);
}

#[test]
fn a_detach_that_is_called_off_leaves_programs_as_they_were() {
    let hosts = Hosts::new(1);
    let vm = hosts.host(0).daemon.vm(0);
    let mut program = Program::open(&vm);
    program.round(1);
    assert_eq!(hosts.detach(0, "20000"), (1, 0));
    std::thread::scope(|scope| {
        let opens = scope.spawn(|| Program::open(&vm).round(1));
        until("its refusal", || hosts.host(0).counter(0, "refused_messages") > 0);
        // Programs look for another device for a while before they try the one that they left.
        hosts.host(0).ask(&["attach", "--vgpu", "v0"]);
        opens.join().unwrap();
    });
    program.round(2);
    assert_eq!(hosts.host(0).counter(0, "returned"), 1);
}

/// A program whose buffers lie in pages of the guest.
#[test]
fn pages_of_the_guest_go_along() {
    let hosts = Hosts::new(2);
    let vm = hosts.host(0).daemon.vm(0);
    let mut program = Program::open(&vm);
    program.target = program.device.create_guest_buffer(BYTES).unwrap();
    let mut more = program.device.create_guest_buffer(BYTES).unwrap();
    for (number, to) in (1..).zip([1, 0, 0]) {
        program.round(number);
        more.write(16, &[7; 8]).unwrap();
        assert_eq!(hosts.detach(usize::from(number == 2), "20000"), (1, 0));
        hosts.replug(&vm, to);
        program.round(number + 10);
        program.target = std::mem::replace(&mut more, program.target);
    }
    program.round(20);
}

#[test]
fn a_program_goes_along_between_daemons_whose_local_memory_lies_in_different_places() {
    let hosts = ["host", "device"].map(|place| Operated::with(1, &["--local-memory", place]));
    let hosts = Hosts { folder: tempfile::tempdir().unwrap(), hosts: hosts.into() };
    let vm = hosts.host(0).daemon.vm(0);
    let mut program = Program::open(&vm);
    for (number, to) in (1..).zip([1, 0, 1]) {
        program.round(number);
        assert_eq!(hosts.detach(1 - to, "20000"), (1, 0));
        hosts.replug(&vm, to);
        program.round(number + 10);
    }
}

#[test]
fn who_is_too_late_loses_the_device_keeps_what_it_sees_and_ends() {
    let hosts = Hosts::new(1);
    let vm = hosts.host(0).daemon.vm(0);
    let mut program = Program::open(&vm);
    program.source.write(0, &[7; 8]).unwrap();
    let fence = program.device.create_fence(FenceKind::Default, 0).unwrap();
    let mut commands = CommandBuffer::new();
    commands.wait(fence.va(), 7).unwrap();
    for _ in 0..3 {
        program.kernel_queue.submit(&commands).unwrap();
    }
    assert_eq!(hosts.detach(0, "0"), (0, 1));
    until("its loss", || matches!(program.device.check(), Err(DriverError::DeviceLost(_))));
    vm.unplug().unwrap();
    let mut seen = [0; 8];
    program.source.read(0, &mut seen).unwrap();
    assert_eq!(seen, [7; 8]);
    // Its end does not wait for what nobody answers.
    drop((program, fence));
    hosts.plug(&vm, 0);
    assert!(hosts.file().exists(), "nobody has spoken to it yet");
    Program::open(&vm).round(1);
    assert!(!hosts.file().exists(), "who speaks to it has it");
}

/// A VM without a window: the device page itself is the guest's.
#[test]
fn a_program_whose_page_is_the_guests_is_lost_and_says_so() {
    let hosts =
        Hosts { folder: tempfile::tempdir().unwrap(), hosts: vec![Operated::with(1, &["--no-window"])] };
    let vm = hosts.host(0).daemon.vm(0);
    let program = Program::open(&vm);
    assert_eq!(hosts.detach(0, "500"), (0, 1));
    until("its loss", || matches!(program.device.check(), Err(DriverError::DeviceLost(_))));
}

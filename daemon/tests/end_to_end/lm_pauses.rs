//! Guests under load whose virtual CPUs and device are stopped, anywhere and again and again, and go on at the source.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use campanile_guest::animation::copier;
use campanile_guest::animation::guest;
use campanile_guest::animation::guest::Ending;
use campanile_guest::animation::guest::Progress;
use campanile_guest::animation::renderer;
use campanile_guest::animation::renderer::Animation;
use campanile_guest::animation::scribbler;
use campanile_guest::target::Machine;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::migration::error::Step;
use campanile_test_vmm::migration::error::Whereabouts;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::migration::options::Pass;
use campanile_test_vmm::migration::options::Ram;
use campanile_test_vmm::order::Order;
use campanile_test_vmm::vm::LoopbackVm;

use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

/// Words of a frame.
const WORDS: u32 = 16384;
/// Frames of a guest that is told when to end.
pub(crate) const ENDLESS: u64 = 1 << 31;

/// A renderer, a copier and a scribbler.
pub(crate) struct Crew {
    progress: Arc<Progress>,
    sum: Arc<Mutex<Option<u64>>>,
    threads: Vec<JoinHandle<Ending>>,
}

pub(crate) fn crew(vm: &Arc<LoopbackVm>, frames: u64) -> Crew {
    let progress: Arc<Progress> = Arc::default();
    let sum: Arc<Mutex<Option<u64>>> = Arc::default();
    let animation = Animation { frames, words: WORDS, tells: false };
    let machine = Machine::Loopback(Arc::clone(vm));
    let render = {
        let sum = Arc::clone(&sum);
        move |machine: &Machine, progress: &Progress| renderer::run(machine, progress, animation, &sum)
    };
    let threads = vec![
        guest::start("renderer", &machine, &progress, render).unwrap(),
        guest::start("copier", &machine, &progress, copier::run).unwrap(),
        guest::start("scribbler", &machine, &progress, scribbler::run).unwrap(),
    ];
    Crew { progress, sum, threads }
}

impl Crew {
    /// Waits until each of them has got on.
    pub(crate) fn work(&self) {
        let counters = [&self.progress.frames, &self.progress.copies, &self.progress.scribbles];
        let before = counters.map(|counter| counter.load(Ordering::Relaxed));
        until("work of every guest thread", || {
            let moved = |(counter, before): (&&AtomicU64, &u64)| counter.load(Ordering::Relaxed) > *before;
            counters.iter().zip(&before).all(moved) || self.progress.is_over()
        });
        assert!(!self.progress.is_over(), "the guest ended");
    }

    /// Ends it now, and compares with an undisturbed run of as many frames.
    pub(crate) fn end_as_if_undisturbed(self) {
        self.work();
        self.progress.over.store(true, Ordering::Relaxed);
        let progress = Arc::clone(&self.progress);
        let sum = self.end();
        assert_eq!(sum, checksum_of_an_undisturbed_run(progress.frames.load(Ordering::Relaxed)));
    }

    /// The rest of the frames; the checksum of what they left behind.
    fn end(self) -> u64 {
        for thread in self.threads {
            let ending = thread.join().unwrap();
            assert!(matches!(ending, Ending::Done), "{ending:?}");
        }
        self.sum.lock().unwrap().expect("the renderer is done")
    }
}

fn checksum_of_an_undisturbed_run(frames: u64) -> u64 {
    let daemon = Daemon::start();
    crew(&daemon.vm(0), frames).end()
}

/// As a VMM that stops everything for a migration, and then changes its mind.
fn stop_and_go_on(vm: &LoopbackVm, target: &Daemon, live: bool, mut while_paused: impl FnMut()) {
    let moving = MigrateOptions {
        live,
        after_pass: Box::new(|_| Next::Stop),
        while_paused: Box::new(&mut while_paused),
        give_up_at: Some(Step::Save),
        ..MigrateOptions::default()
    };
    let error = vm.migrate(target.socket(0), moving).unwrap_err();
    assert_eq!((error.step, error.guest), (Step::Save, Whereabouts::Source), "{error}");
}

#[test]
fn lm_51_guests_in_their_ring_and_check_loops_lose_nothing_over_many_stops() {
    let hosts = pair();
    let vm = hosts.daemons[0].vm(0);
    let crew = crew(&vm, ENDLESS);
    for stop in 0..10 {
        crew.work();
        stop_and_go_on(&vm, &hosts.daemons[1], stop % 2 == 0, || ());
    }
    crew.end_as_if_undisturbed();
}

#[test]
fn lm_23_nothing_changes_guest_ram_or_video_memory_while_cpus_and_device_are_paused() {
    let hosts = pair();
    let vm = hosts.daemons[0].vm(0);
    let crew = crew(&vm, ENDLESS);
    for _ in 0..3 {
        crew.work();
        let running = vm.raw().checksum();
        until("a change while the guest runs", || vm.raw().checksum() != running);
        let mut checked = false;
        stop_and_go_on(&vm, &hosts.daemons[1], true, || {
            let first = vm.raw().checksum();
            for _ in 0..5 {
                assert_eq!(vm.raw().checksum(), first);
            }
            checked = true;
        });
        assert!(checked);
    }
    crew.end_as_if_undisturbed();
}

#[test]
fn a_paused_guest_stands_still_in_the_middle_of_its_work_and_goes_on() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let crew = crew(&vm, ENDLESS);
    for _ in 0..100 {
        vm.pause().unwrap();
        let before = crew.progress.frames.load(Ordering::Relaxed);
        std::thread::yield_now();
        assert_eq!(crew.progress.frames.load(Ordering::Relaxed), before);
        vm.resume().unwrap();
    }
    crew.end_as_if_undisturbed();
}

/// Two daemons, each the other's peer.
struct Pair {
    daemons: [Daemon; 2],
    _peers: tempfile::TempDir,
}

fn pair() -> Pair {
    let peers = tempfile::tempdir().unwrap();
    let peer = |index: usize| format!("unix:{}", peers.path().join(index.to_string()).display());
    let daemon = |own: usize, other: usize| {
        Daemon::with(&["--migrate-listen", &peer(own), "--migrate-to", &peer(other)])
    };
    Pair { daemons: [daemon(0, 1), daemon(1, 0)], _peers: peers }
}

fn round_trips(order: Order, live: bool, ram: Ram) {
    let hosts = pair();
    let vm = hosts.daemons[0].vm(0);
    let crew = crew(&vm, ENDLESS);
    for hop in 1..=4 {
        crew.work();
        let after_pass = |pass: &Pass| {
            crew.work();
            if pass.number < 1 { Next::Again } else { Next::Stop }
        };
        let moving =
            MigrateOptions { order, live, ram, after_pass: Box::new(after_pass), ..Default::default() };
        vm.migrate(hosts.daemons[hop % 2].socket(0), moving).unwrap();
    }
    crew.end_as_if_undisturbed();
}

#[test]
fn lm_63_round_trips_under_load_in_qemus_order_equal_an_unmigrated_run() {
    round_trips(Order::Qemu, true, Ram::Stays);
}

#[test]
fn lm_63_round_trips_under_load_in_cloud_hypervisors_order_equal_an_unmigrated_run() {
    round_trips(Order::CloudHypervisor, true, Ram::Stays);
}

#[test]
fn lm_63_round_trips_in_one_piece_equal_an_unmigrated_run() {
    round_trips(Order::Qemu, false, Ram::Stays);
}

#[test]
fn dirty_55_round_trips_with_guest_ram_that_moves_by_its_log_equal_an_unmigrated_run() {
    round_trips(Order::Qemu, true, Ram::Moves);
}

#[test]
fn dirty_58_after_the_blackout_the_target_equals_the_source_byte_for_byte() {
    let hosts = pair();
    let vm = hosts.daemons[0].vm(0);
    let device = Device::open(vm.open("bytes").unwrap()).unwrap();
    let buffers: Vec<_> = (0..8).map(|_| device.create_buffer(1 << 20).unwrap()).collect();
    let mut queue =
        device.create_context(Node::Copy).unwrap().create_user_queue(&QueueOptions::default()).unwrap();
    for hop in 1..=4_u32 {
        // Some by the engine, some by the CPU, some not at all.
        let mut commands = CommandBuffer::new();
        commands.fill(buffers[0].va(), 1 << 19, hop).unwrap().fill(buffers[3].va(), 4096, !hop).unwrap();
        queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
        buffers[5].write(u64::from(hop) * 8192, &[7; 5000]).unwrap();
        let (source, target) = (std::cell::Cell::new(0), std::cell::Cell::new(1));
        let moving = MigrateOptions {
            while_paused: Box::new(|| source.set(vm.raw().window_checksum())),
            when_there: Box::new(|| target.set(vm.raw().window_checksum())),
            ..MigrateOptions::default()
        };
        vm.migrate(hosts.daemons[usize::try_from(hop % 2).unwrap()].socket(0), moving).unwrap();
        assert_eq!(source, target, "hop {hop}");
        let mut bytes = [0; 4];
        buffers[0].read(0, &mut bytes).unwrap();
        assert_eq!(u32::from_le_bytes(bytes), hop);
    }
}

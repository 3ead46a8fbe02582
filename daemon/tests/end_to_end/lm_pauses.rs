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
use campanile_guest_driver::transport::loopback::migration::error::Step;
use campanile_guest_driver::transport::loopback::migration::error::Whereabouts;
use campanile_guest_driver::transport::loopback::migration::options::MigrateOptions;
use campanile_guest_driver::transport::loopback::migration::options::Next;
use campanile_guest_driver::transport::loopback::vm::LoopbackVm;

use crate::support::Daemon;
use crate::support::until;

/// Words of a frame.
const WORDS: u32 = 16384;

/// A renderer, a copier and a scribbler.
struct Crew {
    progress: Arc<Progress>,
    sum: Arc<Mutex<Option<u64>>>,
    threads: Vec<JoinHandle<Ending>>,
}

fn crew(vm: &Arc<LoopbackVm>, frames: u64) -> Crew {
    let progress: Arc<Progress> = Arc::default();
    let sum: Arc<Mutex<Option<u64>>> = Arc::default();
    let animation = Animation { frames, words: WORDS };
    let render = {
        let sum = Arc::clone(&sum);
        move |vm: &Arc<LoopbackVm>, progress: &Progress| renderer::run(vm, progress, animation, &sum)
    };
    let threads = vec![
        guest::start("renderer", vm, &progress, render).unwrap(),
        guest::start("copier", vm, &progress, copier::run).unwrap(),
        guest::start("scribbler", vm, &progress, scribbler::run).unwrap(),
    ];
    Crew { progress, sum, threads }
}

impl Crew {
    /// Waits until each of them has got on.
    fn work(&self) {
        let counters = [&self.progress.frames, &self.progress.copies, &self.progress.scribbles];
        let before = counters.map(|counter| counter.load(Ordering::Relaxed));
        until("work of every guest thread", || {
            let moved = |(counter, before): (&&AtomicU64, &u64)| counter.load(Ordering::Relaxed) > *before;
            counters.iter().zip(&before).all(moved) || self.progress.is_over()
        });
        assert!(!self.progress.is_over(), "the guest ended");
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
fn stop_and_go_on(vm: &LoopbackVm, daemon: &Daemon, live: bool, mut while_paused: impl FnMut()) {
    let moving = MigrateOptions {
        live,
        after_pass: Box::new(|_| Next::Stop),
        while_paused: Box::new(&mut while_paused),
        give_up_at: Some(Step::Save),
        ..MigrateOptions::default()
    };
    let error = vm.migrate(daemon.socket(1), moving).unwrap_err();
    assert_eq!((error.step, error.guest), (Step::Save, Whereabouts::Source), "{error}");
}

#[test]
fn lm_51_guests_in_their_ring_and_check_loops_lose_nothing_over_many_stops() {
    let frames = 40;
    let undisturbed = checksum_of_an_undisturbed_run(frames);
    let daemon = Daemon::with_vgpus(2, &[]);
    let vm = daemon.vm(0);
    let crew = crew(&vm, frames);
    for stop in 0..10 {
        crew.work();
        stop_and_go_on(&vm, &daemon, stop % 2 == 0, || ());
    }
    crew.work();
    assert_eq!(crew.end(), undisturbed);
}

#[test]
fn lm_23_nothing_changes_guest_ram_or_video_memory_while_cpus_and_device_are_paused() {
    let daemon = Daemon::with_vgpus(2, &[]);
    let vm = daemon.vm(0);
    let crew = crew(&vm, 60);
    for _ in 0..3 {
        crew.work();
        let running = vm.raw_checksum();
        until("a change while the guest runs", || vm.raw_checksum() != running);
        let mut checked = false;
        stop_and_go_on(&vm, &daemon, true, || {
            let first = vm.raw_checksum();
            for _ in 0..5 {
                assert_eq!(vm.raw_checksum(), first);
            }
            checked = true;
        });
        assert!(checked);
    }
    crew.progress.over.store(true, Ordering::Relaxed);
    for thread in crew.threads {
        assert!(matches!(thread.join().unwrap(), Ending::Done));
    }
}

#[test]
fn a_paused_guest_stands_still_in_the_middle_of_its_work_and_goes_on() {
    let daemon = Daemon::start();
    let vm = daemon.vm(0);
    let frames = 30;
    let crew = crew(&vm, frames);
    for _ in 0..100 {
        vm.pause().unwrap();
        let before = crew.progress.frames.load(Ordering::Relaxed);
        std::thread::yield_now();
        assert_eq!(crew.progress.frames.load(Ordering::Relaxed), before);
        vm.resume().unwrap();
    }
    crew.end();
}

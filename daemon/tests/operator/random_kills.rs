//! Processes of a daemon with workers, killed at random moments of what their guests do.
//!
//! `ci/soak` does this 500 times; here it is its short form. `CAMPANILE_SOAK_KILLED_WORKERS` says how often, and `CAMPANILE_SOAK_SEED` at which moments.

use std::collections::VecDeque;
use std::env;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_guest_driver::device::Device;
use campanile_test_vmm::fuse::context::FuseContext;
use campanile_test_vmm::options::DeviceKind;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use fastrand::Rng;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;

use crate::killed::Program;
use crate::killed::table;
use crate::served::until;
use crate::upgrade::Over;
use crate::upgrade::connect;
use crate::workers::Workers;

/// vGPUs whose workers are killed; the second is on the fs front.
const VICTIMS: [&str; 4] = ["a", "f", "b", "c"];
/// The vGPU whose worker is left alone.
const BYSTANDER: &str = "d";
/// A keeper gives up a worker that is killed more often than 5 times within 10 s.
const KILLS_IN_A_ROW: usize = 4;
const IN_A_ROW: Duration = Duration::from_secs(10);
/// Up to so long after a program has done a round, the next process is killed.
const LATEST: Duration = Duration::from_millis(30);
const APERTURE: u64 = 16 << 20;

/// A VM whose worker may be killed, and when that was done.
struct Victim {
    name: &'static str,
    vm: Arc<LoopbackVm>,
    programs: [Program; 2],
    kills: VecDeque<Instant>,
}

impl Victim {
    fn begin(workers: &Workers, name: &'static str, is_over: &Arc<AtomicBool>) -> Self {
        let is_fs = name == "f";
        let vm = if is_fs {
            let options = VmOptions { device: DeviceKind::Fs, aperture: APERTURE, ..VmOptions::default() };
            LoopbackVm::connect(workers.served.folder.file("f.sock"), &options).unwrap()
        } else {
            connect(&workers.served, name)
        };
        let programs = [true, false].map(|by_doorbell| {
            if is_fs {
                let vm = Arc::clone(&vm);
                Program::of(move || Device::open(FuseContext::open(&vm)?), is_over, by_doorbell)
            } else {
                Program::begin(&vm, is_over, by_doorbell)
            }
        });
        Self { name, vm, programs, kills: VecDeque::new() }
    }

    fn rounds(&self) -> [u32; 2] {
        self.programs.each_ref().map(Program::rounds)
    }

    /// Waits until each of its programs has done another round.
    fn works(&self) {
        let before = self.rounds();
        until("work of a VM whose worker was killed", || {
            self.rounds().iter().zip(before).all(|(now, before)| *now > before)
        });
    }

    fn may_be_killed(&mut self) -> bool {
        while self.kills.front().is_some_and(|kill| kill.elapsed() > IN_A_ROW) {
            self.kills.pop_front();
        }
        self.kills.len() < KILLS_IN_A_ROW
    }
}

#[test]
fn cont_09_cont_22_soak_processes_that_are_killed_at_any_moment_cost_their_own_vm_a_device_and_others_nothing()
 {
    let kills: u32 = env::var("CAMPANILE_SOAK_KILLED_WORKERS").map_or(20, |kills| kills.parse().unwrap());
    let seed =
        env::var("CAMPANILE_SOAK_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("CAMPANILE_SOAK_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let tables = VICTIMS.iter().chain([&BYSTANDER]).map(|name| match *name {
        "f" => table(name, "front = \"fs\"\naperture = \"16M\"\n"),
        _ => table(name, ""),
    });
    let mut workers = Workers::begin(&tables.collect::<String>());
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Over(&is_over);
    let mut victims = VICTIMS.map(|name| Victim::begin(&workers, name, &is_over));
    let vm = connect(&workers.served, BYSTANDER);
    let others = [true, false].map(|by_doorbell| Program::begin(&vm, &is_over, by_doorbell));
    let its_worker = workers.of(BYSTANDER);
    let mut killed = [0; 3];
    for _ in 0..kills {
        let before = others.each_ref().map(Program::rounds);
        until("work of the VM that nothing happens to", || {
            others.iter().zip(before).all(|(program, before)| program.rounds() > before)
        });
        // Not a wait for anything: the moment is what is tried.
        let moment = random.u32(..=u32::try_from(LATEST.as_micros()).unwrap());
        thread::sleep(Duration::from_micros(moment.into()));
        match (random.u32(..10), workers.schedule()) {
            // It is started again after a pause, which is longer each time: nothing waits for it.
            (0, Some(schedule)) => {
                kill_process(Pid::from_raw(schedule).unwrap(), Signal::KILL).unwrap();
                killed[0] += 1;
            }
            (1, _) => {
                workers.served.kill();
                workers.served.start_again();
                until("all workers answer", || workers.all().len() == victims.len() + 1);
                killed[1] += 1;
            }
            _ => {
                let mut victim = None;
                until("a worker that may be killed", || {
                    let any = random.usize(..victims.len());
                    victim = victims[any].may_be_killed().then_some(any);
                    victim.is_some()
                });
                let victim = &mut victims[victim.unwrap()];
                victim.kills.push_back(Instant::now());
                workers.end(victim.name, Signal::KILL);
                victim.works();
                assert!(victim.vm.is_connected(), "vGPU {}", victim.name);
                killed[2] += 1;
            }
        }
    }
    // One that does not answer in time is not listed.
    until("the worker that was left alone", || workers.of(BYSTANDER) == its_worker);
    victims.iter().for_each(Victim::works);
    drop(over);
    let programs = victims.into_iter().flat_map(|victim| victim.programs);
    let lost: u32 = programs.map(Program::end).sum();
    assert!(lost <= 2 * killed[2], "{lost} devices were lost by {killed:?} kills");
    assert_eq!(others.map(Program::end), [0, 0], "devices of the VM that nothing happens to were lost");
    println!(
        "killed: {killed:?} (schedule, what has started the workers, workers); {lost} devices were lost"
    );
}

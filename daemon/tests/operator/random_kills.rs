//! Processes of a daemon with workers, killed at random moments of what their guests do, and successors, of their upgrades.
//!
//! `ci/soak` does this 500 times and 50 times; here are its short forms. `CAMPANILE_SOAK_KILLED_WORKERS` and `CAMPANILE_SOAK_KILLED_SUCCESSORS` say how
//! often, and `CAMPANILE_SOAK_SEED` at which moments.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::env;
use std::fs;
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

use crate::killed::Kept;
use crate::killed::Program;
use crate::killed::table;
use crate::served::until;
use crate::upgrade::Over;
use crate::upgrade::connect;
use crate::workers::Workers;
use crate::workers::processes;

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
    kills: Kills,
}

/// When what a keeper starts again was killed.
#[derive(Default)]
struct Kills(VecDeque<Instant>);

impl Kills {
    /// Whether its keeper stands another one.
    fn may_be_more(&mut self) -> bool {
        while self.0.front().is_some_and(|kill| kill.elapsed() > IN_A_ROW) {
            self.0.pop_front();
        }
        self.0.len() < KILLS_IN_A_ROW
    }

    fn note(&mut self) {
        self.0.push_back(Instant::now());
    }
}

/// Random moments, of a seed that is printed.
fn random() -> Rng {
    let seed =
        env::var("CAMPANILE_SOAK_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("CAMPANILE_SOAK_SEED={seed}");
    Rng::with_seed(seed)
}

/// Not a wait for anything: the moment is what is tried.
fn a_moment(random: &mut Rng, latest: Duration) {
    let moment = random.u32(..=u32::try_from(latest.as_micros()).unwrap());
    thread::sleep(Duration::from_micros(moment.into()));
}

fn rounds(programs: &[Program; 2]) -> [u32; 2] {
    programs.each_ref().map(Program::rounds)
}

/// Waits until each program has done another round.
fn work(programs: &[Program; 2], whose: &str) {
    let before = rounds(programs);
    until(whose, || rounds(programs).iter().zip(before).all(|(now, before)| *now > before));
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
        Self { name, vm, programs, kills: Kills::default() }
    }

    fn works(&self) {
        work(&self.programs, "work of a VM whose worker was killed");
    }
}

#[test]
fn cont_09_cont_22_soak_processes_that_are_killed_at_any_moment_cost_their_own_vm_a_device_and_others_nothing()
 {
    let kills: u32 = env::var("CAMPANILE_SOAK_KILLED_WORKERS").map_or(20, |kills| kills.parse().unwrap());
    let mut random = random();
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
        work(&others, "work of the VM that nothing happens to");
        a_moment(&mut random, LATEST);
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
                    victim = victims[any].kills.may_be_more().then_some(any);
                    victim.is_some()
                });
                let victim = &mut victims[victim.unwrap()];
                victim.kills.note();
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

/// The successor that was started since these processes were: no engine has this word in its environment, nor what has not become one yet.
fn successor(kept: &Kept, before: &BTreeSet<i32>) -> Option<Pid> {
    let is_one = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == b"CAMPANILE_SUCCESSOR=1")
    };
    let all = processes(&kept.0.folder);
    Pid::from_raw(all.difference(before).copied().find(is_one)?)
}

#[test]
fn cont_02_cont_21_soak_a_successor_that_is_killed_at_any_moment_costs_devices_at_the_most() {
    let upgrades: u32 = env::var("CAMPANILE_SOAK_KILLED_SUCCESSORS").map_or(4, |all| all.parse().unwrap());
    let mut random = random();
    let kept = Kept::begin(&table("a", ""));
    let vm = kept.connect("a");
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Over(&is_over);
    let programs = [true, false].map(|by_doorbell| Program::begin(&vm, &is_over, by_doorbell));
    let (mut kills, mut tally) = (Kills::default(), [0; 2]);
    // The first one is left alone, and says how long an upgrade takes from where the successor is there.
    let mut takes = None;
    for _ in 0..=upgrades {
        until("a daemon that may be killed", || kills.may_be_more() && kept.daemon().is_some());
        let before = processes(&kept.0.folder);
        let is_done = thread::scope(|scope| {
            let upgrade = scope.spawn(|| kept.0.ctl(&["upgrade"]));
            let mut next = None;
            until("a successor", || {
                // Twice, since a child has its parent's name and environment for a moment.
                let found = successor(&kept, &before);
                let is_one = found.is_some() && found == next;
                next = found;
                is_one || upgrade.is_finished()
            });
            let begun = Instant::now();
            if let (Some(next), Some(takes)) = (next, takes) {
                a_moment(&mut random, takes);
                // An upgrade that is refused ends it.
                let _ended = kill_process(next, Signal::KILL);
                kills.note();
            }
            let is_done = upgrade.join().unwrap().status.success();
            takes.get_or_insert_with(|| begun.elapsed() + begun.elapsed() / 4);
            is_done
        });
        tally[usize::from(is_done)] += 1;
        until("a daemon", || kept.daemon().is_some());
        work(&programs, "work of a VM whose daemon's successor was killed");
        assert!(vm.is_connected());
    }
    assert!(tally[1] > 0, "no upgrade was done, that of which no process was killed neither");
    drop(over);
    let lost: u32 = programs.map(Program::end).into_iter().sum();
    assert!(lost <= 2 * upgrades, "{lost} devices were lost");
    println!("{tally:?} upgrades (failed, done) whose successor was killed; {lost} devices were lost");
}

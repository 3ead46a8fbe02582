//! Tracking that is costly: it begins with a migration, which sends all memory first, and ends with it.

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;

use campanile_daemon::migration::file::read;
use campanile_daemon::migration::stage::Shape;
use campanile_daemon::migration::target::arriving::Arriving;
use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::migration::options::Pass;
use campanile_test_vmm::migration::options::Ram;
use campanile_test_vmm::order::Order;
use serde_json::Value;

use crate::lm_pauses::ENDLESS;
use crate::lm_pauses::crew;
use crate::migration::Guest;
use crate::migration::Hosts;
use crate::processes::engines;
use crate::signals::kill_at_rest;
use crate::support::until;

/// What makes a vGPU's tracking costly.
pub(crate) const COSTLY: [&str; 2] = ["--dirty-tracking", "shadow-compare"];
/// Bytes of video memory.
const VRAM: u64 = 64 << 20;

/// What the operator sees of a vGPU's tracking.
pub(crate) fn tracking(hosts: &Hosts, index: usize) -> Value {
    hosts.ask(index, &Verb::Status)["vgpus"][0]["session"]["dirty_tracking"].clone()
}

/// What the operator sees of its way out.
pub(crate) fn progress(hosts: &Hosts, index: usize) -> Value {
    hosts.ask(index, &Verb::Migration)["departures"][0]["progress"].clone()
}

pub(crate) fn passes(hosts: &Hosts, index: usize) -> usize {
    progress(hosts, index)["passes"].as_array().map_or(0, Vec::len)
}

pub(crate) fn waits(hosts: &Hosts, index: usize) -> bool {
    progress(hosts, index)["doing"].as_str().is_some_and(|doing| doing.starts_with("waiting"))
}

/// The steps of the last migration, and the bytes of each.
pub(crate) fn steps(progress: &Value) -> Vec<(String, u64)> {
    let step = |step: &Value| {
        let bytes = step["bytes"].as_u64().or(step["left_bytes"].as_u64()).unwrap();
        (step["step"].as_str().unwrap().to_owned(), bytes)
    };
    progress["steps"].as_array().unwrap().iter().map(step).collect()
}

fn names(steps: &[(String, u64)]) -> Vec<&str> {
    steps.iter().map(|(name, _)| name.as_str()).collect()
}

/// Some of the first pass of the first host was sent, and some was not. Before it begins there is nothing left of it.
fn is_amid_first_pass(hosts: &Hosts) -> bool {
    let told = progress(hosts, 0);
    let left = told["left_bytes"].as_u64();
    left > Some(0) && left < told["steps"][0]["left_bytes"].as_u64()
}

/// Nothing is tracked, and nothing kept for it.
fn is_off(hosts: &Hosts, index: usize) -> bool {
    let told = tracking(hosts, index);
    assert_eq!((&told["method"], &told["performant"]), (&"shadow-compare".into(), &false.into()), "{told}");
    told["tracking"] == false && told["shadow_bytes"] == 0
}

/// All of it is tracked, at the price of a hash a page.
fn is_on(hosts: &Hosts, index: usize) -> bool {
    let told = tracking(hosts, index);
    told["tracking"] == true && told["shadow_bytes"].as_u64() >= Some(VRAM / 4096 * 8)
}

fn migrate(hosts: &Hosts, to: Option<&str>) {
    let to = to.map(|to| to.parse().unwrap());
    let verb = Verb::Migrate { vgpu: "v0".to_owned(), to, rename: None };
    // One that was called off may still be on its way out.
    until("the migration begins", || client::ask(&hosts.control(0), &verb).is_ok());
}

#[test]
fn dirty_03_lm_15_costly_tracking_says_so_and_begins_when_a_migration_prepares() {
    let hosts = Hosts::new(&COSTLY);
    let mut guest = Guest::new(&hosts.daemons[0]);
    guest.work(2);
    assert!(is_off(&hosts, 0), "a guest that works");
    // A peer that takes the greeting and never answers: prepared is all that the migration is.
    let door = hosts.folder.path().join("silent");
    let _silent = UnixListener::bind(&door).unwrap();
    migrate(&hosts, Some(&format!("unix:{}", door.display())));
    until("tracking", || is_on(&hosts, 0));
    until("the first step", || !steps(&progress(&hosts, 0)).is_empty());
    assert_eq!(passes(&hosts, 0), 0, "nothing was sent");
    let begun = steps(&progress(&hosts, 0));
    assert!(begun.len() == 1 && begun[0].0 == "begin" && begun[0].1 >= VRAM, "{begun:?}");
    hosts.ask(0, &Verb::CallOff { vgpu: "v0".to_owned() });
    assert!(is_off(&hosts, 0), "called off");
    // What is cheap says that, and is on from the beginning.
    let hosts = Hosts::new(&["--dirty-tracking", "bound-ranges"]);
    let _guest = Guest::new(&hosts.daemons[0]);
    let told = tracking(&hosts, 0);
    assert_eq!((&told["performant"], &told["tracking"]), (&true.into(), &true.into()), "{told}");
    assert_eq!(told["shadow_bytes"], 0);
}

#[test]
fn dirty_30_lm_27_costly_tracking_runs_during_a_brownout_and_gives_its_memory_back_after_it() {
    let hosts = Hosts::new(&COSTLY);
    let mut guest = Guest::new(&hosts.daemons[0]);
    for round in 2..4 {
        migrate(&hosts, None);
        until("the brownout waits", || waits(&hosts, 0));
        assert!(is_on(&hosts, 0));
        guest.work(round);
        hosts.ask(0, &Verb::CallOff { vgpu: "v0".to_owned() });
        assert!(is_off(&hosts, 0), "called off");
        until("the target forgets it", || hosts.bundles(1) == 0);
    }
    // The one that goes: it is over when all was sent, though the source still stands by.
    let mut is_over = false;
    let options = MigrateOptions {
        after_pass: Box::new(|_| {
            until("the brownout waits", || waits(&hosts, 0));
            assert!(is_on(&hosts, 0));
            Next::Stop
        }),
        when_there: Box::new(|| {
            // And a target needs no tracking.
            is_over = is_off(&hosts, 0) && is_off(&hosts, 1);
        }),
        ..MigrateOptions::default()
    };
    guest.vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
    assert!(is_over);
    guest.check();
    // In the pause alone there is nothing to track: all of it goes, and nothing is asked.
    let options = MigrateOptions { live: false, ..MigrateOptions::default() };
    guest.work(7);
    guest.vm.migrate(hosts.daemons[0].socket(0), options).unwrap();
    guest.check();
    let steps = steps(&progress(&hosts, 1));
    assert_eq!(names(&steps), ["begin", "pass"], "{steps:?}");
}

#[test]
fn dirty_61_costly_tracking_begins_then_all_memory_is_sent_and_then_it_is_asked() {
    // Slow, so that the guest writes to what was sent and to what was not.
    let hosts = Hosts::new(&[&COSTLY[..], &["--migrate-bandwidth", "1M"]].concat());
    let mut guest = Guest::new(&hosts.daemons[0]);
    let vm = std::sync::Arc::clone(&guest.vm);
    let options = MigrateOptions {
        after_pass: Box::new(|_| {
            until("a part was sent", || is_amid_first_pass(&hosts));
            guest.work(2);
            until("the brownout waits", || waits(&hosts, 0));
            Next::Stop
        }),
        ..MigrateOptions::default()
    };
    vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
    guest.check();
    let steps = steps(&progress(&hosts, 0));
    let names = names(&steps);
    assert_eq!(names[..3], ["begin", "pass", "query"], "{steps:?}");
    assert!(steps[0].1 >= VRAM && steps[1].1 == steps[0].1, "the whole reserve: {steps:?}");
    assert!(steps[2].1 < VRAM / 2, "and after that what was written: {steps:?}");
}

#[test]
fn dirty_61_a_pause_amid_the_first_pass_sends_the_rest_of_all_memory_before_it_asks() {
    let hosts = Hosts::new(&[&COSTLY[..], &["--migrate-bandwidth", "4K"]].concat());
    let mut guest = Guest::new(&hosts.daemons[0]);
    let vm = std::sync::Arc::clone(&guest.vm);
    let options = MigrateOptions {
        after_pass: Box::new(|_| {
            until("a part was sent", || is_amid_first_pass(&hosts));
            guest.work(3);
            Next::Stop
        }),
        ..MigrateOptions::default()
    };
    vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
    guest.check();
    let steps = steps(&progress(&hosts, 0));
    let names = names(&steps);
    assert_eq!(names, ["begin", "pass", "pass", "query", "pass"], "{steps:?}");
    assert!(steps[1].1 < steps[0].1, "{steps:?}");
    assert_eq!(steps[1].1 + steps[2].1, steps[0].1, "{steps:?}");
}

fn round_trips(order: Order, ram: Ram) {
    let hosts = Hosts::new(&[&COSTLY[..], &["--migrate-pause", "0", "--migrate-streams", "2"]].concat());
    let vm = hosts.daemons[0].vm(0);
    let crew = crew(&vm, ENDLESS);
    for hop in 1..=3 {
        crew.work();
        let (here, there) = ((hop + 1) % 2, hop % 2);
        let after_pass = |pass: &Pass| {
            crew.work();
            (1..=3).for_each(|pass| until("several passes", || passes(&hosts, here) >= pass));
            if pass.number < 1 { Next::Again } else { Next::Stop }
        };
        let moving = MigrateOptions { order, ram, after_pass: Box::new(after_pass), ..Default::default() };
        vm.migrate(hosts.daemons[there].socket(0), moving).unwrap();
    }
    crew.end_as_if_undisturbed();
}

#[test]
fn dirty_58_guests_that_check_each_frame_move_with_costly_tracking_in_qemus_order() {
    round_trips(Order::Qemu, Ram::Moves);
}

#[test]
fn dirty_58_guests_that_check_each_frame_move_with_costly_tracking_in_cloud_hypervisors_order() {
    round_trips(Order::CloudHypervisor, Ram::Stays);
}

#[test]
fn dirty_56_what_engines_wrote_that_died_in_a_brownout_moves_with_costly_tracking() {
    let hosts = Hosts::new(&COSTLY);
    let mut guest = Guest::new(&hosts.daemons[0]);
    let vm = std::sync::Arc::clone(&guest.vm);
    let options = MigrateOptions {
        after_pass: Box::new(|_| {
            until("the brownout waits", || waits(&hosts, 0));
            for round in 2..5 {
                guest.work(round);
                engines(&hosts.daemons[0]).into_iter().for_each(kill_at_rest);
            }
            guest.work(5);
            Next::Stop
        }),
        ..MigrateOptions::default()
    };
    vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
    guest.check();
    guest.work(6);
    guest.check();
}

#[test]
fn a_snapshot_with_costly_tracking_has_all_of_the_guests_memory() {
    let hosts = Hosts::new(&COSTLY);
    let mut guest = Guest::new(&hosts.daemons[0]);
    guest.work(4);
    let before = guest.expected.clone();
    let file = hosts.folder.path().join("snapshot");
    let taken = hosts.ask(0, &Verb::Snapshot { vgpu: "v0".to_owned(), file: file.clone() });
    assert!(taken["pages"].as_u64().unwrap() * 4096 >= VRAM, "all of it was sent once: {taken}");
    assert!(is_off(&hosts, 0));
    guest.work(5);
    guest.check();
    let lengths = read::inspect(&file).unwrap().hello.memories;
    let arriving = Arriving {
        name: "v0".to_owned(),
        peers: Vec::new(),
        shape: Shape { lengths, limits: lengths },
        check: Box::new(|_| Ok(())),
        compiler: None,
    };
    let (_, stage) = read::load(&file, &arriving, None).unwrap();
    let mut bytes = vec![0; usize::try_from(lengths[0]).unwrap()];
    stage.memories().unwrap()[0].file.read_exact_at(&mut bytes, 0).unwrap();
    let page = |index: usize| &before[index * 4096..(index + 1) * 4096];
    for index in [0, 7, 700] {
        assert!(bytes.chunks(4096).filter(|found| *found == page(index)).count() >= 2, "page {index}");
    }
}

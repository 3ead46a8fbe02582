//! Hosts that are source and target at a time, vGPUs beside others, and targets that differ.

use std::sync::Barrier;

use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use campanile_test_vmm::migration::error::Step;
use campanile_test_vmm::migration::error::Whereabouts;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use tempfile::TempDir;

use crate::migration::Guest;
use crate::migration::Hosts;
use crate::support::Daemon;
use crate::support::until;

const PLAIN: &str = "vram=64M";

#[test]
fn lm_04_lm_10_a_host_is_source_and_target_at_a_time_while_its_other_guests_work() {
    // Both are started alike. v0 goes from the first to the second, v1 the other way, and v2 stays.
    let hosts = Hosts::with_specs([&[PLAIN; 3]; 2], &["--migrate-pause", "3600000"]);
    let mut movers = [Guest::on(&hosts.daemons[0], 0), Guest::on(&hosts.daemons[1], 1)];
    let mut stays = [Guest::on(&hosts.daemons[0], 2), Guest::on(&hosts.daemons[1], 2)];
    let amid = Barrier::new(3);
    std::thread::scope(|scope| {
        for (here, guest) in movers.iter_mut().enumerate() {
            let (hosts, amid) = (&hosts, &amid);
            scope.spawn(move || {
                guest.work(3);
                let after_pass = Box::new(|_: &_| {
                    hosts.converge(here, here);
                    amid.wait();
                    // The others look, and go on.
                    amid.wait();
                    Next::Stop
                });
                let options = MigrateOptions { after_pass, ..MigrateOptions::default() };
                guest.vm.migrate(hosts.daemons[1 - here].socket(here), options).unwrap();
                guest.check();
                guest.work(4);
                guest.check();
            });
        }
        amid.wait();
        let told = [0, 1].map(|host| hosts.ask(host, &Verb::Migration));
        stays.iter_mut().for_each(|guest| guest.work(5));
        stays.iter().for_each(Guest::check);
        amid.wait();
        for (host, told) in told.iter().enumerate() {
            // v0 leaves the first host and comes to the second, v1 the other way round.
            for vgpu in 0..3 {
                let expected = if vgpu == host { "brownout" } else { "idle" };
                assert_eq!(told["departures"][vgpu]["phase"], expected, "v{vgpu} at host {host}");
            }
            let bundles = told["arrivals"]["bundles"].as_array().unwrap();
            let names: Vec<_> = bundles.iter().map(|bundle| bundle["vgpu"].as_str().unwrap()).collect();
            assert_eq!(names, [format!("v{}", 1 - host)], "host {host}");
        }
        // And while state is saved and loaded beside them.
        for round in 6..12 {
            stays.iter_mut().for_each(|guest| guest.work(round));
            stays.iter().for_each(Guest::check);
        }
    });
    until("nothing is on its way", || hosts.bundles(0) + hosts.bundles(1) == 0);
}

#[test]
fn lm_08_lm_12_a_move_is_of_the_vgpu_that_it_names_and_no_other_has_any_part_in_it() {
    let hosts = Hosts::with_specs([&[PLAIN; 2]; 2], &["--migrate-pause", "3600000"]);
    let mut guest = Guest::on(&hosts.daemons[0], 0);
    let mut beside = Guest::on(&hosts.daemons[0], 1);
    let at_target = Guest::on(&hosts.daemons[1], 1);
    // A vGPU that neither has is none that could be prepared, called off, or saved.
    let unknown = || "elsewhere".to_owned();
    let file = hosts.folder.path().join("snapshot");
    for verb in [
        Verb::Migrate { vgpu: unknown(), to: None, rename: None },
        Verb::CallOff { vgpu: unknown() },
        Verb::Snapshot { vgpu: unknown(), file: file.clone() },
    ] {
        let refused = client::ask(&hosts.control(0), &verb).unwrap_err().to_string();
        assert!(refused.contains("elsewhere"), "{verb:?}: {refused}");
    }
    assert!(!file.exists());
    // One that the target has not ends the move there, and the guest goes on.
    let to = Some(format!("unix:{}", hosts.folder.path().join("b").display()).parse().unwrap());
    hosts.ask(0, &Verb::Migrate { vgpu: "v0".to_owned(), to, rename: Some(unknown()) });
    let told = || hosts.departure(0, 0)["last"].as_str().unwrap_or_default().to_owned();
    until("the target refuses it", || told().contains("elsewhere"));
    assert_eq!(hosts.bundles(1), 0);
    // The source is v0 of the first, the target v0 of the second, and nothing else is either.
    hosts.begin(0, "v0");
    hosts.converge(0, 0);
    assert_eq!(hosts.departure(0, 1)["phase"], "idle");
    let arrivals = hosts.ask(1, &Verb::Migration);
    assert_eq!(arrivals["arrivals"]["bundles"][0]["vgpu"], "v0", "{arrivals}");
    assert!(arrivals["departures"].as_array().unwrap().iter().all(|it| it["phase"] == "idle"), "{arrivals}");
    // To call off a vGPU that does not move changes nothing for the one that does.
    let other = client::ask(&hosts.control(0), &Verb::CallOff { vgpu: "v1".to_owned() }).unwrap_err();
    assert!(other.to_string().contains("no migration"), "{other}");
    assert_eq!(hosts.departure(0, 0)["phase"], "brownout");
    beside.work(3);
    beside.check();
    drop(at_target);
    // A state that is given to another vGPU names memories that are not its own.
    let error = guest.vm.migrate(hosts.daemons[1].socket(1), MigrateOptions::default()).unwrap_err();
    assert_eq!((error.step, error.guest), (Step::Load, Whereabouts::Source), "{error}");
    guest.check();
    guest.work(4);
    until("the target keeps nothing", || hosts.bundles(1) == 0);
    until("another can begin", || hosts.phase(0) == "idle");
    guest.vm.migrate(hosts.daemons[1].socket(0), MigrateOptions::default()).unwrap();
    guest.check();
    beside.work(5);
    beside.check();
    // The one that was given the wrong state serves its own guests.
    let mut next = Guest::on(&hosts.daemons[1], 1);
    next.work(6);
    next.check();
}

/// How a target differs: what its vGPU is like, what its daemon is told, and what is refused: field, and both values.
type Difference = (&'static str, &'static [&'static str], &'static str, [&'static str; 2]);

const DIFFERENCES: [Difference; 11] = [
    ("vram=32M", &[], "bytes of video memory", ["68157440", "34603008"]),
    ("vram=64M,vram-max=96M", &[], "room for evicted memory", ["134217728", "201326592"]),
    ("vram=64M,single-use", &[], "single_use", ["false", "true"]),
    ("vram=64M,bands=normal", &[], "highest_band", ["3", "1"]),
    (PLAIN, &["--no-window"], "window", ["true", "false"]),
    (PLAIN, &["--gpu-profile", "campanile-1"], "gpu_profile", ["host", "campanile-1"]),
    (PLAIN, &["--engines", "2"], "engines", ["1", "2"]),
    (PLAIN, &["--doorbells", "63"], "doorbells of node compute", ["64", "63"]),
    (PLAIN, &["--slice", "0"], "is_sliced of node compute", ["true", "false"]),
    (PLAIN, &["--doorbell-model", "copy=global"], "has_global_doorbell of node copy", ["false", "true"]),
    (
        PLAIN,
        &["--vulkan-device", "no such device", "--local-memory", "host"],
        "device of node compute",
        ["", "none"],
    ),
];

#[test]
fn lm_34_lm_33_a_target_that_differs_refuses_by_field_and_both_values_and_the_guest_goes_on() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let control = at("control");
    let no_door = format!("unix:{}", at("no-door"));
    let source = Daemon::with_specs(
        &["vram=64M,bands=realtime"],
        &["--migrate-to", &no_door, "--control", &control, "--doorbell-model", "dedicated"],
    );
    let mut guest = Guest::new(&source);
    for (round, (spec, more, field, [saved, here])) in (2..).zip(DIFFERENCES) {
        let door = format!("unix:{}", at(&format!("door{round}")));
        let mut arguments = vec!["--migrate-listen", &door];
        if !more.contains(&"--doorbell-model") {
            arguments.extend(["--doorbell-model", "dedicated"]);
        }
        arguments.extend(more);
        let spec = if spec.contains("bands") { spec.to_owned() } else { format!("{spec},bands=realtime") };
        let target = Daemon::with_specs(&[&spec], &arguments);
        until("the door", || folder.path().join(format!("door{round}")).exists());
        let migrate = Verb::Migrate { vgpu: "v0".to_owned(), to: Some(door.parse().unwrap()), rename: None };
        client::ask(control.as_ref(), &migrate).unwrap();
        let departure = || client::ask(control.as_ref(), &Verb::Migration).unwrap()["departures"][0].clone();
        until("the target refuses it", || departure()["phase"] == "idle");
        let why = departure()["last"].as_str().unwrap().to_owned();
        for part in [field, saved, here] {
            assert!(why.contains(part), "{part:?} is not in {why:?}");
        }
        assert_eq!(departure()["progress"]["pages"], 0, "{field}: refused before any page");
        guest.work(round);
        guest.check();
        drop(target);
    }
}

//! Passes of a migration as the operator sees them, with a guest that works.

use std::cell::Cell;

use campanile_daemon::cli::migration::describe;
use campanile_daemon::operator::verb::Verb;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;

use crate::dirty_costly::COSTLY;
use crate::dirty_costly::passes;
use crate::dirty_costly::progress;
use crate::dirty_costly::steps;
use crate::dirty_costly::tracking;
use crate::dirty_costly::waits;
use crate::lm_pauses::ENDLESS;
use crate::lm_pauses::crew;
use crate::migration::Guest;
use crate::migration::Hosts;
use crate::support::until;

#[test]
fn dirty_57_the_vm_runs_while_dirty_data_is_saved_again_and_again_with_a_query_between() {
    for method in [&COSTLY[..], &["--dirty-tracking", "bound-ranges"]] {
        let hosts = Hosts::new(&[method, &["--migrate-pause", "0", "--migrate-passes", "20"]].concat());
        let vm = hosts.daemons[0].vm(0);
        let crew = crew(&vm, ENDLESS);
        crew.work();
        let options = MigrateOptions {
            after_pass: Box::new(|_| {
                for more in 1..=3 {
                    until("one more pass", || passes(&hosts, 0) >= 2 * more);
                    // Of every guest thread, which a paused one would not do.
                    crew.work();
                }
                Next::Stop
            }),
            ..MigrateOptions::default()
        };
        vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
        let told = progress(&hosts, 0);
        let steps = steps(&told);
        let names: Vec<&str> = steps.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[0], "begin", "{steps:?}");
        assert!(names.iter().filter(|name| **name == "pass").count() >= 7, "{steps:?}");
        let before_passes = names.windows(2).skip(1).filter(|two| two[1] == "pass");
        assert!(before_passes.clone().all(|two| two[0] == "query"), "{steps:?}");
        if method == COSTLY {
            // All of it once, and then only what was written since.
            assert!(steps.iter().skip(2).all(|(_, bytes)| *bytes < steps[0].1), "{steps:?}");
        }
        // All but the last while it ran.
        let paused = told["passes"].as_array().unwrap().iter().map(|pass| pass["is_last"] == true);
        let paused: Vec<bool> = paused.collect();
        assert_eq!(paused.iter().position(|is_last| *is_last), Some(paused.len() - 1), "{paused:?}");
        crew.end_as_if_undisturbed();
    }
}

#[test]
fn dirty_59_as_many_passes_are_made_as_wanted_and_a_vmm_that_gives_up_pauses_and_has_it_all() {
    for method in [&COSTLY[..], &["--dirty-tracking", "bound-ranges"]] {
        let hosts = Hosts::new(&[method, &["--migrate-pause", "0", "--migrate-passes", "12"]].concat());
        let vm = hosts.daemons[0].vm(0);
        let crew = crew(&vm, ENDLESS);
        let options = MigrateOptions {
            after_pass: Box::new(|_| {
                // A guest that always writes never fits into a pause of nothing. Each pass may take its time.
                (1..=12).for_each(|pass| until("a pass", || passes(&hosts, 0) >= pass));
                until("it is given up", || {
                    let told = progress(&hosts, 0);
                    told["doing"].as_str().is_some_and(|doing| doing.contains("faster"))
                });
                assert!(passes(&hosts, 0) >= 12);
                // And goes on, so that what is left is little whenever the VMM has had enough.
                until("more passes", || passes(&hosts, 0) >= 14);
                Next::Stop
            }),
            ..MigrateOptions::default()
        };
        vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
        crew.end_as_if_undisturbed();
    }
}

#[test]
fn dirty_60_without_tracking_the_only_pass_is_a_full_copy_in_the_blackout() {
    let hosts = Hosts::with_folder(&["--dirty-tracking", "off"]);
    let mut guest = Guest::new(&hosts.daemons[0]);
    for (here, there) in [(0, 1), (1, 0)] {
        assert_eq!(tracking(&hosts, here)["tracking"], false);
        let options = MigrateOptions { live: false, ..MigrateOptions::default() };
        guest.vm.migrate(hosts.daemons[there].socket(0), options).unwrap();
        guest.check();
        let told = progress(&hosts, here);
        let steps = steps(&told);
        assert_eq!(steps.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["begin", "pass"]);
        assert!(steps[1].1 >= 64 << 20 && steps[1].1 == steps[0].1, "all of it: {steps:?}");
        assert_eq!(told["passes"].as_array().map(Vec::len), Some(1));
        assert_eq!(told["passes"][0]["is_last"], true, "in the blackout");
        guest.work(9);
        guest.check();
    }
    // So it is with a snapshot.
    let file = hosts.folder.path().join("snapshot");
    let taken = hosts.ask(0, &Verb::Snapshot { vgpu: "v0".to_owned(), file });
    assert_eq!(taken["passes"], 1, "{taken}");
    assert_eq!(progress(&hosts, 0)["passes"][0]["is_last"], true);
    guest.check();
}

#[test]
fn dirty_62_how_long_the_blackout_took_is_measured_and_told() {
    let hosts = Hosts::new(&[]);
    let mut guest = Guest::new(&hosts.daemons[0]);
    for live in [true, false] {
        let (here, there) = if live { (0, 1) } else { (1, 0) };
        let before = Cell::new(None);
        let options = MigrateOptions {
            live,
            after_pass: Box::new(|_| {
                until("the brownout waits", || waits(&hosts, here));
                before.set(Some(progress(&hosts, here)["blackout_us"].is_null()));
                Next::Stop
            }),
            ..MigrateOptions::default()
        };
        let report = guest.vm.migrate(hosts.daemons[there].socket(0), options).unwrap();
        assert_eq!(before.get(), live.then_some(true), "the VM runs: there was none yet");
        let told = progress(&hosts, here);
        let blackout = told["blackout_us"].as_u64().unwrap();
        let last = told["passes"].as_array().unwrap().last().unwrap().clone();
        // The last pass is a part of it, and it is a part of what the VMM sees.
        assert!(blackout >= last["microseconds"].as_u64().unwrap(), "{told}");
        assert!(u128::from(blackout) <= report.pause.as_micros(), "{blackout} µs of {:?}", report.pause);
        let text = describe(&hosts.ask(here, &Verb::Migration));
        assert!(text.contains(&format!("stood still for {} ms", blackout / 1000)), "{text}");
        guest.work(3);
        guest.check();
    }
}

//! `campanile sim`: what the policies of the daemon do with many guests, by a virtual clock.

use std::process::Command;
use std::time::Duration;

use campanile_bench::simulate::figures::Figures;
use campanile_bench::simulate::figures::sum_up;
use campanile_bench::simulate::machine;
use campanile_bench::simulate::options::Options;
use campanile_host_gpu::sched::choice::ALL;
use campanile_host_gpu::sched::choice::Choice;

fn options(policy: Choice, guests: usize, seed: u64) -> Options {
    let (time, slice) = (Duration::from_secs(10), Duration::from_millis(2));
    Options { guests, queues: 8, time, policy, seed, slice, in_flight: 2 }
}

fn figures(options: &Options) -> Figures {
    let (record, guests) = machine::run(options);
    sum_up(options, &record, &guests, Vec::new())
}

#[test]
fn pre_05_realtime_work_starts_within_slices_in_flight_times_their_length() {
    for &policy in ALL {
        for (slice_ms, in_flight) in [(1, 1), (2, 1), (2, 2), (5, 3), (20, 2)] {
            for (guests, seed) in [(2, 1), (20, 2), (100, 3)] {
                let slice = Duration::from_millis(slice_ms);
                let options = Options { slice, in_flight, ..options(policy, guests, seed) };
                let bound = figures(&options).bound;
                assert!(bound.is_kept(), "{policy}, {guests} guests: {bound:?}");
                assert!(bound.starts > 100, "{policy}, {guests} guests: {bound:?}");
                let close = bound.longest_us / bound.bound_us;
                assert!(close > 0.2, "{close}: the load never runs what holds realtime work up");
            }
        }
    }
}

#[test]
fn mcdm_09_mcdm_10_busy_guests_and_their_contexts_get_equal_time_on_both_levels() {
    let figures = figures(&Options { time: Duration::from_secs(60), ..options(Choice::default(), 20, 7) });
    for class in &figures.weights {
        assert!(class.jain > 0.9999, "{class:?}");
        assert!(class.off_percent < 1.0, "{class:?}");
        // What one guest has without a break: its quantum, and what is in flight then.
        assert!(class.off_in_a_second_ms < 7.0, "{class:?}");
    }
    let capped = figures.capped.unwrap();
    assert!(
        capped.most_percent < capped.cap_percent * 1.02 && capped.most_percent > capped.cap_percent * 0.9,
        "{capped:?}"
    );
    assert!(figures.jain_of_contexts > 0.999, "{}", figures.jain_of_contexts);
    assert!(figures.idle_percent < 0.1, "{}", figures.idle_percent);
}

#[test]
fn a_run_is_the_same_for_the_same_seed_and_another_for_another() {
    let text = |seed| serde_json::to_string(&figures(&options(Choice::default(), 30, seed))).unwrap();
    assert_eq!(text(5), text(5));
    let without_seed = |seed: u64| text(seed).replace(&format!("\"seed\":{seed}"), "");
    assert_ne!(without_seed(5), without_seed(6));
}

#[test]
fn a_start_that_is_late_fails_the_run() {
    let options = options(Choice::default(), 20, 1);
    let (record, guests) = machine::run(&options);
    let stricter = Options { in_flight: 1, ..options };
    let bound = sum_up(&stricter, &record, &guests, Vec::new()).bound;
    assert!(!bound.is_kept() && bound.late > 0, "{bound:?}");
}

#[test]
fn sim_prints_json_and_draws_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("sim.svg");
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["sim", "--guests", "20", "--seconds", "3", "--policy", "strict-priority", "--json", "--svg"])
        .arg(&picture)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["policy"], "strict-priority");
    assert_eq!(figures["cost"].as_array().unwrap().len(), 3);
    assert_eq!(figures["bound"]["late"], 0);
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("realtime"), "{picture}");
}

#[test]
fn sim_names_the_policies_that_there_are() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_campanile")).args(["sim", "--policy", "lottery"]).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("lottery") && error.contains("fair, strict-priority"), "{error}");
}

//! What comes before what, and who may run.

use std::sync::Arc;

use campanile_daemon::migration::id::BundleId;
use campanile_daemon::migration::settings::Settings;
use campanile_daemon::migration::source::departure::Departure;
use campanile_daemon::migration::source::departure::Thaw;

use crate::pair::LONG;
use crate::pair::NAME;
use crate::pair::Source;
use crate::pair::Target;
use crate::pair::assert_same;
use crate::pair::eventually;
use crate::pair::settings;

fn complete() -> (Target, Source, BundleId) {
    let target = Target::new(LONG);
    let source = Source::new(settings(target.peer(), LONG));
    source.scribble();
    let bundle = source.departure.finish().unwrap();
    (target, source, bundle)
}

#[test]
fn lm_29_steps_out_of_order_are_refused_and_change_nothing() {
    let target = Target::new(LONG);
    let source = Source::new(settings(target.peer(), LONG));
    assert!(source.departure.cancel("x").unwrap_err().to_string().contains("no migration"));
    source.departure.start(None).unwrap();
    assert!(source.departure.start(None).unwrap_err().to_string().contains("under way already"));
    source.converge();
    let bundle = source.departure.finish().unwrap();
    assert!(source.departure.start(None).unwrap_err().to_string().contains("under way already"));
    assert!(source.departure.finish().is_err(), "saved twice");
    assert!(source.departure.cancel("x").unwrap_err().to_string().contains("has everything"));
    let (claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
    claim.start().unwrap();
    // LM-29: no session, no migration.
    let nobody = Arc::new(Departure::new(NAME.to_owned(), settings(target.peer(), LONG)).unwrap());
    assert!(nobody.start(None).unwrap_err().to_string().contains("no VM"));
    assert!(nobody.finish().unwrap_err().to_string().contains("no VM"));
    let alone = Source::new(Settings::default());
    assert!(alone.departure.start(None).unwrap_err().to_string().contains("--migrate-to"));
    assert!(alone.departure.finish().unwrap_err().to_string().contains("--state-dir"));
    assert_eq!(alone.departure.thaw(), Thaw::Run);
}

#[test]
fn cont_06_a_vgpu_that_is_being_snapshotted_is_not_handed_over_and_the_snapshot_is_whole() {
    let source = Source::new(Settings::default());
    source.attach_in(b"", Some([tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()]));
    let hand_over = || source.departure.begin_handover();
    drop(hand_over().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (mut refused, file) = (None, folder.path().join("snapshot"));
    let save = || {
        refused = hand_over().err().map(|why| why.to_string());
        Ok(vec![7])
    };
    source.departure.snapshot(&file, save, || {}).unwrap();
    assert!(refused.unwrap().contains("under way already"));
    assert!(file.metadata().unwrap().len() > 0);
    // And the other way round: it is not written while it is handed over.
    let held = hand_over().unwrap();
    let why = source.departure.snapshot(&folder.path().join("other"), || Ok(vec![7]), || {}).unwrap_err();
    assert!(why.to_string().contains("under way already") && !folder.path().join("other").exists(), "{why}");
    drop(held);
    drop(hand_over().unwrap());
}

#[test]
fn a_source_whose_vm_runs_again_goes_on_and_the_target_forgets() {
    let (target, source, bundle) = complete();
    let (claim, _staged) = target.claim(bundle);
    assert_eq!(source.departure.thaw(), Thaw::Run);
    eventually("the target forgets it", || target.is_clean());
    assert!(claim.start().is_err(), "the guest runs at the source");
    assert!(source.memories.iter().all(|memory| !memory.is_moving()));
    // LM-27: nothing of it is left, and the next one succeeds.
    drop(claim);
    source.memories[0].fill(4, 77);
    let bundle = source.departure.finish().unwrap();
    let (claim, staged) = target.claim(bundle);
    assert_same(&source.memories, &staged);
    claim.start().unwrap();
}

#[test]
fn lm_28_a_source_whose_connection_closes_after_a_save_lets_the_target_run() {
    let (target, source, bundle) = complete();
    source.departure.detach();
    assert_eq!(source.phase(), "idle");
    // As a daemon that ends.
    drop(source);
    let (claim, _staged) = target.claim(bundle);
    claim.start().unwrap();
}

#[test]
fn a_target_that_starts_first_keeps_the_guest() {
    let (target, source, bundle) = complete();
    let (claim, _staged) = target.claim(bundle);
    claim.start().unwrap();
    assert!(matches!(source.departure.thaw(), Thaw::Lost(_)));
    assert!(matches!(source.departure.thaw(), Thaw::Lost(_)), "and for good");
    assert!(source.departure.start(None).is_err(), "what is lost does not move");
    // The next session of that vGPU is another guest's.
    source.departure.detach();
    source.attach(crate::pair::IMMUTABLE);
    assert_eq!(source.departure.thaw(), Thaw::Run);
}

#[test]
fn a_dead_target_leaves_the_guest_to_the_source() {
    let (target, source, bundle) = complete();
    let (claim, _staged) = target.claim(bundle);
    drop(target);
    assert!(claim.start().is_err());
    assert_eq!(source.departure.thaw(), Thaw::Run);
}

#[test]
fn lm_39_a_session_that_goes_before_it_runs_leaves_nothing_behind() {
    let (target, source, bundle) = complete();
    let (claim, _staged) = target.claim(bundle);
    drop(claim);
    eventually("it is forgotten", || target.is_clean());
    assert!(target.arrivals.claim(NAME, bundle).is_err());
    assert_eq!(source.departure.thaw(), Thaw::Run);
}

#[test]
fn a_bundle_is_claimed_once_by_the_vgpu_that_it_is_of() {
    let (target, _source, bundle) = complete();
    let other = target.arrivals.claim("vgpu1", bundle).unwrap_err().to_string();
    assert!(other.contains("no bundle"), "{other}");
    let unknown = target.arrivals.claim(NAME, BundleId([7; 16])).unwrap_err().to_string();
    assert!(unknown.contains("no bundle"), "{unknown}");
    let (_claim, _staged) = target.claim(bundle);
    let again = target.arrivals.claim(NAME, bundle).unwrap_err().to_string();
    assert!(again.contains("loaded already"), "{again}");
}

#[test]
fn a_front_end_that_logs_begins_a_brownout_and_ends_it_when_it_changes_its_mind() {
    let target = Target::new(LONG);
    let source = Source::new(settings(target.peer(), LONG));
    source.departure.log_changed(true);
    source.departure.log_changed(true);
    source.converge();
    source.departure.log_changed(false);
    assert_eq!(source.phase(), "idle");
    eventually("the target forgets it", || target.is_clean());
    // What the operator has begun, the front-end does not end.
    eventually("the lines are free", || source.departure.start(None).is_ok());
    source.departure.log_changed(true);
    source.departure.log_changed(false);
    assert_eq!(source.phase(), "brownout");
    source.departure.detach();
    assert_eq!(source.phase(), "idle");
    eventually("the target forgets it", || target.is_clean());
}

#[test]
fn a_pause_without_a_save_changes_nothing() {
    let target = Target::new(LONG);
    let source = Source::new(settings(target.peer(), LONG));
    source.departure.start(None).unwrap();
    source.converge();
    assert_eq!(source.departure.thaw(), Thaw::Run);
    assert_eq!(source.phase(), "brownout");
}

#[test]
fn a_daemon_is_source_and_target_at_a_time() {
    let (one, other) = (Target::new(LONG), Target::new(LONG));
    let sources = [Source::new(settings(one.peer(), LONG)), Source::new(settings(other.peer(), LONG))];
    std::thread::scope(|scope| {
        for (source, target) in sources.iter().zip([&one, &other]) {
            scope.spawn(move || {
                source.scribble();
                source.departure.start(None).unwrap();
                source.converge();
                let (claim, staged) = target.claim(source.departure.finish().unwrap());
                assert_same(&source.memories, &staged);
                claim.start().unwrap();
            });
        }
    });
}

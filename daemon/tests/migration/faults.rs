//! A line that breaks at every single frame, in every way (LM-65).

use campanile_daemon::migration::settings::Settings;
use campanile_daemon::migration::source::departure::Thaw;

use crate::pair::SHORT;
use crate::pair::Source;
use crate::pair::Target;
use crate::pair::assert_same;
use crate::pair::eventually;
use crate::pair::settings;
use crate::proxy::Break;
use crate::proxy::Fault;
use crate::proxy::Proxy;
use crate::proxy::Way;

/// Lines of each migration.
const STREAMS: u8 = 2;

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The guest runs at the source.
    Source,
    /// It runs at the target.
    Target,
    /// It runs nowhere.
    Nowhere,
}

/// One migration without a brownout, from HELLO to MAY_I_RUN, over a line that breaks. Then the source's VM runs again, if the
/// target does not.
fn migrate(broken: Option<Break>) -> (Outcome, Target, Source, Proxy) {
    let target = Target::new(SHORT);
    let proxy = Proxy::new(&target.peer(), broken);
    let source = Source::new(Settings { streams: STREAMS, ..settings(proxy.peer(), SHORT) });
    source.scribble();
    let before = source.memories[0].contents();
    let outcome = match source.departure.finish() {
        Ok(bundle) => {
            let started = target.arrivals.claim(crate::pair::NAME, bundle).and_then(|mut claim| {
                let staged = claim.take_memories().unwrap();
                assert_same(&source.memories, &staged);
                claim.start().map(|()| claim)
            });
            let thaw = source.departure.thaw();
            match (started, thaw) {
                (Ok(_), Thaw::Run) => panic!("{broken:?}: two runners"),
                (Ok(_), Thaw::Lost(_)) => Outcome::Target,
                (Err(_), Thaw::Run) => Outcome::Source,
                (Err(_), Thaw::Lost(_)) => Outcome::Nowhere,
            }
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(source.departure.thaw(), Thaw::Run, "{broken:?}: {error}");
            Outcome::Source
        }
    };
    assert_eq!(source.memories[0].contents(), before, "the source is as it was");
    assert!(source.memories.iter().all(|memory| !memory.is_moving()), "{broken:?}");
    (outcome, target, source, proxy)
}

fn each_fault(fault: Fault) {
    let (outcome, _target, _source, proxy) = migrate(None);
    assert_eq!(outcome, Outcome::Target);
    let frames = [Way::There, Way::Back].map(|way| (way, proxy.frames(way)));
    drop(proxy);
    assert!(frames.iter().all(|(_, count)| *count >= 5), "{frames:?}");
    let mut elsewhere = 0;
    for (way, count) in frames {
        for frame in 0..count {
            let broken = Break { way, frame, fault };
            let (outcome, target, source, proxy) = migrate(Some(broken));
            // What is asked after the target runs may not come in every run.
            if proxy.broke() && outcome != Outcome::Source {
                elsewhere += 1;
            }
            if outcome != Outcome::Target {
                eventually("the target keeps nothing", || target.is_clean());
            }
            drop(proxy);
            // Nothing of it stays in the way of the next one.
            if outcome == Outcome::Source {
                let next = Target::new(SHORT);
                let name = crate::pair::NAME.to_owned();
                source.departure.start(Some((next.peer(), name))).unwrap();
                let (_claim, staged) = next.claim(source.departure.finish().unwrap());
                assert_same(&source.memories, &staged);
            }
        }
    }
    // GRANTED, and what comes after it, when the guest is no more the source's. A frame that comes twice may be the last that
    // anybody reads of its line.
    let late = fault == Fault::Replay || elsewhere <= 5;
    assert!(late, "{elsewhere} faults ended elsewhere than at the source");
}

#[test]
fn lm_65_a_line_that_closes_at_any_frame_leaves_the_guest_at_the_source() {
    each_fault(Fault::Close);
}

#[test]
fn lm_65_a_line_that_ends_within_any_frame_leaves_the_guest_at_the_source() {
    each_fault(Fault::Truncate);
}

#[test]
fn lm_65_lm_40_a_frame_that_was_changed_is_never_used() {
    each_fault(Fault::Corrupt);
}

#[test]
fn lm_65_a_frame_that_is_repeated_is_never_used_twice() {
    each_fault(Fault::Replay);
}

#[test]
fn lm_65_a_peer_that_stands_still_is_given_up() {
    each_fault(Fault::Stall);
}

#[test]
fn lm_65_the_operator_may_call_a_migration_off_at_any_time() {
    for at in 0..12 {
        let target = Target::new(SHORT);
        let proxy = Proxy::new(&target.peer(), None);
        let slow = Some(8 << 20);
        let source = Source::new(Settings { bandwidth: slow, ..settings(proxy.peer(), SHORT) });
        source.scribble();
        source.departure.start(None).unwrap();
        eventually("it is so far", || {
            proxy.frames(Way::There) >= at || source.doing().starts_with("waiting")
        });
        source.departure.cancel("the operator has changed his mind").unwrap();
        assert_eq!(source.departure.thaw(), Thaw::Run);
        eventually("the target keeps nothing", || target.is_clean());
        eventually("tracking has ended", || source.memories.iter().all(|memory| !memory.is_moving()));
    }
}

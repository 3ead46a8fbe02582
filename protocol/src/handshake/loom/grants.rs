//! One engine at a time on a node, whichever yields, sleeps or wakes.

use std::sync::Arc;

use loom::thread;

use super::words::Modelled;
use super::words::Strong;
use crate::handshake::grant;
use crate::handshake::grant::Given;

/// Two engines take turns; what they run on is one cell that must never be entered twice.
fn two_engines_one_node(wait_for_yield: bool) {
    loom::model(move || {
        let first = Arc::new(Strong::new(0));
        let second = Arc::new(Strong::new(0));
        let node = Arc::new(loom::cell::UnsafeCell::new(0u64));
        assert_eq!(grant::take_turn(&*first), grant::Turn::Ask);
        assert_eq!(grant::take_turn(&*second), grant::Turn::Ask);
        let (mut to_first, mut to_second) = (Given::default(), Given::default());
        assert!(to_first.give(&*first));

        let run = |word: Arc<Strong>, node: Arc<loom::cell::UnsafeCell<u64>>| {
            thread::spawn(move || {
                let turn = grant::take_turn(&*word);
                if matches!(turn, grant::Turn::Run | grant::Turn::Stop) {
                    node.with_mut(|_| ());
                    let _ = grant::release(&*word);
                }
            })
        };
        let one = run(Arc::clone(&first), Arc::clone(&node));
        let _revoked = to_first.revoke(&*first);
        let _phase = to_first.look(&*first).unwrap();
        if !wait_for_yield || !to_first.holds() {
            assert!(to_second.give(&*second));
        }
        let two = run(Arc::clone(&second), Arc::clone(&node));
        one.join().unwrap();
        two.join().unwrap();
    });
}

/// An engine that sleeps with the node wakes while the supervisor takes the node for another.
fn sleeper_against_reclaim(reclaims: bool) {
    loom::model(move || {
        let first = Arc::new(Strong::new(0));
        let second = Arc::new(Strong::new(0));
        let node = Arc::new(loom::cell::UnsafeCell::new(0u64));
        assert_eq!(grant::take_turn(&*first), grant::Turn::Ask);
        let (mut to_first, mut to_second) = (Given::default(), Given::default());
        assert!(to_first.give(&*first));
        assert!(grant::park(&*first));
        assert_eq!(grant::take_turn(&*second), grant::Turn::Ask);

        let run = |word: Arc<Strong>, node: Arc<loom::cell::UnsafeCell<u64>>| {
            thread::spawn(move || {
                if matches!(grant::take_turn(&*word), grant::Turn::Run | grant::Turn::Resume) {
                    node.with_mut(|_| ());
                }
            })
        };
        let one = run(Arc::clone(&first), Arc::clone(&node));
        if !reclaims || to_first.reclaim(&*first) {
            assert!(to_second.give(&*second));
        }
        let two = run(Arc::clone(&second), Arc::clone(&node));
        one.join().unwrap();
        two.join().unwrap();
        to_first.look(&*first).unwrap();
    });
}

#[test]
fn loom_an_engine_that_wakes_runs_only_while_it_has_the_node() {
    sleeper_against_reclaim(true);
}

#[test]
#[should_panic]
fn loom_twin_that_gives_without_reclaiming_runs_two() {
    sleeper_against_reclaim(false);
}

/// An engine yields, and is given the node again before it has looked.
fn yielder_given_again(waits_for_yield: bool) {
    loom::model(move || {
        let word = Arc::new(Strong::new(0));
        let node = Arc::new(loom::cell::UnsafeCell::new(0u64));
        assert_eq!(grant::take_turn(&*word), grant::Turn::Ask);
        let mut given = Given::default();
        assert!(given.give(&*word));
        assert!(given.revoke(&*word));
        let engine = thread::spawn({
            let (word, node) = (Arc::clone(&word), Arc::clone(&node));
            move || {
                assert_eq!(grant::take_turn(&*word), grant::Turn::Stop);
                node.with_mut(|_| ());
                assert!(grant::yield_turn(&*word));
                match grant::take_turn(&*word) {
                    grant::Turn::Run => node.with_mut(|_| ()),
                    turn => assert_eq!(turn, grant::Turn::Wait, "the supervisor need not be asked"),
                }
            }
        });
        let yielded = given.look(&*word).unwrap() == grant::Phase::Yielded;
        if yielded || !waits_for_yield {
            // Another engine, which is done before this one is given the node again.
            node.with_mut(|_| ());
        }
        assert!(given.give(&*word) || !yielded);
        engine.join().unwrap();
    });
}

#[test]
fn loom_an_engine_that_has_yielded_need_not_ask_and_runs_only_when_given_the_node() {
    yielder_given_again(true);
}

#[test]
#[should_panic]
fn loom_twin_that_runs_somebody_else_before_the_yield_runs_two() {
    yielder_given_again(false);
}

#[test]
fn loom_one_engine_at_a_time_runs_on_a_node() {
    two_engines_one_node(true);
}

#[test]
#[should_panic]
fn loom_twin_that_grants_before_the_yield_runs_two() {
    two_engines_one_node(false);
}

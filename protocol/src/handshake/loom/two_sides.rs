//! Which side stores first and which looks again: doorbell, power, fence.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::words::Modelled;
use super::words::Strong;
use super::words::Weak;
use crate::handshake::doorbell;
use crate::handshake::fence as native_fence;
use crate::handshake::power;

const CONNECTED: u64 = 0;
const RETRY: u64 = 2;

fn ring_against_disconnect<W: Modelled>() {
    loom::model(|| {
        let write_pointer = Arc::new(W::new(0));
        let cell = Arc::new(W::new(0));
        let summary = Arc::new(W::new(0));
        let status = Arc::new(W::new(CONNECTED));
        let sequence = Arc::new(AtomicU64::new(0));

        let guest = {
            let (write_pointer, cell) = (Arc::clone(&write_pointer), Arc::clone(&cell));
            let (summary, status) = (Arc::clone(&summary), Arc::clone(&status));
            thread::spawn(move || {
                let words = doorbell::Doorbell {
                    write_pointer: &*write_pointer,
                    cell: &*cell,
                    summary: &*summary,
                    summary_bit: 1,
                    status: &*status,
                };
                words.ring(1)
            })
        };
        let daemon = {
            let (status, sequence) = (Arc::clone(&status), Arc::clone(&sequence));
            thread::spawn(move || {
                doorbell::disconnect(&*status, RETRY, || sequence.store(1, Ordering::Release));
            })
        };
        // The engine, once it has seen the slot go.
        let found = if sequence.load(Ordering::Acquire) == 1 {
            Some(doorbell::final_look(&*write_pointer))
        } else {
            None
        };
        let read = guest.join().unwrap();
        daemon.join().unwrap();
        if let Some(found) = found {
            assert!(
                read == RETRY || found == 1,
                "a ring was lost: the guest read CONNECTED, the engine found nothing"
            );
        }
    });
}

fn sleep_against_work<W: Modelled>() {
    loom::model(|| {
        let power_word = Arc::new(W::new(power::ACTIVE));
        let submitted = Arc::new(AtomicU64::new(0));
        let poked = Arc::new(AtomicBool::new(false));

        let daemon = {
            let (power_word, submitted, poked) =
                (Arc::clone(&power_word), Arc::clone(&submitted), Arc::clone(&poked));
            thread::spawn(move || {
                submitted.store(1, Ordering::Release);
                if power::needs_poke(&*power_word) {
                    poked.store(true, Ordering::Release);
                }
            })
        };
        let blocks = power::may_block(&*power_word, power::ASLEEP, || submitted.load(Ordering::Acquire) == 1);
        daemon.join().unwrap();
        assert!(
            !blocks || poked.load(Ordering::Acquire),
            "the engine sleeps on work that nothing will wake it for"
        );
    });
}

fn signal_against_wait<W: Modelled>() {
    loom::model(|| {
        let current = Arc::new(W::new(0));
        let monitored = Arc::new(W::new(native_fence::NOBODY));

        let engine = {
            let (current, monitored) = (Arc::clone(&current), Arc::clone(&monitored));
            thread::spawn(move || native_fence::signal(&*current, &*monitored, 1))
        };
        let read = native_fence::monitor(&*current, &*monitored, Some(1));
        let interrupted = engine.join().unwrap();
        assert!(interrupted || read == 1, "a waiter was missed: no interrupt, and the value was not seen");
    });
}

#[test]
fn loom_a_ring_is_never_lost() {
    ring_against_disconnect::<Strong>();
}

#[test]
#[should_panic(expected = "a ring was lost")]
fn loom_twin_without_fence_loses_a_ring() {
    ring_against_disconnect::<Weak>();
}

#[test]
fn loom_an_engine_never_sleeps_on_work() {
    sleep_against_work::<Strong>();
}

#[test]
#[should_panic(expected = "the engine sleeps on work")]
fn loom_twin_without_fence_sleeps_on_work() {
    sleep_against_work::<Weak>();
}

#[test]
fn loom_a_waiter_is_never_missed() {
    signal_against_wait::<Strong>();
}

#[test]
#[should_panic(expected = "a waiter was missed")]
fn loom_twin_without_fence_misses_a_waiter() {
    signal_against_wait::<Weak>();
}

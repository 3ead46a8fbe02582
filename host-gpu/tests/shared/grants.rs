//! One node for two engines: what one has done there, the next one finds.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_host_gpu::memory::mapping::Mapping;
use campanile_protocol::handshake::grant;
use campanile_protocol::handshake::grant::Given;
use campanile_protocol::handshake::grant::Phase;
use campanile_protocol::handshake::grant::Turn;

use crate::support::TIMES;
use crate::support::mapping;
use crate::support::read;
use crate::support::until;
use crate::support::word;
use crate::support::write;

/// Grant words, a line each.
const WORDS: [u64; 2] = [0, 64];
/// What lies on the node.
const NODE: u64 = 1024;

/// Engine: has its turns, and gives the node back in each of the ways that there are.
fn run(shared: &Mapping, place: u64) {
    let word = word(shared, place);
    for turn in 0..TIMES {
        let is_told = until("a turn", || match grant::take_turn(word) {
            Turn::Run | Turn::Resume => Some(false),
            Turn::Stop => Some(true),
            Turn::Wait | Turn::Ask => None,
        });
        write(shared, NODE, read(shared, NODE) + 1);
        match turn % 3 {
            _ if is_told => assert!(grant::yield_turn(word)),
            0 => assert!(grant::release(word)),
            1 => drop(grant::park(word)),
            _ => {}
        }
    }
    let _was_told = grant::release(word);
}

/// Supervisor: gives the node to whichever wants it, once the other has it no longer.
fn supervise(shared: &Mapping, is_done: impl Fn() -> bool) {
    let words = WORDS.map(|place| word(shared, place));
    let mut given = [Given::default(); 2];
    while !is_done() {
        for (own, other) in [(0, 1), (1, 0)] {
            let wants = matches!(given[own].look(words[own]).unwrap(), Phase::Want | Phase::Yielded);
            if !wants {
                continue;
            }
            if !given[other].reclaim(words[other]) {
                let _asked = given[other].revoke(words[other]);
            }
            given[other].look(words[other]).unwrap();
            if !given[other].holds() {
                let _given = given[own].give(words[own]);
            }
        }
        thread::yield_now();
    }
}

#[test]
fn what_an_engine_did_on_its_node_is_there_for_the_next_however_it_was_given_back() {
    let shared = mapping(4096);
    let done = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        for (place, done) in WORDS.into_iter().zip(&done) {
            let shared = &shared;
            scope.spawn(move || {
                run(shared, place);
                // No order: the node must not need it.
                done.store(true, Ordering::Relaxed);
            });
        }
        supervise(&shared, || done.iter().all(|done| done.load(Ordering::Relaxed)));
    });
    assert_eq!(read(&shared, NODE), 2 * TIMES, "two engines ran at once");
}

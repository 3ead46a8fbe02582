//! The twin that has to be seen.

use std::sync::atomic::Ordering;
use std::thread;

use crate::support::TIMES;
use crate::support::mapping;
use crate::support::read;
use crate::support::until;
use crate::support::word;
use crate::support::write;

/// Bytes, and a word that says that they are there, and orders nothing.
#[test]
#[ignore = "a race on purpose: ci/tsan runs it alone, and fails where ThreadSanitizer does not report it"]
fn a_twin_whose_word_is_relaxed_is_a_race() {
    let shared = mapping(4096);
    thread::scope(|scope| {
        scope.spawn(|| {
            for value in 1..=TIMES {
                write(&shared, 64, value);
                word(&shared, 0).store(value, Ordering::Relaxed);
                until("the other", || (word(&shared, 8).load(Ordering::Relaxed) == value).then_some(()));
            }
        });
        for value in 1..=TIMES {
            until("the word", || (word(&shared, 0).load(Ordering::Relaxed) == value).then_some(()));
            assert_eq!(read(&shared, 64), value);
            word(&shared, 8).store(value, Ordering::Relaxed);
        }
    });
}

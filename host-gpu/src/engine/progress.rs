//! The progress word, from the engine thread, which alone writes it (UMS-115).

use std::sync::atomic::Ordering;

use campanile_protocol::engine::block;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::progress::Work;

use crate::memory::mapping::Mapping;

/// Says what runs from here on.
pub fn begin(shared: &Mapping, work: Work, is_exempt: bool) {
    change(shared, |progress| progress.next(work, is_exempt));
}

/// Nothing runs any more.
pub fn end(shared: &Mapping) {
    begin(shared, Work::Nothing, false);
}

/// A packet, or a chunk of a long one, is done.
pub fn step(shared: &Mapping) {
    change(shared, |progress| progress.next(progress.work, progress.is_exempt));
}

fn change(shared: &Mapping, next: impl Fn(Progress) -> Progress) {
    if let Some(word) = shared.word(block::PROGRESS) {
        let progress = Progress::from_word(word.load(Ordering::Relaxed));
        word.store(next(progress).word(), Ordering::Release);
    }
}

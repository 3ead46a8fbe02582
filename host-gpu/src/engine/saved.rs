//! Where buffers that are put aside leave how far they are, for the next process of this engine.

use std::sync::atomic::Ordering;

use campanile_protocol::engine::saved::SAVED_WORDS;
use campanile_protocol::engine::saved::Saved;

use super::watch::load;
use crate::memory::mapping::Mapping;
use crate::node::buffer::Buffer;
use crate::node::space::Stop;

/// Where the words of a [`Saved`] lie, one behind the other.
const SAVED_OFFSETS: [u64; SAVED_WORDS] = [0, 8, 16, 24];

/// Saves how far `buffer`, the `count`-th of its queue, is: before the progress word says that nothing runs.
pub fn save(shared: &Mapping, place: u64, count: u64, buffer: &Buffer) {
    // The others are read only where the first names this buffer.
    for (offset, value) in SAVED_OFFSETS.into_iter().zip(buffer.save().words(count)).rev() {
        if let Some(word) = shared.word(place + offset) {
            word.store(value, Ordering::Release);
        }
    }
}

/// What was saved of the `count`-th buffer of a queue, if anything was.
pub fn read(shared: &Mapping, place: u64, count: u64) -> Option<Saved> {
    Saved::from_words(SAVED_OFFSETS.map(|offset| load(shared, place + offset)), count)
}

/// Takes up what was saved of `buffer`, the `count`-th of its queue, if anything was.
pub fn restore(shared: &Mapping, place: u64, count: u64, buffer: Buffer) -> Result<Buffer, Stop> {
    match read(shared, place, count) {
        Some(saved) => buffer.restore(saved),
        None => Ok(buffer),
    }
}

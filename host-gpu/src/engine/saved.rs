//! Where buffers that are put aside leave how far they are, for the next process of this engine.

use std::sync::atomic::Ordering;

use campanile_protocol::engine::saved::Saved;

use super::watch::load;
use crate::memory::mapping::Mapping;
use crate::node::buffer::Buffer;
use crate::node::space::Stop;

/// Saves how far `buffer`, the `count`-th of its queue, is: before the progress word says that nothing runs.
pub fn save(shared: &Mapping, place: u64, count: u64, buffer: &Buffer) {
    let [first, second] = buffer.save().words(count);
    // The second is read only where the first names this buffer.
    for (offset, value) in [(8, second), (0, first)] {
        if let Some(word) = shared.word(place + offset) {
            word.store(value, Ordering::Release);
        }
    }
}

/// Takes up what was saved of `buffer`, the `count`-th of its queue, if anything was.
pub fn restore(shared: &Mapping, place: u64, count: u64, buffer: Buffer) -> Result<Buffer, Stop> {
    match Saved::from_words([load(shared, place), load(shared, place + 8)], count) {
        Some(saved) => buffer.restore(saved),
        None => Ok(buffer),
    }
}

//! What a FENCE_SIGNAL packet does, apart from its address.

use crate::memory::segment::Place;
use crate::memory::segment::Segments;

/// Stores fence values.
pub trait Signal {
    /// Stores `value` in the word at `place`, after all that came before, and wakes the threads that sleep for it.
    /// False where there is no such word.
    fn signal(&self, segments: &Segments, place: &Place, value: u64) -> bool;
}

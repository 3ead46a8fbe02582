//! Words and structures of the shared block.

use std::sync::atomic::Ordering;

use zerocopy::FromBytes;

use crate::memory::mapping::Mapping;

/// A word of the shared block, with acquire.
pub fn load(shared: &Mapping, offset: u64) -> u64 {
    shared.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
}

/// Stores a word of the shared block, with release.
pub fn store(shared: &Mapping, offset: u64, value: u64) {
    if let Some(word) = shared.word(offset) {
        word.store(value, Ordering::Release);
    }
}

/// A structure in the shared block, copied.
pub fn read<T: FromBytes>(shared: &Mapping, offset: u64) -> Option<T> {
    let slice = shared.slice(offset, size_of::<T>() as u64)?;
    let mut bytes = vec![0; size_of::<T>()];
    slice.copy_to(&mut bytes);
    T::read_from_bytes(&bytes).ok()
}

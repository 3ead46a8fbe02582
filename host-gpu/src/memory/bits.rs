//! Sets of numbers in shared words, one bit each: raised on one side, taken on the other.

use std::sync::atomic::Ordering;

use super::mapping::Mapping;

/// Adds `number` to the set at `offset`. Who takes it sees all that was stored before. False when it was there.
pub fn raise(mapping: &Mapping, offset: u64, number: u32) -> bool {
    let bit = 1 << (number % 64);
    let word = mapping.word(offset + u64::from(number / 64) * 8);
    word.is_some_and(|word| word.fetch_or(bit, Ordering::Release) & bit == 0)
}

/// Takes all numbers out of the set of `words` words at `offset`.
pub fn take(mapping: &Mapping, offset: u64, words: u64) -> Vec<u32> {
    let mut taken = Vec::new();
    let mut base = 0;
    for index in 0..words {
        let word = mapping.word(offset + index * 8);
        let empty = |word: &&std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed) == 0;
        let mut bits = word.filter(|word| !empty(word)).map_or(0, |word| word.swap(0, Ordering::AcqRel));
        while bits != 0 {
            taken.push(base + bits.trailing_zeros());
            bits &= bits - 1;
        }
        base += 64;
    }
    taken
}

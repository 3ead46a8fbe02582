//! Sets of numbers in shared words, one bit each: raised on one side, taken on the other.

use std::sync::atomic::Ordering;

use super::mapping::Mapping;

/// Adds `number` to the set at `offset`. A thread that takes it sees all that was stored before. False when it was there.
pub fn raise(mapping: &Mapping, offset: u64, number: u32) -> bool {
    let bit = 1 << (number % 64);
    let word = mapping.word(offset + u64::from(number / 64) * 8);
    word.is_some_and(|word| word.fetch_or(bit, Ordering::Release) & bit == 0)
}

/// The words that hold `count` bits from bit `first` on, each with those of its bits that are meant.
pub fn masks(first: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = first.saturating_add(count);
    let last = if count == 0 { first / 64 } else { end.div_ceil(64) };
    (first / 64..last).map(move |word| {
        let (low, high) = (first.max(word * 64) % 64, end.min(word * 64 + 64) - word * 64);
        let below = if high == 64 { u64::MAX } else { (1 << high) - 1 };
        (word, below & (u64::MAX << low))
    })
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

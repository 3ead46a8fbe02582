//! A plane of bits, one a page.

use super::basis::Pages;
use crate::memory::bits;

/// The bits of a segment, held by one thread at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plane {
    words: Vec<u64>,
    pages: u64,
}

/// Words of a plane of so many bits.
pub(super) fn words(pages: u64) -> usize {
    usize::try_from(pages.div_ceil(64)).unwrap_or(usize::MAX)
}

/// The words that hold `pages`, each with the bits of it that are meant.
pub(super) fn masks(pages: Pages) -> impl Iterator<Item = (usize, u64)> {
    bits::masks(pages.first, pages.count)
        .map(|(word, mask)| (usize::try_from(word).unwrap_or(usize::MAX), mask))
}

impl Plane {
    /// All bits zero.
    pub fn new(pages: u64) -> Self {
        Self { words: vec![0; words(pages)], pages }
    }

    /// Sets the bits of `pages`, as far as there are such.
    pub fn set(&mut self, pages: Pages) {
        for (word, mask) in masks(pages.common(Pages { first: 0, count: self.pages })) {
            if let Some(word) = self.words.get_mut(word) {
                *word |= mask;
            }
        }
    }

    /// Sets those bits of the word with this index that are set in `bits`.
    pub fn set_word(&mut self, word: usize, bits: u64) {
        if let Some(word) = self.words.get_mut(word) {
            *word |= bits;
        }
    }

    /// Whether the bit of a page is set.
    pub fn has(&self, page: u64) -> bool {
        let word = usize::try_from(page / 64).ok().and_then(|word| self.words.get(word));
        word.is_some_and(|word| word >> (page % 64) & 1 != 0)
    }

    /// Clears the bits of `pages`.
    pub fn clear(&mut self, pages: Pages) {
        for (word, mask) in masks(pages) {
            if let Some(word) = self.words.get_mut(word) {
                *word &= !mask;
            }
        }
    }

    /// Sets those bits of `pages` that are set in `other`.
    pub fn merge(&mut self, other: &Self, pages: Pages) {
        for (word, mask) in masks(pages.common(Pages { first: 0, count: self.pages })) {
            self.set_word(word, other.words.get(word).map_or(0, |word| word & mask));
        }
    }

    /// The first bits of `within` that are set, one behind the other; of a long run its first 64 at the most.
    pub fn next_run(&self, within: Pages) -> Option<Pages> {
        let mut at = within.first;
        while at < within.end() {
            let window = (within.end() - at).min(64);
            let bits = self.bits(at, window);
            if bits != 0 {
                let first = at + u64::from(bits.trailing_zeros());
                let rest = self.bits(first, (within.end() - first).min(64));
                return Some(Pages { first, count: u64::from(rest.trailing_ones()) });
            }
            at += window;
        }
        None
    }

    /// How many bits of `pages` are set.
    pub fn count(&self, pages: Pages) -> u64 {
        let ones =
            |(word, mask): (usize, u64)| self.words.get(word).map_or(0, |word| word & mask).count_ones();
        masks(pages).map(|masked| u64::from(ones(masked))).sum()
    }

    /// Up to 64 bits from page `first` on.
    fn bits(&self, first: u64, count: u64) -> u64 {
        let at = usize::try_from(first / 64).unwrap_or(usize::MAX);
        let word = |at: usize| self.words.get(at).copied().unwrap_or(0);
        let shift = first % 64;
        let low = word(at) >> shift;
        let high = if shift == 0 { 0 } else { word(at.saturating_add(1)) << (64 - shift) };
        let mask = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
        (low | high) & mask
    }

    /// Writes the bits of `ranges` one behind the other, the least significant of each byte first, without padding
    /// between ranges (DIRTY-41). The rest of the last byte is zero, and what lies behind it stays as it was (DIRTY-49).
    pub fn pack(&self, ranges: &[Pages], into: &mut [u8]) {
        let (mut pending, mut filled) = (0u128, 0u64);
        let mut bytes = into.iter_mut();
        let mut flush = |pending: &mut u128, filled: &mut u64, least: u64| {
            while *filled >= least {
                let [byte, ..] = pending.to_le_bytes();
                if let Some(place) = bytes.next() {
                    *place = byte;
                }
                *pending >>= 8;
                *filled = filled.saturating_sub(8);
            }
        };
        for range in ranges {
            let mut at = range.first;
            while at < range.end() {
                let count = (range.end() - at).min(64);
                pending |= u128::from(self.bits(at, count)) << filled;
                filled += count;
                at += count;
                flush(&mut pending, &mut filled, 8);
            }
        }
        flush(&mut pending, &mut filled, 1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_set;
    use proptest::collection::vec;
    use proptest::prop_assert_eq;
    use proptest::proptest;

    use super::Pages;
    use super::Plane;

    proptest! {
        #[test]
        fn dirty_41_bits_lie_one_behind_the_other_least_significant_first(
            dirty in btree_set(0u64..300, 0..60),
            ranges in vec((0u64..300, 0u64..140), 1..6),
        ) {
            let mut plane = Plane::new(300);
            for page in &dirty {
                plane.set(Pages { first: *page, count: 1 });
            }
            let ranges: Vec<Pages> =
                ranges.into_iter().map(|(first, count)| Pages { first, count: count.min(300 - first) }).collect();
            let bits: Vec<bool> =
                ranges.iter().flat_map(|range| range.first..range.end()).map(|page| dirty.contains(&page)).collect();
            let needed = bits.len().div_ceil(8);
            let mut packed = vec![0xa5; needed + 3];
            plane.pack(&ranges, &mut packed);
            for (index, bit) in bits.iter().enumerate() {
                prop_assert_eq!(packed[index / 8] >> (index % 8) & 1 != 0, *bit, "bit {}", index);
            }
            for index in bits.len()..needed * 8 {
                prop_assert_eq!(packed[index / 8] >> (index % 8) & 1, 0, "unused bit {}", index);
            }
            prop_assert_eq!(&packed[needed..], &[0xa5; 3]);
        }

        #[test]
        fn a_plane_is_a_set_of_pages(steps in vec((0u64..200, 0u64..150, 0u8..5), 0..40)) {
            let mut plane = Plane::new(190);
            let mut model = [false; 190];
            for (first, count, what) in steps {
                let pages = Pages { first, count };
                let inside = (first..first + count).filter(|page| *page < 190);
                match what {
                    0 => {
                        plane.set(pages);
                        inside.for_each(|page| model[usize::try_from(page).unwrap()] = true);
                    }
                    1 => {
                        plane.clear(pages);
                        inside.for_each(|page| model[usize::try_from(page).unwrap()] = false);
                    }
                    2 => {
                        let mut other = Plane::new(190);
                        other.set(Pages { first: first / 2, count: 20 });
                        plane.merge(&other, pages);
                        let both = inside.filter(|page| (first / 2..first / 2 + 20).contains(page));
                        both.for_each(|page| model[usize::try_from(page).unwrap()] = true);
                    }
                    3 => {
                        let is_set = |page: u64| model[usize::try_from(page).unwrap()];
                        let expected = inside.clone().find(|page| is_set(*page)).map(|from| {
                            let run = inside.skip_while(|page| *page < from).take_while(|page| is_set(*page));
                            Pages { first: from, count: (run.count() as u64).min(64) }
                        });
                        prop_assert_eq!(plane.next_run(pages), expected);
                    }
                    _ => {
                        let expected = inside.filter(|page| model[usize::try_from(*page).unwrap()]).count();
                        prop_assert_eq!(plane.count(pages), expected as u64);
                    }
                }
            }
            for (page, expected) in (0u64..).zip(model) {
                prop_assert_eq!(plane.has(page), expected);
            }
        }
    }
}

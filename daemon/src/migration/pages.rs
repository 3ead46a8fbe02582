//! Sets of pages.

use std::ops::Range;

/// Bytes of a page in a stream, whatever one dirty bit stands for.
pub const PAGE: u64 = 4096;

/// Some of the pages of one memory, as bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageSet {
    words: Vec<u64>,
    pages: u64,
}

impl PageSet {
    /// None of `pages`.
    pub fn none(pages: u64) -> Self {
        let words = usize::try_from(pages.div_ceil(64)).unwrap_or(usize::MAX);
        Self { words: vec![0; words], pages }
    }

    /// All of `pages`.
    pub fn all(pages: u64) -> Self {
        let mut set = Self::none(pages);
        set.insert(0..pages);
        set
    }

    /// Pages that it could have.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages that it has.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Whether it has this one.
    pub fn contains(&self, page: u64) -> bool {
        page < self.pages
            && usize::try_from(page / 64).is_ok_and(|word| self.words[word] & (1 << (page % 64)) != 0)
    }

    /// Calls `change` with each word and the bits of it that `range` covers.
    fn each_word(&mut self, range: Range<u64>, mut change: impl FnMut(&mut u64, u64)) {
        let end = range.end.min(self.pages);
        let mut at = range.start;
        while at < end {
            let upto = (at / 64 + 1) * 64;
            let stop = upto.min(end);
            let ones = if stop - at == 64 { u64::MAX } else { ((1 << (stop - at)) - 1) << (at % 64) };
            if let Some(word) = usize::try_from(at / 64).ok().and_then(|index| self.words.get_mut(index)) {
                change(word, ones);
            }
            at = stop;
        }
    }

    /// Puts pages in. Those past the end are left out.
    pub fn insert(&mut self, range: Range<u64>) {
        self.each_word(range, |word, ones| *word |= ones);
    }

    /// Takes pages out.
    pub fn remove(&mut self, range: Range<u64>) {
        self.each_word(range, |word, ones| *word &= !ones);
    }

    /// Pages of a range that it has.
    pub fn count_in(&mut self, range: Range<u64>) -> u64 {
        let mut count = 0;
        self.each_word(range, |word, ones| count += u64::from((*word & ones).count_ones()));
        count
    }

    /// Puts in what a dirty query said: bit `i` stands for `scale` pages.
    pub fn insert_bits(&mut self, bits: &[u8], scale: u64) {
        if scale == 1 {
            for (index, byte) in bits.iter().enumerate() {
                if let Some(word) = self.words.get_mut(index / 8) {
                    *word |= u64::from(*byte) << (index % 8 * 8);
                }
            }
            let excess = self.words.len() as u64 * 64 - self.pages;
            if let Some(last) = self.words.last_mut() {
                *last &= u64::MAX >> excess;
            }
            return;
        }
        for (index, byte) in (0..).zip(bits) {
            for bit in 0..8 {
                if byte & (1 << bit) != 0 {
                    let page = (index * 8 + bit) * scale;
                    self.insert(page..page + scale);
                }
            }
        }
    }

    /// Puts in what another one has.
    pub fn insert_all(&mut self, other: &Self) {
        for (word, others) in self.words.iter_mut().zip(&other.words) {
            *word |= others;
        }
    }

    /// Its runs, in order.
    pub fn runs(&self) -> Vec<Range<u64>> {
        let mut at = 0;
        let next = || {
            let run = self.next_run(at, u64::MAX)?;
            at = run.end;
            Some(run)
        };
        std::iter::from_fn(next).collect()
    }

    /// The first run of pages at or after `from`, of at most `limit` pages.
    pub fn next_run(&self, from: u64, limit: u64) -> Option<Range<u64>> {
        let mut index = usize::try_from(from / 64).ok()?;
        let mut word = self.words.get(index)? & (u64::MAX << (from % 64));
        while word == 0 {
            index += 1;
            word = *self.words.get(index)?;
        }
        let start = index as u64 * 64 + u64::from(word.trailing_zeros());
        let most = start.saturating_add(limit).min(self.pages);
        let mut end = start;
        while end < most {
            let rest = self.words[usize::try_from(end / 64).ok()?] >> (end % 64);
            let ones = u64::from(rest.trailing_ones()).min(64 - end % 64);
            end += ones;
            if ones == 0 || !end.is_multiple_of(64) {
                break;
            }
        }
        Some(start..end.min(most))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::proptest;

    use super::PageSet;

    fn list(set: &PageSet, limit: u64) -> Vec<u64> {
        let (mut pages, mut at) = (Vec::new(), 0);
        while let Some(run) = set.next_run(at, limit) {
            assert!(run.end > run.start && run.end - run.start <= limit);
            at = run.end;
            pages.extend(run);
        }
        pages
    }

    proptest! {
        #[test]
        fn a_set_has_what_was_put_in_and_not_taken_out(
            pages in 1u64..400, ranges in vec((0u64..420, 0u64..200, any::<bool>()), 0..20), limit in 1u64..130,
        ) {
            let mut set = PageSet::none(pages);
            let mut model = vec![false; usize::try_from(pages).unwrap()];
            for (start, length, insert) in ranges {
                for page in start..(start + length).min(pages) {
                    model[usize::try_from(page).unwrap()] = insert;
                }
                if insert { set.insert(start..start + length) } else { set.remove(start..start + length) }
            }
            let expected: Vec<u64> = (0..pages).filter(|page| model[usize::try_from(*page).unwrap()]).collect();
            assert_eq!(list(&set, limit), expected);
            assert_eq!(set.count(), expected.len() as u64);
            assert_eq!(set.count_in(0..pages), set.count());
            assert!((0..pages).all(|page| set.contains(page) == model[usize::try_from(page).unwrap()]));
            assert!(!set.contains(pages));
        }

        #[test]
        fn bits_of_a_query_stand_for_one_page_or_more(pages in 1u64..300, bits in vec(any::<u8>(), 0..60), log in 0u32..4) {
            let scale = 1 << log;
            let mut set = PageSet::none(pages);
            set.insert_bits(&bits, scale);
            for page in 0..pages {
                let bit = usize::try_from(page / scale).unwrap();
                let expected = bits.get(bit / 8).is_some_and(|byte| byte & (1 << (bit % 8)) != 0);
                assert_eq!(set.contains(page), expected);
            }
        }
    }
}

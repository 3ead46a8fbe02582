//! Which ranges are free.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

/// Free ranges of one region, best fit: of those that are long enough the shortest, and of equals the first. Offsets and
/// lengths in bytes, whole pages.
#[derive(Debug, Clone)]
pub struct Ranges {
    free: BTreeMap<u64, u64>,
    /// The same by length.
    by_length: BTreeSet<(u64, u64)>,
}

impl Ranges {
    /// A region that is all free.
    pub fn new(start: u64, length: u64) -> Self {
        let mut ranges = Self { free: BTreeMap::new(), by_length: BTreeSet::new() };
        ranges.add(start, length);
        ranges
    }

    fn add(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.free.insert(start, length);
            self.by_length.insert((length, start));
        }
    }

    fn take_out(&mut self, start: u64) -> Option<u64> {
        let length = self.free.remove(&start)?;
        self.by_length.remove(&(length, start));
        Some(length)
    }

    /// Takes the best range.
    pub fn allocate(&mut self, length: u64) -> Option<u64> {
        let &(_, start) = self.by_length.range((length, 0)..).next()?;
        self.reserve(start, length).then_some(start)
    }

    /// Takes exactly this range; false, and nothing taken, when it is not all free.
    pub fn reserve(&mut self, start: u64, length: u64) -> bool {
        let Some(end) = start.checked_add(length) else { return false };
        let Some((&free_start, &free_length)) = self.free.range(..=start).next_back() else { return false };
        let free_end = free_start + free_length;
        if length == 0 || free_end < end {
            return false;
        }
        self.take_out(free_start);
        self.add(free_start, start - free_start);
        self.add(end, free_end - end);
        true
    }

    /// Gives a taken range back.
    pub fn release(&mut self, start: u64, length: u64) {
        let mut start = start;
        let mut end = start + length;
        if let Some((&before, &before_length)) = self.free.range(..start).next_back()
            && before + before_length == start
        {
            self.take_out(before);
            start = before;
        }
        if let Some(after_length) = self.take_out(end) {
            end += after_length;
        }
        self.add(start, end - start);
    }

    /// Free ranges: first byte and bytes, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.free.iter().map(|(start, length)| (*start, *length))
    }

    /// The free parts of a range, each its first byte and bytes, in order.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self.free.range(..start).next_back();
        before.into_iter().chain(self.free.range(start..end)).filter_map(move |(first, length)| {
            let (first, last) = ((*first).max(start), (first + length).min(end));
            (first < last).then(|| (first, last - first))
        })
    }

    /// Bytes free of a range.
    pub fn bytes_within(&self, start: u64, end: u64) -> u64 {
        self.within(start, end).map(|(_, length)| length).sum()
    }

    /// Takes all that is free of a range.
    pub fn take_all_within(&mut self, start: u64, end: u64) {
        let parts: Vec<(u64, u64)> = self.within(start, end).collect();
        for (first, length) in parts {
            self.reserve(first, length);
        }
    }

    /// Bytes of the longest free range.
    pub fn longest(&self) -> u64 {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    /// Bytes free.
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::proptest;

    use super::Ranges;

    #[test]
    fn a_range_that_is_not_all_free_is_not_taken() {
        let mut ranges = Ranges::new(0x1000, 0x4000);
        assert!(ranges.reserve(0x2000, 0x1000));
        assert!(!ranges.reserve(0x1000, 0x2000));
        assert!(!ranges.reserve(0x4000, 0x2000));
        assert!(!ranges.reserve(u64::MAX, 2));
        assert!(!ranges.reserve(0x1000, 0));
        assert_eq!(ranges.free_bytes(), 0x3000);
    }

    #[test]
    fn the_shortest_range_that_is_long_enough_is_taken_and_of_equals_the_first() {
        let mut ranges = Ranges::new(0, 20);
        for (start, length) in [(2, 1), (6, 1), (10, 1), (12, 8)] {
            assert!(ranges.reserve(start, length));
        }
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 2), (3, 3), (7, 3), (11, 1)]);
        assert_eq!((ranges.longest(), ranges.free_bytes()), (3, 9));
        assert_eq!([2, 3, 1, 3].map(|length| ranges.allocate(length)), [Some(0), Some(3), Some(11), Some(7)]);
        assert_eq!((ranges.allocate(1), ranges.longest(), ranges.iter().next()), (None, 0, None));
        // What is given back is one piece again with what is free beside it.
        for (start, free) in [(4, vec![(4, 1)]), (6, vec![(4, 1), (6, 1)]), (5, vec![(4, 3)])] {
            ranges.release(start, 1);
            assert_eq!(ranges.iter().collect::<Vec<_>>(), free);
        }
        assert_eq!(ranges.allocate(3), Some(4));
    }

    proptest! {
        /// Against a model that keeps one flag a page.
        #[test]
        fn what_is_free_of_a_range_is_told_and_taken(
            taken in proptest::collection::vec((0u64..24, 1u64..4), 0..12),
            start in 0u64..24,
            length in 0u64..24,
        ) {
            const PAGES: u64 = 24;
            let end = (start + length).min(PAGES);
            let (mut ranges, mut is_free) = (Ranges::new(0, PAGES), [true; 24]);
            for (first, length) in taken {
                let within = (first..first + length).all(|page| {
                    is_free.get(usize::try_from(page).unwrap()).copied().unwrap_or(false)
                });
                assert_eq!(ranges.reserve(first, length), within);
                let pages = first..if within { first + length } else { first };
                pages.for_each(|page| is_free[usize::try_from(page).unwrap()] = false);
            }
            let pieces = |is_free: &[bool]| {
                let mut pieces: Vec<(u64, u64)> = Vec::new();
                for (page, _) in (0u64..).zip(is_free).filter(|(_, is_free)| **is_free) {
                    match pieces.last_mut() {
                        Some((first, length)) if *first + *length == page => *length += 1,
                        _ => pieces.push((page, 1)),
                    }
                }
                pieces
            };
            assert_eq!(ranges.iter().collect::<Vec<_>>(), pieces(&is_free));
            let longest = pieces(&is_free).iter().map(|(_, length)| *length).max();
            assert_eq!(ranges.longest(), longest.unwrap_or(0));
            let within = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
            let free = is_free[within.clone()].iter().filter(|is_free| **is_free).count() as u64;
            assert_eq!(ranges.bytes_within(start, end), free);
            ranges.take_all_within(start, end);
            is_free[within].fill(false);
            assert_eq!(ranges.iter().collect::<Vec<_>>(), pieces(&is_free));
        }

        /// Against a model that keeps one flag a page.
        #[test]
        fn what_is_taken_is_taken_once(steps in proptest::collection::vec((any::<bool>(), 1u64..6), 1..80)) {
            const PAGES: u64 = 24;
            let mut ranges = Ranges::new(0, PAGES);
            let mut owner = [false; 24];
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (allocate, length) in steps {
                if allocate {
                    let fits = owner.split(|used| *used).any(|run| run.len() as u64 >= length);
                    let place = ranges.allocate(length);
                    assert_eq!(place.is_some(), fits);
                    if let Some(start) = place {
                        for page in start..start + length {
                            let flag = &mut owner[usize::try_from(page).unwrap()];
                            assert!(!*flag, "page {page} taken twice");
                            *flag = true;
                        }
                        taken.push((start, length));
                    }
                } else if !taken.is_empty() {
                    let at = usize::try_from(length).unwrap() % taken.len();
                    let (start, length) = taken.swap_remove(at);
                    ranges.release(start, length);
                    for page in start..start + length {
                        owner[usize::try_from(page).unwrap()] = false;
                    }
                }
                assert_eq!(ranges.free_bytes(), owner.iter().filter(|used| !**used).count() as u64);
            }
        }
    }
}

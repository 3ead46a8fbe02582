//! Which ranges are free.

use std::collections::BTreeMap;

/// Free ranges of one region, first fit. Offsets and lengths in bytes, whole pages.
#[derive(Debug, Clone)]
pub struct Ranges {
    free: BTreeMap<u64, u64>,
}

impl Ranges {
    /// A region that is all free.
    pub fn new(start: u64, length: u64) -> Self {
        let mut free = BTreeMap::new();
        if length > 0 {
            free.insert(start, length);
        }
        Self { free }
    }

    /// Takes the first range that is long enough.
    pub fn allocate(&mut self, length: u64) -> Option<u64> {
        let (&start, _) = self.free.iter().find(|&(_, &free)| free >= length)?;
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
        self.free.remove(&free_start);
        if free_start < start {
            self.free.insert(free_start, start - free_start);
        }
        if end < free_end {
            self.free.insert(end, free_end - end);
        }
        true
    }

    /// Gives a taken range back.
    pub fn release(&mut self, start: u64, length: u64) {
        let mut start = start;
        let mut end = start + length;
        if let Some((&before, &before_length)) = self.free.range(..start).next_back()
            && before + before_length == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(after_length) = self.free.remove(&end) {
            end += after_length;
        }
        self.free.insert(start, end - start);
    }

    /// Bytes of the longest free range.
    pub fn longest(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
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

    proptest! {
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

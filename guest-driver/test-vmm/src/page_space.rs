//! First-fit allocation of page numbers.

use std::collections::BTreeMap;

/// Which pages of a range are free.
#[derive(Debug)]
pub(crate) struct PageSpace {
    /// First page of a free run → its pages. Runs never touch.
    free: BTreeMap<u64, u64>,
}

impl PageSpace {
    /// `pages` free pages from number 0.
    pub(crate) fn new(pages: u64) -> Self {
        Self { free: (pages > 0).then_some((0, pages)).into_iter().collect() }
    }

    /// The first page of the lowest run of `pages` free pages, now taken.
    pub(crate) fn allocate(&mut self, pages: u64) -> Option<u64> {
        if pages == 0 {
            return None;
        }
        let (&start, &length) = self.free.iter().find(|(_, length)| **length >= pages)?;
        self.free.remove(&start);
        if length > pages {
            self.free.insert(start + pages, length - pages);
        }
        Some(start)
    }

    /// Gives back what one [`Self::allocate`] took.
    pub(crate) fn release(&mut self, start: u64, pages: u64) {
        let mut first = start;
        let mut count = pages;
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            first = before;
            count += length;
        }
        if let Some(length) = self.free.remove(&(start + pages)) {
            count += length;
        }
        self.free.insert(first, count);
    }

    /// Free pages, all runs together.
    pub(crate) fn free_pages(&self) -> u64 {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::PageSpace;

    #[test]
    fn what_is_released_is_whole_again() {
        let mut space = PageSpace::new(10);
        let runs: Vec<_> = (0..5).map(|_| space.allocate(2).unwrap()).collect();
        assert_eq!(runs, [0, 2, 4, 6, 8]);
        assert_eq!(space.allocate(1), None);
        for start in [4, 0, 8, 2, 6] {
            space.release(start, 2);
        }
        assert_eq!(space.free.len(), 1);
        assert_eq!(space.allocate(10), Some(0));
    }

    #[test]
    fn the_lowest_gap_that_fits_is_taken() {
        let mut space = PageSpace::new(10);
        let [first, second] = [space.allocate(3).unwrap(), space.allocate(3).unwrap()];
        space.release(first, 3);
        assert_eq!(space.allocate(4), Some(second + 3));
        assert_eq!(space.allocate(2), Some(0));
        assert_eq!(space.free_pages(), 1);
        assert_eq!(space.allocate(0), None);
    }
}

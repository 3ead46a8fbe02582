//! A memory basis: what one tracking session is about (DIRTY-12 to DIRTY-19).

use super::error::DirtyError;

/// Most ranges of one basis.
pub const MAX_RANGES: usize = 64 * 1024;

/// A range of a segment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Part of one range of a basis, in bytes. Of no bytes: the whole basis is meant (DIRTY-37).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Subrange {
    /// Which range, from zero.
    pub index: usize,
    /// Bytes into it.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Pages that lie one behind the other, counted from the start of the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// Index of the first one.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl Pages {
    /// All pages of which a byte lies in `offset .. offset + length`.
    pub fn touched(offset: u64, length: u64, page_size: u64) -> Self {
        let first = offset / page_size;
        let end = offset.saturating_add(length).div_ceil(page_size);
        Self { first, count: if length == 0 { 0 } else { end - first } }
    }

    /// One past the last.
    pub fn end(self) -> u64 {
        self.first.saturating_add(self.count)
    }

    /// What is in both; of no pages where they do not meet.
    pub fn common(self, other: Self) -> Self {
        let first = self.first.max(other.first);
        Self { first, count: self.end().min(other.end()).saturating_sub(first) }
    }
}

/// Disjoint ranges of one segment, in the order in which they came (DIRTY-16).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Basis {
    ranges: Vec<Pages>,
}

impl Basis {
    /// A basis of `ranges` of a segment of `length` bytes, whose plane has a bit for each `page_size` bytes.
    ///
    /// # Errors
    /// A rule of DIRTY-14, 15, 17 or 19 is broken.
    pub fn new(ranges: &[Range], length: u64, page_size: u64) -> Result<Self, DirtyError> {
        if ranges.is_empty() || ranges.len() > MAX_RANGES {
            return Err(DirtyError::RangeCount(ranges.len()));
        }
        for (index, range) in ranges.iter().enumerate() {
            if range.length == 0 {
                return Err(DirtyError::Empty { index });
            }
            if range.offset.checked_add(range.length).is_none_or(|end| end > length) {
                return Err(DirtyError::Outside { index });
            }
            if !range.offset.is_multiple_of(page_size) || !range.length.is_multiple_of(page_size) {
                return Err(DirtyError::Misaligned { index, page_size });
            }
        }
        let mut by_place: Vec<(usize, &Range)> = ranges.iter().enumerate().collect();
        by_place.sort_unstable_by_key(|(_, range)| range.offset);
        for pair in by_place.windows(2) {
            if let [(one, low), (other, high)] = pair
                && low.offset + low.length > high.offset
            {
                return Err(DirtyError::Overlap(*one.min(other), *one.max(other)));
            }
        }
        let pages = |range: &Range| Pages::touched(range.offset, range.length, page_size);
        Ok(Self { ranges: ranges.iter().map(pages).collect() })
    }

    /// The pages that a query is about, in the order of their bits (DIRTY-37, DIRTY-38, DIRTY-41).
    ///
    /// # Errors
    /// A sub-range of no such range, past its end, or not made of whole pages.
    pub fn pages(&self, subrange: Option<Subrange>, page_size: u64) -> Result<Vec<Pages>, DirtyError> {
        let Some(Subrange { index, offset, length }) = subrange.filter(|subrange| subrange.length > 0) else {
            return Ok(self.ranges.clone());
        };
        let range = self.ranges.get(index).ok_or(DirtyError::Subrange)?;
        if !offset.is_multiple_of(page_size) || !length.is_multiple_of(page_size) {
            return Err(DirtyError::Subrange);
        }
        let (skipped, count) = (offset / page_size, length / page_size);
        if skipped.checked_add(count).is_none_or(|end| end > range.count) {
            return Err(DirtyError::Subrange);
        }
        Ok(vec![Pages { first: range.first + skipped, count }])
    }

    /// Whether a page is in it.
    pub fn has(&self, page: u64) -> bool {
        self.ranges.iter().any(|range| range.first <= page && page < range.end())
    }
}

/// Bytes that the bits of `pages` take (DIRTY-39, DIRTY-40).
pub fn buffer_bytes(pages: &[Pages]) -> usize {
    let bits: u64 = pages.iter().map(|pages| pages.count).sum();
    usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::Basis;
    use super::Range;

    #[test]
    fn a_basis_has_the_pages_of_its_ranges() {
        let ranges =
            [(2, 2), (6, 1)].map(|(first, count)| Range { offset: first * 4096, length: count * 4096 });
        let basis = Basis::new(&ranges, 10 * 4096, 4096).unwrap();
        let found: Vec<u64> = (0..10).filter(|page| basis.has(*page)).collect();
        assert_eq!(found, [2, 3, 6]);
    }
}

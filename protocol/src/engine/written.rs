//! Planes of what an engine may have written: a file of its own for each engine whose stores only it can see.
//!
//! Three planes, each with one bit a page of video memory and one word of 64 bits, a bit for each part, a segment of
//! guest RAM:
//!
//! | plane | written by | read by | order |
//! |---|---|---|---|
//! | [`OPEN`] | engine | daemon | set before what may write there is started; taken out after [`TOUCHED`] is set |
//! | [`HELD`] | engine | daemon | the same, for words that are stored to at any time, as long as their place is known |
//! | [`TOUCHED`] | engine (or), daemon (take out) | daemon | set after the stores; taken after the other two were read |
//!
//! So a store is seen in the plane that is read next after it, or the plane is open until it is, whatever else is taken
//! out meanwhile. An engine that ends leaves its planes as they are: what was open may have been written. The daemon
//! empties them before the next process begins. A wrong bit of a hostile engine is of its own guest's memory.

use crate::page_table::PAGE_SIZE;

/// What is done, and was not taken yet.
pub const TOUCHED: u64 = 0;
/// What is under way.
pub const OPEN: u64 = 1;
/// Words that the engine stores to beside its work.
pub const HELD: u64 = 2;
const PLANES: u64 = 3;

/// Parts of a segment of guest RAM.
pub const PARTS: u64 = 64;
const SEGMENTS: u64 = 1 << 16;

/// Where the words of the planes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    vram_words: u64,
}

impl Layout {
    /// Of a video memory of so many bytes.
    pub const fn new(vram_bytes: u64) -> Self {
        Self { vram_words: vram_bytes.div_ceil(PAGE_SIZE).div_ceil(64) }
    }

    /// Bytes of the file.
    pub const fn bytes(self) -> u64 {
        ((self.vram_words + SEGMENTS) * PLANES * 8).next_multiple_of(PAGE_SIZE)
    }

    /// Where in the file the word of `plane` lies that has the bits of 64 pages of video memory from page 64 `word` on.
    pub const fn vram(self, plane: u64, word: u64) -> u64 {
        (plane * self.vram_words + word) * 8
    }

    /// Where the word of `plane` lies that has the bits of a segment of guest RAM.
    pub const fn segment(self, plane: u64, segment: u16) -> u64 {
        (PLANES * self.vram_words + plane * SEGMENTS + segment as u64) * 8
    }
}

/// Bytes of each part of a segment of `length` bytes: whole pages, at most [`PARTS`] parts.
pub const fn part_bytes(length: u64) -> u64 {
    let bytes = length.div_ceil(PARTS).next_multiple_of(PAGE_SIZE);
    if bytes == 0 { PAGE_SIZE } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::HELD;
    use super::Layout;
    use super::OPEN;
    use super::PARTS;
    use super::TOUCHED;
    use super::part_bytes;
    use crate::page_table::PAGE_SIZE;

    #[test]
    fn no_two_words_share_a_place() {
        let layout = Layout::new(130 * PAGE_SIZE);
        let mut places: Vec<u64> = [TOUCHED, OPEN, HELD]
            .into_iter()
            .flat_map(|plane| {
                let vram = (0..3).map(move |word| layout.vram(plane, word));
                vram.chain((0..=u16::MAX).map(move |segment| layout.segment(plane, segment)))
            })
            .collect();
        let count = places.len();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), count);
        assert!(places.last().unwrap() + 8 <= layout.bytes());
    }

    #[test]
    fn parts_are_whole_pages_and_few() {
        for length in [PAGE_SIZE, 63 * PAGE_SIZE, 64 * PAGE_SIZE, 65 * PAGE_SIZE, 1 << 40] {
            assert!(
                part_bytes(length).is_multiple_of(PAGE_SIZE) && length.div_ceil(part_bytes(length)) <= PARTS
            );
        }
    }
}

//! The daemon's side of the planes that an engine keeps of what it writes ([`campanile_protocol::engine::written`]).

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::written::HELD;
use campanile_protocol::engine::written::Layout;
use campanile_protocol::engine::written::OPEN;
use campanile_protocol::engine::written::TOUCHED;
use campanile_protocol::engine::written::part_bytes;

use super::basis::Pages;
use crate::memory::bits::masks;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::vram::create_memfd;

/// The planes of one engine; they outlive its processes.
#[derive(Debug)]
pub struct Planes {
    file: File,
    shared: Mapping,
    layout: Layout,
    vram_bytes: u64,
}

impl Planes {
    /// Empty ones, for a video memory of so many bytes.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(vram_bytes: u64) -> io::Result<Self> {
        let layout = Layout::new(vram_bytes);
        let file = create_memfd("campanile-written", layout.bytes())?;
        let shared = Mapping::new(file.try_clone()?, 0, layout.bytes(), Access::ReadWrite)
            .map_err(io::Error::other)?;
        Ok(Self { file, shared, layout, vram_bytes })
    }

    /// The file, for the engine.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Takes out what was done in the pages `of` of video memory, and calls `found` with each run (byte, bytes) of it and
    /// of what is under way there.
    pub fn take(&self, of: Pages, mut found: impl FnMut(u64, u64)) {
        let all = Pages { first: 0, count: self.vram_bytes.div_ceil(PAGE_SIZE) };
        let of = of.common(all);
        let mut run: Option<(u64, u64)> = None;
        for (index, mask) in masks(of.first, of.count) {
            let place = |plane: u64| self.layout.vram(plane, index);
            let mut bits = self.take_word([place(OPEN), place(HELD)], place(TOUCHED), mask);
            while bits != 0 {
                let skipped = u64::from(bits.trailing_zeros());
                let count = u64::from((bits >> skipped).trailing_ones());
                let (at, length) = ((index * 64 + skipped) * PAGE_SIZE, count * PAGE_SIZE);
                run = Some(match run {
                    Some((start, before)) if start + before == at => (start, before + length),
                    Some((start, before)) => {
                        found(start, before);
                        (at, length)
                    }
                    None => (at, length),
                });
                bits &= if skipped + count >= 64 { 0 } else { u64::MAX << (skipped + count) };
            }
        }
        if let Some((start, length)) = run {
            found(start, length);
        }
    }

    /// The same of a segment of guest RAM of `length` bytes.
    pub fn take_segment(&self, segment: u16, length: u64, mut found: impl FnMut(u64, u64)) {
        let place = |plane: u64| self.layout.segment(plane, segment);
        let mut bits = self.take_word([place(OPEN), place(HELD)], place(TOUCHED), u64::MAX);
        let part = part_bytes(length);
        while bits != 0 {
            let at = u64::from(bits.trailing_zeros()) * part;
            if at < length {
                found(at, part.min(length - at));
            }
            bits &= bits - 1;
        }
    }

    fn take_word(&self, under_way: [u64; 2], touched: u64, mask: u64) -> u64 {
        // PAIRS WITH memory/writes.rs `end`: what is not open any more is touched by now.
        let open =
            under_way.map(|place| self.shared.word(place).map_or(0, |word| word.load(Ordering::Acquire)));
        let taken = self.shared.word(touched).map_or(0, |word| {
            if word.load(Ordering::Acquire) & mask == 0 { 0 } else { word.fetch_and(!mask, Ordering::AcqRel) }
        });
        (open[0] | open[1] | taken) & mask
    }

    /// Forgets a segment that no engine has mapped.
    pub fn forget_segment(&self, segment: u16) {
        for plane in [OPEN, HELD, TOUCHED] {
            if let Some(word) = self.shared.word(self.layout.segment(plane, segment)) {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// What was under way when the process ended is over: the next one begins with nothing open. Called after its last
    /// look, and before the next process is told to begin.
    pub fn close(&self, segments: impl Iterator<Item = u16>) {
        let pages = self.vram_bytes.div_ceil(PAGE_SIZE);
        let words = masks(0, pages).map(|(index, _)| index);
        let vram = words.flat_map(|index| [OPEN, HELD].map(|plane| self.layout.vram(plane, index)));
        let others =
            segments.flat_map(|segment| [OPEN, HELD].map(|plane| self.layout.segment(plane, segment)));
        for place in vram.chain(others) {
            if let Some(word) = self.shared.word(place).filter(|word| word.load(Ordering::Relaxed) != 0) {
                word.store(0, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::HELD;
    use super::OPEN;
    use super::PAGE_SIZE;
    use super::Pages;
    use super::Planes;
    use super::TOUCHED;
    use super::part_bytes;

    const ALL: Pages = Pages { first: 0, count: 1 << 40 };
    const SEGMENT: u16 = 5;

    /// Planes of a video memory of 100 pages.
    fn planes() -> Planes {
        Planes::new(100 * PAGE_SIZE).unwrap()
    }

    fn set(planes: &Planes, place: u64, bits: u64) {
        planes.shared.word(place).unwrap().store(bits, Ordering::Relaxed);
    }

    fn set_vram(planes: &Planes, plane: u64, word: u64, bits: u64) {
        set(planes, planes.layout.vram(plane, word), bits);
    }

    fn set_segment(planes: &Planes, plane: u64, bits: u64) {
        set(planes, planes.layout.segment(plane, SEGMENT), bits);
    }

    /// The runs, in pages.
    fn taken(planes: &Planes, of: Pages) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        planes.take(of, |at, length| {
            assert!(at.is_multiple_of(PAGE_SIZE) && length.is_multiple_of(PAGE_SIZE));
            found.push((at / PAGE_SIZE, length / PAGE_SIZE));
        });
        found
    }

    fn taken_of_segment(planes: &Planes, length: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        planes.take_segment(SEGMENT, length, |at, length| found.push((at / PAGE_SIZE, length / PAGE_SIZE)));
        found
    }

    #[test]
    fn what_was_touched_is_taken_once_in_runs_across_words() {
        let planes = planes();
        set_vram(&planes, TOUCHED, 0, 0b110 | 1 << 9 | 1 << 63);
        set_vram(&planes, TOUCHED, 1, 0b100001);
        assert_eq!(taken(&planes, ALL), [(1, 2), (9, 1), (63, 2), (69, 1)]);
        assert!(taken(&planes, ALL).is_empty());
        set_vram(&planes, TOUCHED, 0, u64::MAX);
        set_vram(&planes, TOUCHED, 1, 0b1010);
        assert_eq!(taken(&planes, ALL), [(0, 64), (65, 1), (67, 1)]);
    }

    #[test]
    fn what_is_not_asked_for_stays_and_nothing_lies_behind_the_memory() {
        let planes = planes();
        set_vram(&planes, TOUCHED, 0, 0b1111);
        assert_eq!(taken(&planes, Pages { first: 1, count: 2 }), [(1, 2)]);
        assert_eq!(taken(&planes, ALL), [(0, 1), (3, 1)]);
        set_vram(&planes, TOUCHED, 1, 0b11 << 35);
        assert_eq!(taken(&planes, ALL), [(99, 1)]);
    }

    #[test]
    fn what_is_under_way_is_found_each_time_until_its_process_has_ended() {
        let planes = planes();
        set_vram(&planes, HELD, 0, 1 << 9 | 1 << 3 | 1 << 40 | 1 << 50);
        set_vram(&planes, OPEN, 0, 1 << 3 | 1 << 40);
        set_vram(&planes, TOUCHED, 0, 1 << 20 | 1 << 3 | 1 << 50);
        set_segment(&planes, OPEN, 0b01);
        set_segment(&planes, HELD, 0b10);
        set_segment(&planes, TOUCHED, 0b100);
        assert_eq!(taken(&planes, ALL), [(3, 1), (9, 1), (20, 1), (40, 1), (50, 1)]);
        assert_eq!(taken(&planes, ALL), [(3, 1), (9, 1), (40, 1), (50, 1)], "also what is open and held");
        assert_eq!(taken_of_segment(&planes, 64 * PAGE_SIZE), [(0, 1), (1, 1), (2, 1)]);
        set_segment(&planes, TOUCHED, 0b100);
        planes.close([SEGMENT].into_iter());
        assert!(taken(&planes, ALL).is_empty());
        assert_eq!(taken_of_segment(&planes, 64 * PAGE_SIZE), [(2, 1)], "touched is not under way");
    }

    #[test]
    fn a_segment_is_taken_by_parts_the_last_of_which_ends_with_it() {
        let planes = planes();
        assert_eq!(part_bytes(65 * PAGE_SIZE), 2 * PAGE_SIZE);
        set_segment(&planes, TOUCHED, 0b101 | 1 << 32 | 1 << 33);
        assert_eq!(taken_of_segment(&planes, 65 * PAGE_SIZE), [(0, 2), (4, 2), (64, 1)]);
        assert!(taken_of_segment(&planes, 65 * PAGE_SIZE).is_empty());
        set_segment(&planes, TOUCHED, 1 << 33);
        assert!(taken_of_segment(&planes, 66 * PAGE_SIZE).is_empty(), "begins where the segment ends");
    }

    #[test]
    fn of_a_segment_that_is_forgotten_nothing_stays() {
        let planes = planes();
        for plane in [OPEN, HELD, TOUCHED] {
            set_segment(&planes, plane, 1 << plane);
        }
        planes.forget_segment(SEGMENT);
        assert!(taken_of_segment(&planes, 64 * PAGE_SIZE).is_empty());
    }
}

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

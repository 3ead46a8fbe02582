//! Host memory of a device that can import none: memory of the device's own that the host sees, too, and copies between the two.
//!
//! ```text
//!   host memory ──bring, what a dispatch binds──▶ device's memory ◀── kernels
//!        ▲                                              │
//!        └────────settle, what kernels have changed─────┘
//! ```
//!
//! | when | what is copied |
//! |---|---|
//! | a dispatch binds a range | those of its pages that were not brought since the last [`Driver::settle`](super::driver::Driver::settle) |
//! | `settle`, with nothing in flight | bytes of ranges that kernels may write, where they are not what was brought |
//!
//! Between the two, dispatches see what those before them wrote, and nothing that the host writes. Bytes that no kernel has changed are not
//! copied back: guests write beside what a kernel writes, at the same time. What is in flight uses pages that were brought, and only others are
//! brought, so no copy meets a kernel.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use crate::memory::bits::masks;
use crate::memory::mapping::Mapping;
use crate::vulkan::error::VulkanError;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::memory::Memory;

/// What is brought at once, bytes.
const PAGE: u64 = PAGE_LENGTH as u64;
const PAGE_LENGTH: usize = 4096;
/// Bytes that are compared at once.
const WORD: usize = 8;

/// A range of host memory with its twin.
pub(super) struct Staging {
    mapping: Arc<Mapping>,
    /// First byte of the range in the mapping.
    start: u64,
    /// Bytes.
    length: u64,
    memory: Arc<Memory>,
    held: Mutex<Held>,
}

/// What of the range the device has now.
#[derive(Debug)]
struct Held {
    /// Those that were brought.
    here: Pages,
    /// Those that kernels may write.
    written: Pages,
    /// First page and count of what was asked for: what is in a set is in one of these.
    runs: Vec<(u64, u64)>,
    /// Pages that kernels may write, as they were brought.
    before: BTreeMap<u64, Box<[u8]>>,
}

/// Pages of the range, a bit each: a slice of a dispatch that binds much asks for all of it again.
#[derive(Debug, Clone)]
struct Pages(Vec<u64>);

impl Pages {
    /// None of so many.
    fn none(count: u64) -> Self {
        Self(vec![0; usize::try_from(count.div_ceil(64)).unwrap_or_default()])
    }

    /// Adds `count` pages from `first` on, which there are, and calls `new` with each that was not there. Whether there was any.
    fn add<E>(
        &mut self,
        first: u64,
        count: u64,
        mut new: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut is_new = false;
        for (index, mask) in masks(first, count) {
            let Some(word) = self.word(index) else { continue };
            let mut missing = mask & !*word;
            is_new |= missing != 0;
            while missing != 0 {
                new(index * 64 + u64::from(missing.trailing_zeros()))?;
                missing &= missing - 1;
            }
            *word |= mask;
        }
        Ok(is_new)
    }

    /// Takes `count` pages from `first` on out of it.
    fn remove(&mut self, first: u64, count: u64) {
        for (index, mask) in masks(first, count) {
            self.word(index).into_iter().for_each(|word| *word &= !mask);
        }
    }

    fn word(&mut self, index: u64) -> Option<&mut u64> {
        usize::try_from(index).ok().and_then(|index| self.0.get_mut(index))
    }
}

impl Staging {
    /// The twin of `length` bytes from `start` of a mapping, with nothing in it.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        mapping: &Arc<Mapping>,
        start: u64,
        length: u64,
    ) -> Result<Self, VulkanError> {
        let refused = |reason: String| VulkanError::Import { length, offset: start, reason };
        if length == 0 || mapping.slice(start, length).is_none() {
            return Err(refused(format!("the mapping has {} bytes", mapping.len())));
        }
        if !length.is_multiple_of(PAGE) {
            return Err(refused(format!("the length must be a multiple of {PAGE}")));
        }
        let memory = Arc::new(Memory::allocate_shared(gpu, length)?);
        let none = Pages::none(length / PAGE);
        let held =
            Mutex::new(Held { here: none.clone(), written: none, runs: Vec::new(), before: BTreeMap::new() });
        Ok(Self { mapping: Arc::clone(mapping), start, length, memory, held })
    }

    /// What kernels bind.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A panic under the lock leaves at worst a page that is brought once more.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outside(&self, offset: u64, length: u64) -> VulkanError {
        let reason = format!("its memory has {} bytes", self.length);
        VulkanError::Import { length, offset, reason }
    }

    /// Copies these bytes to the device, whether or not they were before. Nothing in flight uses them.
    pub(super) fn refresh(&self, offset: u64, length: u64) -> Result<(), VulkanError> {
        let host = self.start.checked_add(offset).and_then(|at| self.mapping.slice(at, length));
        let places = host.zip(self.memory.slice(offset, length));
        let (host, device) = places.ok_or_else(|| self.outside(offset, length))?;
        host.copy_to_volatile_slice(device);
        Ok(())
    }

    /// Copies what of a range the device has not; `writes` where a kernel may change it.
    pub(super) fn bring(&self, offset: u64, length: u64, writes: bool) -> Result<(), VulkanError> {
        let end = offset.checked_add(length).filter(|end| *end <= self.length);
        let end = end.ok_or_else(|| self.outside(offset, length))?.div_ceil(PAGE);
        let (first, Held { here, written, runs, before }) = (offset / PAGE, &mut *self.held());
        let mut is_new = here.add(first, end - first, |page| self.refresh(page * PAGE, PAGE))?;
        if writes {
            is_new |= written.add(first, end - first, |page| {
                let mut bytes = vec![0; PAGE_LENGTH].into_boxed_slice();
                self.read_page(page, &mut bytes)?;
                before.insert(page, bytes);
                Ok(())
            })?;
        }
        if is_new {
            runs.push((first, end - first));
        }
        Ok(())
    }

    /// What the device has of a page.
    fn read_page(&self, page: u64, into: &mut [u8]) -> Result<(), VulkanError> {
        let device = self.memory.slice(page * PAGE, PAGE);
        device.ok_or_else(|| self.outside(page * PAGE, PAGE))?.copy_to(into);
        Ok(())
    }

    /// Copies back what kernels have changed, and has all be brought again. Nothing is in flight.
    pub(super) fn settle(&self) -> Result<(), VulkanError> {
        let Held { here, written, runs, before } = &mut *self.held();
        for (first, count) in runs.drain(..) {
            [&mut *here, &mut *written].into_iter().for_each(|pages| pages.remove(first, count));
        }
        let mut now = [0; PAGE_LENGTH];
        for (page, before) in std::mem::take(before) {
            self.read_page(page, &mut now)?;
            let start = self.start + page * PAGE;
            let host = self.mapping.slice(start, PAGE).ok_or_else(|| self.outside(start, PAGE))?;
            for Range { start, end } in changed(&before, &now) {
                let part = host.subslice(start, end - start);
                part.map_err(|_| self.outside(page * PAGE, PAGE))?.copy_from(&now[start..end]);
            }
        }
        Ok(())
    }
}

/// Where two pages, of whole words, are not the same.
fn changed(before: &[u8], now: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut add = |start: usize, length: usize| match runs.last_mut() {
        Some(run) if run.end == start => run.end = start + length,
        _ => runs.push(start..start + length),
    };
    let words = before.chunks_exact(WORD).zip(now.chunks_exact(WORD));
    for (at, (before, now)) in (0..).step_by(WORD).zip(words).filter(|(_, (before, now))| before != now) {
        let is_changed = |byte: usize| before[byte] != now[byte];
        if (0..WORD).all(is_changed) {
            add(at, WORD);
        } else {
            (0..WORD).filter(|byte| is_changed(*byte)).for_each(|byte| add(at + byte, 1));
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::Pages;
    use super::changed;

    /// Adds pages; those that were not there.
    fn add(pages: &mut Pages, first: u64, count: u64) -> Vec<u64> {
        let mut new = Vec::new();
        let is_new = pages.add(first, count, |page| {
            new.push(page);
            Ok::<_, ()>(())
        });
        assert_eq!(is_new, Ok(!new.is_empty()));
        new
    }

    #[test]
    fn pages_are_new_once_and_again_when_they_were_removed() {
        let mut pages = Pages::none(200);
        assert_eq!(add(&mut pages, 60, 10), (60..70).collect::<Vec<_>>());
        assert!(add(&mut pages, 60, 10).is_empty());
        assert_eq!(add(&mut pages, 0, 200), (0..60).chain(70..200).collect::<Vec<_>>());
        assert!(add(&mut pages, 5, 0).is_empty());
        pages.remove(63, 130);
        assert_eq!(add(&mut pages, 0, 200), (63..193).collect::<Vec<_>>());
    }

    #[test]
    fn what_changed_is_told_in_runs_of_bytes() {
        let before = [0; 32];
        assert!(changed(&before, &before).is_empty());
        let mut now = [1, 0, 0, 2, 3, 0, 0, 4].repeat(4);
        assert_eq!(changed(&before[..8], &now[..8]), [0..1, 3..5, 7..8]);
        now[8..24].fill(9);
        // Of words that are all another, and bytes on both sides of them.
        assert_eq!(changed(&before, &now), [0..1, 3..5, 7..25, 27..29, 31..32]);
        assert_eq!(changed(&before, &[9; 32]), vec![0..32]);
    }
}

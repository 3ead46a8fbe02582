//! The vhost dirty log: one bit for each page from guest-physical address 0 on.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;

use crate::guest_ram;
use campanile_guest_driver::transport::error::TransportError;

/// Bits of a word of the log.
const WORD_BITS: u64 = 64;

/// A log that a device writes and this VMM reads.
#[derive(Debug)]
pub(crate) struct DirtyLog {
    file: Arc<File>,
    mapping: MmapRegion,
}

impl DirtyLog {
    /// A clean log of all pages below guest-physical address `end`, in memory of its own.
    pub(crate) fn new(end: u64) -> Result<Self, TransportError> {
        let bytes = (end.div_ceil(PAGE_SIZE * 8) + 8).next_multiple_of(PAGE_SIZE);
        let (file, mapping) = guest_ram::memory(bytes)?;
        Ok(Self { file, mapping })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.size() as u64
    }

    /// Takes the marks of `pages` pages from guest-physical address `base` on; numbers count from `base`.
    pub(super) fn take(&self, base: u64, pages: u64) -> Vec<u64> {
        let first = base / PAGE_SIZE;
        let end = first + pages;
        let mut taken = Vec::new();
        for word in first / WORD_BITS..end.div_ceil(WORD_BITS) {
            let mut marks = self.take_word(word);
            while marks != 0 {
                let page = word * WORD_BITS + u64::from(marks.trailing_zeros());
                marks &= marks - 1;
                if (first..end).contains(&page) {
                    taken.push(page - first);
                }
            }
        }
        taken
    }

    /// Moves the marks of a log that no device writes any more into this one.
    pub(super) fn add(&self, other: &Self) {
        for word in 0..other.bytes() / 8 {
            let marks = other.take_word(word);
            if marks != 0
                && let Ok(place) = usize::try_from(word * 8)
                && let Ok(here) = self.mapping.get_atomic_ref::<AtomicU64>(place)
            {
                here.fetch_or(marks, Ordering::AcqRel);
            }
        }
    }

    fn take_word(&self, word: u64) -> u64 {
        let place = usize::try_from(word * 8).ok();
        let word = place.and_then(|place| self.mapping.get_atomic_ref::<AtomicU64>(place).ok());
        // PAIRS WITH the device's mark of a page: what it wrote before is seen by the thread that copies the page now.
        word.map_or(
            0,
            |word| if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) },
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering;

    use vm_memory::VolatileMemory;

    use super::DirtyLog;

    #[test]
    fn marks_are_taken_once_and_only_those_of_the_range() {
        let log = DirtyLog::new(1 << 30).unwrap();
        let word = |place| log.mapping.get_atomic_ref::<AtomicU64>(place).unwrap();
        word(0).store(1 << 63, Ordering::Relaxed);
        word(8).store(0b111, Ordering::Relaxed);
        assert_eq!(log.take(63 << 12, 3), [0, 1, 2]);
        assert_eq!(log.take(0, 1 << 18), Vec::<u64>::new());
    }
}

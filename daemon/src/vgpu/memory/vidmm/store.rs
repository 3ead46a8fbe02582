//! Host memory that what is evicted lies in.

use std::fs::File;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;
use rustix::fs::FallocateFlags;

use super::ranges::Ranges;

/// Number of the segment that it is, for dirty tracking.
pub const EVICTED_SEGMENT: u32 = u32::MAX;

/// Bytes at the head whose memory is kept.
const KEPT: u64 = 256 << 20;

/// A file of the daemon's own, which no engine and no guest can reach. Takes memory of the host where something lies in
/// it, and at its head, which is used first, also where something lay: new memory costs more time than the copy into it.
#[derive(Debug)]
pub struct Store {
    file: File,
    mapping: Arc<Mapping>,
    ranges: Ranges,
    tracker: Arc<Tracker>,
}

impl Store {
    /// With room for `length` bytes, whole pages.
    pub fn new(length: u64, tracking: Method) -> io::Result<Self> {
        Self::over(create_memfd("campanile-evicted", length)?, length, tracking)
    }

    /// Over a file that has something in it already; at least `length` bytes, and no more are used.
    pub fn over(file: File, length: u64, tracking: Method) -> io::Result<Self> {
        let mapping =
            Mapping::new(file.try_clone()?, 0, length, Access::ReadWrite).map_err(io::Error::other)?;
        let tracker = Arc::new(Tracker::new(EVICTED_SEGMENT, &file, length, PAGE_SIZE, tracking)?);
        Ok(Self { file, mapping: Arc::new(mapping), ranges: Ranges::new(0, length), tracker })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Takes exactly this range; false where it is not all free.
    pub fn reserve(&mut self, offset: u64, length: u64) -> bool {
        self.ranges.reserve(offset, length)
    }

    /// Nothing lies in it: forgets what does.
    pub fn forget(&mut self) {
        self.ranges = Ranges::new(0, self.mapping.len());
    }

    /// The daemon's mapping of all of it.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// What is written to it.
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.tracker
    }

    /// Takes room.
    pub fn take(&mut self, length: u64) -> Option<u64> {
        self.ranges.allocate(length)
    }

    /// Gives room back, and its memory to the host, but for what is kept.
    pub fn release(&mut self, offset: u64, length: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let start = offset.max(KEPT);
        let beyond = (offset + length).saturating_sub(start);
        if beyond > 0
            && let Err(error) = rustix::fs::fallocate(&self.file, flags, start, beyond)
        {
            // It is overwritten whole before it is read.
            log::warn!("giving back {beyond} bytes of evicted memory: {error}");
        }
        self.ranges.release(offset, length);
    }

    /// Bytes that lie in it.
    pub fn used(&self) -> u64 {
        self.mapping.len() - self.ranges.free_bytes()
    }
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::dirty::method::Method;
    use campanile_protocol::PAGE_SIZE as PAGE;

    use super::EVICTED_SEGMENT;
    use super::KEPT;
    use super::Store;

    #[test]
    fn memory_at_the_head_is_kept_and_all_behind_it_goes_back_to_the_host() {
        let mut store = Store::new(KEPT + 8 * PAGE, Method::BoundRanges).unwrap();
        let value = |store: &Store, at: u64| {
            let mut byte = [0u8];
            store.mapping().slice(at, 1).unwrap().copy_to(&mut byte);
            byte[0]
        };
        let fill = |store: &Store| {
            let bytes = vec![7u8; usize::try_from(12 * PAGE).unwrap()];
            store.mapping().slice(KEPT - 4 * PAGE, 12 * PAGE).unwrap().copy_from(&bytes);
        };
        fill(&store);
        // Places that lie on one side, on both, and on the other.
        for (first, pages, goes) in [(-4, 2, 0..0), (-2, 4, 0..2), (2, 3, 2..5)] {
            let start = KEPT.checked_add_signed(first * 4096).unwrap();
            assert!(store.reserve(start, pages * PAGE));
            assert_eq!(store.used(), pages * PAGE);
            store.release(start, pages * PAGE);
            assert_eq!(store.used(), 0);
            for page in -4..8 {
                let found = value(&store, KEPT.checked_add_signed(page * 4096).unwrap());
                assert_eq!(found == 0, goes.contains(&page), "page {page} after {first}");
            }
            fill(&store);
        }
        assert_eq!(store.file().metadata().unwrap().len(), KEPT + 8 * PAGE, "it is as long as before");
    }

    #[test]
    fn a_range_is_taken_once_until_it_is_given_back_or_all_are_forgotten() {
        let mut store = Store::new(8 * PAGE, Method::BoundRanges).unwrap();
        assert_eq!((store.tracker().segment(), store.tracker().length()), (EVICTED_SEGMENT, 8 * PAGE));
        assert!(store.reserve(2 * PAGE, PAGE) && !store.reserve(PAGE, 2 * PAGE));
        assert_eq!((store.take(2 * PAGE), store.take(6 * PAGE)), (Some(0), None));
        assert_eq!(store.used(), 3 * PAGE);
        store.release(0, 2 * PAGE);
        assert_eq!(store.used(), PAGE);
        store.forget();
        assert_eq!((store.used(), store.take(8 * PAGE)), (0, Some(0)));
    }
}

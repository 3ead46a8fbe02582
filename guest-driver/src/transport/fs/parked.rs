//! Memory that the daemon reaches because it holds reads into it: io_uring's side of a registration.
//!
//! ```text
//!   read(offset, region) ─▶ kernel pins the pages ─▶ descriptors at the daemon, which does not answer
//!   kill -9              ─▶ the process is gone at once; its channel's RELEASE has the daemon answer
//! ```
//!
//! A thread that waited in such a read could not be killed, so no thread does. The file is one of its own: the kernel
//! keeps it open as long as a read is under way, and says RELEASE of the process's channel nevertheless.
//!
//! JUSTIFICATION: an entry on a ring is an address and a length, and the compiler cannot see how long the kernel uses it.
#![allow(unsafe_code, reason = "entries of an io_uring hold addresses: no safe wrapper exists")]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use io_uring::IoUring;
use io_uring::opcode;
use io_uring::types;
use vm_memory::MmapRegion;

/// Reads that go to the kernel at a time. As many as one likes may be under way.
const ENTRIES: u32 = 32;

/// Reads under way on one file.
///
/// A read pins its memory before the daemon sees it; from then on nothing but the pages matters, not their addresses.
pub(super) struct ParkedReads {
    file: File,
    state: Mutex<State>,
}

struct State {
    ring: IoUring,
    next: u64,
    /// The memory of every read that has neither ended nor pinned it, which stays mapped so long.
    under_way: HashMap<u64, Arc<MmapRegion>>,
    /// How reads ended that were asked for and not yet looked at.
    ended: HashMap<u64, io::Result<u32>>,
}

/// A read that the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ReadId(u64);

impl std::fmt::Debug for ParkedReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParkedReads").field("file", &self.file).finish_non_exhaustive()
    }
}

impl ParkedReads {
    /// Reads of `file`, which was opened for this alone.
    ///
    /// # Errors
    /// What the system says where io_uring is switched off, or does not exist.
    pub(super) fn new(file: File) -> io::Result<Self> {
        let ring = IoUring::new(ENTRIES)?;
        let state = State { ring, next: 0, under_way: HashMap::new(), ended: HashMap::new() };
        Ok(Self { file, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads `length` bytes at `offset` of the file into `region` from byte `at` on, without waiting for the end.
    ///
    /// # Errors
    /// What the system says, and `InvalidInput` where the bytes are not all inside of the region.
    pub(super) fn start(
        &self,
        region: &Arc<MmapRegion>,
        at: usize,
        length: u32,
        offset: u64,
    ) -> io::Result<ReadId> {
        let bytes = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        if at.checked_add(bytes).is_none_or(|end| end > region.size()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut state = self.state();
        state.reap();
        let id = state.next;
        state.next += 1;
        let address = region.as_ptr().wrapping_add(at);
        let read = opcode::Read::new(types::Fd(self.file.as_raw_fd()), address, length).offset(offset);
        let read = read.build().user_data(id);
        // SAFETY: the bytes lie in `region` (checked above), which `under_way` keeps mapped until the kernel says that the
        // read has ended; what happens to them meanwhile is seen through volatile slices and atomics alone.
        let pushed = unsafe { state.ring.submission().push(&read) };
        pushed.map_err(|_| io::ErrorKind::WouldBlock)?;
        state.under_way.insert(id, Arc::clone(region));
        loop {
            match state.ring.submit() {
                Ok(_) => return Ok(ReadId(id)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Ends of reads have to be taken first.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => state.reap(),
                Err(error) => return Err(error),
            }
        }
    }

    /// How a read ended, once; `None` while it is under way. Bytes that were read, or what the daemon said.
    pub(super) fn end_of(&self, read: ReadId) -> Option<io::Result<u32>> {
        let mut state = self.state();
        state.reap();
        state.ended.remove(&read.0)
    }

    /// The daemon has these reads: their memory is pinned, whatever becomes of the mapping, and how they end is not
    /// asked.
    pub(super) fn pinned(&self, reads: &[ReadId]) {
        let mut state = self.state();
        state.reap();
        for read in reads {
            state.under_way.remove(&read.0);
            state.ended.remove(&read.0);
        }
    }

    /// Reads under way.
    #[cfg(test)]
    fn count(&self) -> usize {
        let mut state = self.state();
        state.reap();
        state.under_way.len()
    }
}

impl State {
    /// Takes note of the reads that have ended.
    fn reap(&mut self) {
        for entry in self.ring.completion() {
            if self.under_way.remove(&entry.user_data()).is_none() {
                continue;
            }
            let result = entry.result();
            let ended =
                u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()));
            self.ended.insert(entry.user_data(), ended);
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.reap();
        // Closing a ring does not say by when the kernel has looked at the addresses of the last reads.
        for region in std::mem::take(&mut self.under_way).into_values() {
            std::mem::forget(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::sync::Arc;

    use vm_memory::MmapRegion;
    use vm_memory::VolatileMemory;

    use super::ParkedReads;

    /// An empty pipe keeps a read as a daemon does.
    fn pipe() -> (ParkedReads, File) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        (ParkedReads::new(reader.into()).unwrap(), writer.into())
    }

    #[test]
    fn a_read_is_under_way_until_it_is_answered() {
        let (reads, mut writer) = pipe();
        let region = Arc::new(MmapRegion::new(8192).unwrap());
        let read = reads.start(&region, 4096, 4096, u64::MAX).unwrap();
        assert!(reads.end_of(read).is_none());
        assert_eq!(reads.count(), 1);
        assert_eq!(Arc::strong_count(&region), 2);
        writer.write_all(b"answered").unwrap();
        let ended = loop {
            if let Some(ended) = reads.end_of(read) {
                break ended;
            }
            std::thread::yield_now();
        };
        assert_eq!(ended.unwrap(), 8);
        assert_eq!((reads.count(), Arc::strong_count(&region)), (0, 1));
        let mut seen = [0; 8];
        region.get_slice(4096, 8).unwrap().copy_to(&mut seen);
        assert_eq!(&seen, b"answered");
    }

    #[test]
    fn memory_outside_of_its_region_is_refused() {
        let (reads, _writer) = pipe();
        let region = Arc::new(MmapRegion::new(8192).unwrap());
        for (at, length) in [(4096, 4097), (8193, 0), (usize::MAX, 1)] {
            let error = reads.start(&region, at, length, 0).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        }
        assert_eq!(reads.count(), 0);
    }

    #[test]
    fn memory_that_is_pinned_is_not_kept() {
        let (reads, mut writer) = pipe();
        let region = Arc::new(MmapRegion::new(4096).unwrap());
        let read = reads.start(&region, 0, 4096, u64::MAX).unwrap();
        reads.pinned(&[read]);
        assert_eq!((reads.count(), Arc::strong_count(&region)), (0, 1));
        writer.write_all(b"answered").unwrap();
        assert!(reads.end_of(read).is_none());
    }

    #[test]
    fn memory_of_a_read_that_is_never_answered_is_kept() {
        let (reads, _writer) = pipe();
        let region = Arc::new(MmapRegion::new(4096).unwrap());
        let weak = Arc::downgrade(&region);
        reads.start(&region, 0, 4096, u64::MAX).unwrap();
        drop((reads, region));
        assert!(weak.upgrade().is_some());
    }
}

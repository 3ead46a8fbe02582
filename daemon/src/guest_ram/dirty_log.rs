//! The dirty log of a migration: which pages of guest RAM this device has written.
//!
//! ```text
//!   write to guest RAM ──▶ mark ──▶ (used index ──▶ mark)          by the writer, on any thread
//!                           │
//!                    DirtyLog: the log that is current now
//!                           ▲
//!   SET_LOG_BASE ── replace ┘    the connection thread; returns when no mark can reach the old one any more
//! ```
//!
//! One bit a page, byte by byte, of the pages from guest address 0 on; the front-end takes bits away while marks come.
//! A mark comes after its write and releases it: the front-end that takes the bit sees the write, and one that took it
//! before finds the next. While there is no log, a mark is one load.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use campanile_host_gpu::memory::truncation::domain::Registration;
use thiserror::Error;
use vm_memory::FileOffset;
use vm_memory::MmapRegion;
use vm_memory::VolatileMemory;
use vm_memory::mmap::MmapRegionError;

use super::mark::MarkGuestRam;

/// Bytes of guest RAM that a bit stands for (`VHOST_LOG_PAGE`).
pub const LOG_PAGE: u64 = 4096;
/// Bytes of guest RAM that a byte of a log stands for.
const LOG_BYTE: u64 = 8 * LOG_PAGE;
/// Bytes of the longest log: that of 52 bits of guest addresses.
const LONGEST: u64 = 1 << 37;

/// Why a log cannot be used.
#[derive(Debug, Error)]
pub enum LogError {
    /// Nobody has so much memory.
    #[error("a dirty log of {0} bytes (at most {LONGEST} can be)")]
    Size(u64),
    /// Marks past the end of the file would kill the daemon.
    #[error("the dirty log is to be {bytes} bytes at {offset}, and its file has {file}")]
    PastFile {
        /// Bytes asked for.
        bytes: u64,
        /// Where they start.
        offset: u64,
        /// Bytes there are.
        file: u64,
    },
    /// A page that cannot be marked would not be copied.
    #[error("the dirty log ends at guest address {covered:#x}, and guest memory at {end:#x}")]
    Short {
        /// First guest address that has no bit.
        covered: u64,
        /// End of guest memory.
        end: u64,
    },
    /// The file says no.
    #[error("the dirty log cannot be examined")]
    File(#[source] io::Error),
    /// The system says no.
    #[error("the dirty log cannot be mapped")]
    Map(#[source] MmapRegionError),
}

/// One mapped log.
#[derive(Debug)]
pub struct LogPages {
    /// Ends before the mapping does.
    registration: Option<Registration>,
    bits: MmapRegion<()>,
}

impl LogPages {
    /// Maps `bytes` of `file` at `offset`.
    ///
    /// # Errors
    /// The file is shorter, or the numbers cannot be.
    pub fn map(file: File, offset: u64, bytes: u64) -> Result<Self, LogError> {
        let length = usize::try_from(bytes).map_err(|_| LogError::Size(bytes))?;
        if bytes == 0 || bytes > LONGEST {
            return Err(LogError::Size(bytes));
        }
        let metadata = file.metadata().map_err(LogError::File)?;
        let end = offset.checked_add(bytes);
        if !metadata.is_file() || end.is_none_or(|end| end > metadata.len()) {
            return Err(LogError::PastFile { bytes, offset, file: metadata.len() });
        }
        let bits = MmapRegion::from_file(FileOffset::new(file, offset), length).map_err(LogError::Map)?;
        Ok(Self { registration: None, bits })
    }

    /// From now on a mark that the file has no room for any more is a fault of `domain`, and does not end the process.
    ///
    /// # Errors
    /// There are too many mappings.
    pub fn register(&mut self, domain: &Arc<FaultDomain>) -> Result<(), LogError> {
        self.registration = Some(domain.register(&self.bits).map_err(LogError::File)?);
        Ok(())
    }

    /// First guest address that has no bit.
    pub fn covered(&self) -> u64 {
        u64::try_from(self.bits.size()).unwrap_or(u64::MAX).saturating_mul(LOG_BYTE)
    }

    /// Whether memory up to `end` has bits.
    ///
    /// # Errors
    /// It does not.
    pub fn covers(&self, end: u64) -> Result<(), LogError> {
        let covered = self.covered();
        if end > covered { Err(LogError::Short { covered, end }) } else { Ok(()) }
    }

    /// Sets the bits of all pages from `first` to `last`. False if one has no bit.
    fn set(&self, first: u64, last: u64) -> bool {
        for byte in first / 8..=last / 8 {
            let low = first.max(byte * 8) % 8;
            let high = last.min(byte * 8 + 7) % 8;
            let mask = (0xff_u8 << low) & (0xff_u8 >> (7 - high));
            let cell =
                usize::try_from(byte).ok().and_then(|at| self.bits.get_atomic_ref::<AtomicU8>(at).ok());
            let Some(cell) = cell else { return false };
            // PAIRS WITH the front-end, which takes bits and then reads pages. Never skipped where the bit is set: it
            // may be taken before our write is seen.
            cell.fetch_or(mask, Ordering::Release);
        }
        true
    }
}

/// The log of one connection, whichever is current. Shared by all writers of guest RAM.
#[derive(Debug, Default)]
pub struct DirtyLog {
    /// Whether there is a log: so that nothing is paid while there is none.
    is_on: AtomicBool,
    current: RwLock<Option<LogPages>>,
    /// Marks that fell off the end.
    outside: AtomicU64,
}

impl DirtyLog {
    /// Notes that `length` bytes at a guest address have been written. After writing them, and before that is
    /// announced.
    #[inline]
    pub fn mark(&self, guest_physical: u64, length: u64) {
        // PAIRS WITH `replace`. A log that is being set is not missed where it matters: `Session::set_log_base`
        // takes every ring's lock afterwards, and has the worker answer.
        if self.is_on.load(Ordering::Acquire) {
            self.mark_current(guest_physical, length);
        }
    }

    /// Whether marks go anywhere.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Marks for which the log had no bit, since the connection began.
    pub fn outside(&self) -> u64 {
        self.outside.load(Ordering::Relaxed)
    }

    /// Marks go to `log` from here on, or nowhere. When this returns, the log before has all that it will ever have.
    pub fn replace(&self, log: Option<LogPages>) {
        let is_on = log.is_some();
        // A thread that marks holds the lock: none of them is left in the old log. It is unmapped without the lock.
        let old = {
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            self.is_on.store(is_on, Ordering::Release);
            std::mem::replace(&mut *current, log)
        };
        drop(old);
    }

    #[cold]
    fn mark_current(&self, guest_physical: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (first, last) = (guest_physical / LOG_PAGE, guest_physical.saturating_add(length - 1) / LOG_PAGE);
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let Some(log) = &*current else { return };
        if !log.set(first, last) && self.outside.fetch_add(1, Ordering::Relaxed) == 0 {
            log::warn!(
                "guest address {guest_physical:#x} was written, and the VMM's dirty log ends at {:#x}: the page may \
                 arrive stale",
                log.covered()
            );
        }
    }
}

impl MarkGuestRam for DirtyLog {
    fn mark(&self, guest_physical: u64, length: u64) {
        Self::mark(self, guest_physical, length);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::MemfdFlags;
    use rustix::fs::memfd_create;

    use super::*;

    fn file(bytes: u64) -> File {
        let file = File::from(memfd_create("log", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(bytes).unwrap();
        file
    }

    fn bytes(file: &File, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn each_page_that_a_range_touches_has_its_bit() {
        let (log, memory) = (DirtyLog::default(), file(4096));
        log.replace(Some(LogPages::map(memory.try_clone().unwrap(), 0, 8).unwrap()));
        log.mark(4095, 2);
        assert_eq!(bytes(&memory, 4), [0b11, 0, 0, 0]);
        log.mark(7 * LOG_PAGE, 10 * LOG_PAGE);
        assert_eq!(bytes(&memory, 4), [0b1000_0011, 0xff, 1, 0]);
        log.mark(60 * LOG_PAGE, 0);
        log.mark(63 * LOG_PAGE + 4095, 1);
        assert_eq!(bytes(&memory, 8), [0b1000_0011, 0xff, 1, 0, 0, 0, 0, 0x80]);
        assert_eq!(log.outside(), 0);
    }

    #[test]
    fn marks_past_the_end_are_counted_and_touch_nothing() {
        let (log, memory) = (DirtyLog::default(), file(4096));
        log.replace(Some(LogPages::map(memory.try_clone().unwrap(), 0, 1).unwrap()));
        for place in [8 * LOG_PAGE, u64::MAX, u64::MAX - 4096] {
            log.mark(place, 1);
        }
        assert_eq!(log.outside(), 3);
        log.mark(7 * LOG_PAGE, u64::MAX);
        assert_eq!(log.outside(), 4);
        assert_eq!(bytes(&memory, 2), [0x80, 0]);
    }

    #[test]
    fn marks_go_to_the_newest_log_and_nowhere_without_one() {
        let (log, first, second) = (DirtyLog::default(), file(4096), file(4096));
        log.mark(0, 1);
        assert!(!log.is_on());
        log.replace(Some(LogPages::map(first.try_clone().unwrap(), 0, 8).unwrap()));
        log.mark(0, 1);
        log.replace(Some(LogPages::map(second.try_clone().unwrap(), 0, 8).unwrap()));
        log.mark(LOG_PAGE, 1);
        log.replace(None);
        log.mark(2 * LOG_PAGE, 1);
        assert_eq!((bytes(&first, 1), bytes(&second, 1)), (vec![1], vec![2]));
    }

    #[test]
    fn a_log_whose_file_is_cut_short_takes_marks_and_is_a_fault_of_its_connection() {
        let (log, memory, domain) = (DirtyLog::default(), file(8192), FaultDomain::new().unwrap());
        let mut pages = LogPages::map(memory.try_clone().unwrap(), 0, 8192).unwrap();
        pages.register(&domain).unwrap();
        log.replace(Some(pages));
        memory.set_len(4096).unwrap();
        log.mark(0, 1);
        assert_eq!((bytes(&memory, 1), domain.fault()), (vec![1], None));
        log.mark(4096 * LOG_BYTE, 1);
        assert!(domain.fault().is_some());
        log.mark(0, u64::MAX);
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = File::from(std::os::fd::OwnedFd::from(socket));
        assert!(matches!(LogPages::map(socket, 0, 8), Err(LogError::PastFile { .. })));
        for (offset, size) in [(0, 4097), (4096, 1), (u64::MAX, 1), (1, 4096)] {
            let refused = LogPages::map(file(4096), offset, size);
            assert!(matches!(refused, Err(LogError::PastFile { .. })), "{offset} {size}");
        }
        for size in [0, LONGEST + 1, u64::MAX] {
            assert!(matches!(LogPages::map(file(4096), 0, size), Err(LogError::Size(_))), "{size}");
        }
        assert!(matches!(LogPages::map(file(4096), 1, 8), Err(LogError::Map(_))), "not a page");
        let log = LogPages::map(file(4096), 0, 4096).unwrap();
        assert!(log.covers(4096 * LOG_BYTE).is_ok());
        assert!(matches!(log.covers(4096 * LOG_BYTE + 1), Err(LogError::Short { .. })));
    }
}

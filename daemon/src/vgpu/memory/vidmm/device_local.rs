//! Local memory in a device's own, as long as its vGPU is there: the daemon holds its descriptor and never maps a byte of it.
//!
//! What an earlier session has left in it, and the device has not zeroed yet, is *stale*: no reader is given that.

use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::local::Passport;
use rustix::fs::FileType;

use super::ranges::Ranges;

/// A device's memory that is the local memory of one vGPU, as long as this lives.
#[derive(Debug)]
pub struct DeviceLocal {
    descriptor: OwnedFd,
    /// How engines import it.
    pub passport: Passport,
    /// No session has had it.
    is_new: AtomicBool,
    /// What an earlier session has left in it, by offset in the video memory.
    stale: Mutex<Ranges>,
}

impl DeviceLocal {
    /// Memory that was allocated just now, and is zero.
    pub fn new(descriptor: OwnedFd, passport: Passport) -> Self {
        let (is_new, stale) = (AtomicBool::new(true), Mutex::new(Ranges::new(0, 0)));
        Self { descriptor, passport, is_new, stale }
    }

    /// Memory that another daemon had; zero where `is_new`.
    pub fn handed(descriptor: OwnedFd, passport: Passport, is_new: bool) -> Self {
        let this = Self::new(descriptor, passport);
        this.is_new.store(is_new, Ordering::Release);
        this
    }

    /// Why it cannot be what was promised: a file that ends before. A driver's descriptor that is no file tells no length.
    pub fn objection(&self) -> Option<String> {
        let stat = rustix::fs::fstat(&self.descriptor).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let (bytes, promised) = (u64::try_from(stat.st_size).ok()?, self.passport.length);
        let is_short = is_file && bytes < promised;
        is_short.then(|| format!("its file has {bytes} bytes, and {promised} were promised"))
    }

    /// The descriptor, for engines.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Whether no session has had it.
    pub fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Acquire)
    }

    fn stale(&self) -> MutexGuard<'_, Ranges> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of `length` bytes from `offset` on an earlier session has left: offset and bytes of each piece.
    pub fn stale_within(&self, offset: u64, length: u64) -> Vec<(u64, u64)> {
        self.stale().within(offset, offset.saturating_add(length)).collect()
    }

    /// A session begins, of which this is all; whether it is the first, and all is zero.
    #[must_use]
    pub(super) fn begin_session(&self, all: &Ranges) -> bool {
        let is_first = self.is_new.swap(false, Ordering::AcqRel);
        if !is_first {
            *self.stale() = all.clone();
        }
        is_first
    }

    /// What is there is zero, or this session's.
    pub(super) fn is_not_stale(&self, offset: u64, length: u64) {
        self.stale().take_all_within(offset, offset + length);
    }
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::memory::vram::create_memfd;

    use super::*;

    #[test]
    fn a_file_that_ends_before_what_was_promised_is_no_local_memory_and_what_is_no_file_may_be() {
        let of = |descriptor: OwnedFd, length| {
            DeviceLocal::new(descriptor, Passport { length, ..Passport::default() }).objection()
        };
        let file = || create_memfd("opaque", 0x4000).unwrap().into();
        assert_eq!(of(file(), 0x4000), None);
        let why = of(file(), 0x4001).unwrap();
        assert_eq!(why, "its file has 16384 bytes, and 16385 were promised");
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(of(socket.into(), 0x4000), None);
    }

    #[test]
    fn memory_that_another_daemon_had_is_zero_for_a_session_only_where_none_has_had_it() {
        let all = Ranges::new(0x4000, 0x4000);
        for is_new in [true, false] {
            let descriptor = create_memfd("opaque", 0x4000).unwrap().into();
            let device = DeviceLocal::handed(descriptor, Passport::default(), is_new);
            assert_eq!(device.is_new(), is_new);
            assert_eq!(device.begin_session(&all), is_new);
            assert!(!device.is_new() && !device.begin_session(&all));
            assert_eq!(device.stale_within(0, 0x6000), [(0x4000, 0x2000)]);
        }
    }
}

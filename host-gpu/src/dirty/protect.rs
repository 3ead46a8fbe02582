//! Write protection of a process's own mappings, which the kernel lifts and notes page by page (Linux 6.7).

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;

/// `struct uffdio_api` of linux/userfaultfd.h.
#[derive(Debug)]
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register` of linux/userfaultfd.h.
#[derive(Debug)]
#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect` of linux/userfaultfd.h.
#[derive(Debug)]
#[repr(C)]
struct WriteProtect {
    start: u64,
    length: u64,
    mode: u64,
}

const UFFD_USER_MODE_ONLY: i32 = 1;
const UFFD_API: u64 = 0xaa;
/// `_IOWR(UFFDIO, 0x3f, struct uffdio_api)`.
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
/// `_IOWR(UFFDIO, 0x00, struct uffdio_register)`; left to a sealed engine.
pub const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00;
/// `_IOWR(UFFDIO, 0x06, struct uffdio_writeprotect)`; left to a sealed engine.
pub const UFFDIO_WRITEPROTECT: libc::Ioctl = 0xc018_aa06;
const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const UFFD_FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1;

/// What a process protects its own mappings with. Dropped, all protection of it ends, and nothing is noted any more.
#[derive(Debug)]
pub struct Guard {
    descriptor: OwnedFd,
}

impl Guard {
    /// For the calling process. Needs no privilege: no fault of the kernel's own is held up.
    ///
    /// # Errors
    /// The kernel is older than Linux 6.7, built without it, or forbids it.
    pub fn new() -> io::Result<Self> {
        let flags = UFFD_USER_MODE_ONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the call takes flags only.
        let raw = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let raw = i32::try_from(raw).unwrap_or(-1);
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, for us alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        let features = UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_UNPOPULATED | UFFD_FEATURE_WP_ASYNC;
        let mut api = Api { api: UFFD_API, features, ioctls: 0 };
        // SAFETY: the descriptor is open, and `api` is the structure that this command takes.
        let answered = unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_API, &raw mut api) };
        if answered < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { descriptor }) }
    }

    /// Has the first store to each page of `address .. address + length` noted from here on. The range is mapped shared
    /// and writable, and made of whole pages of its file.
    ///
    /// # Errors
    /// What the kernel says: nothing is noted then.
    pub fn protect(&self, address: u64, length: u64) -> io::Result<()> {
        let descriptor = self.descriptor.as_raw_fd();
        let mut register = Register { start: address, length, mode: REGISTER_MODE_WP, ioctls: 0 };
        // SAFETY: the descriptor is open, and `register` is the structure that this command takes. It changes no contents,
        // and a store to the range does not wait, since the kernel itself lifts the protection.
        let registered = unsafe { libc::ioctl(descriptor, UFFDIO_REGISTER, &raw mut register) };
        if registered < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut protect = WriteProtect { start: address, length, mode: WRITEPROTECT_MODE_WP };
        // SAFETY: as above.
        let protected = unsafe { libc::ioctl(descriptor, UFFDIO_WRITEPROTECT, &raw mut protect) };
        if protected < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The descriptor's number, for the filter of system calls.
    pub fn number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::Guard;
    use crate::dirty::pagemap::Pagemap;
    use crate::memory::mapping::Access;
    use crate::memory::mapping::Mapping;
    use crate::memory::vram::create_memfd;

    const PAGE: u64 = 4096;

    #[test]
    fn dirty_50_what_was_stored_to_is_found_once_and_what_was_not_never() {
        let Ok(guard) = Guard::new() else {
            eprintln!("skipped: this kernel notes no stores (it needs to be Linux 6.7)");
            return;
        };
        let file = create_memfd("test", 64 * PAGE).unwrap();
        let mapping = Mapping::new(file, 0, 64 * PAGE, Access::ReadWrite).unwrap();
        let address = mapping.host_pointer().addr() as u64;
        let pagemap = Pagemap::own().unwrap();
        let unregistered = pagemap.scan(address, 64 * PAGE, |_, _| ());
        assert!(unregistered.is_err(), "a mapping that is not protected is no clean one");
        assert_eq!(guard.number(), guard.descriptor.as_raw_fd());
        assert!(guard.protect(address + 1, PAGE).is_err(), "no whole pages");
        guard.protect(address, 64 * PAGE).unwrap();
        let look = |first: u64, count: u64| {
            let mut found = Vec::new();
            pagemap
                .scan(address + first * PAGE, count * PAGE, |at, length| {
                    found.push(((at - address) / PAGE, length / PAGE));
                })
                .unwrap();
            found
        };
        assert_eq!(look(0, 64), []);
        for page in [3, 4, 40] {
            mapping.slice(page * PAGE + 8, 1).unwrap().copy_from(&[1u8]);
        }
        let mut seen = [0u8; 8];
        mapping.slice(9 * PAGE, 8).unwrap().copy_to(&mut seen);
        assert_eq!(look(0, 4), [(3, 1)]);
        assert_eq!(look(0, 64), [(4, 1), (40, 1)]);
        assert_eq!(look(0, 64), []);
        mapping.slice(3 * PAGE, 1).unwrap().copy_from(&[2u8]);
        assert_eq!(look(0, 64), [(3, 1)]);
    }
}

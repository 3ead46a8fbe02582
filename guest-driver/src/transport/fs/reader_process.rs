//! Reads that no thread of this process waits in, where io_uring is switched off: each has a process of its own.
//!
//! ```text
//!   this process ── fork ── child ── fork ── helper: closes all else, reads into the shared pages, reports, ends
//!        └─ waits for ────── ends at once
//! ```
//!
//! The helper cannot be killed while the daemon holds the read, and keeps no process from ending: it is no child of
//! this process, and has none of its files open but the one that it reads. Until it ends it keeps what this process's
//! private memory was at the fork.
//!
//! JUSTIFICATION: a child of a process with threads may make system calls and nothing else, and `std` does more.
#![allow(
    unsafe_code,
    reason = "fork, and system calls on plain numbers in the child: no safe wrapper exists"
)]

use std::fs::File;
use std::io;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::fd::RawFd;

use rustix::pipe::PipeFlags;
use vm_memory::MmapRegion;

/// One read that a helper waits in.
#[derive(Debug)]
pub(super) struct HelperRead {
    /// What the helper reports when the read has ended: bytes, or a negative error number.
    report: File,
}

/// What the helper is to do, as plain numbers.
#[derive(Debug, Clone, Copy)]
struct Task {
    file: RawFd,
    report: RawFd,
    into: libc::iovec,
    offset: i64,
}

/// Has a new process read `length` bytes at `offset` of `file` into the shared memory of `region` from byte `at` on.
///
/// # Errors
/// What the system says, and `InvalidInput` where the bytes are not all inside of the region.
pub(super) fn start(
    file: &File,
    region: &MmapRegion,
    at: usize,
    length: u32,
    offset: u64,
) -> io::Result<HelperRead> {
    let bytes = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    if at.checked_add(bytes).is_none_or(|end| end > region.size()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let into = libc::iovec { iov_base: region.as_ptr().wrapping_add(at).cast(), iov_len: bytes };
    // Minus one is the place where a file without places stands.
    let offset = i64::try_from(offset).unwrap_or(-1);
    let task = Task { file: file.as_raw_fd(), report: writer.as_raw_fd(), into, offset };
    // SAFETY: the child calls `child` alone, which makes system calls on numbers that it has from before, and ends.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => child(task),
        pid => {
            await_child(pid)?;
            Ok(HelperRead { report: reader.into() })
        }
    }
}

impl HelperRead {
    /// How the read ended; `None` while it is under way.
    pub(super) fn end(&mut self) -> Option<io::Result<u32>> {
        let mut bytes = [0; 8];
        match self.report.read(&mut bytes) {
            Ok(8) => {
                let result = i64::from_ne_bytes(bytes);
                let number = i32::try_from(result.saturating_neg()).unwrap_or(libc::EIO);
                Some(u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(number)))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            // Somebody killed it before it read.
            _ => Some(Err(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// Waits for the child between, which ends at once.
fn await_child(pid: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    loop {
        // SAFETY: the status goes to a local that outlives the call.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid {
            break;
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            // This process has told the kernel to forget its children.
            error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
            error => return Err(error),
        }
    }
    if status == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}

fn child(task: Task) -> ! {
    // SAFETY: as the fork before; this process has one thread, and what it calls are system calls.
    let status = match unsafe { libc::fork() } {
        -1 => 1,
        0 => helper(task),
        _ => 0,
    };
    // SAFETY: ends this process without running anything of the one that it was forked from.
    unsafe { libc::_exit(status) }
}

fn helper(task: Task) -> libc::c_int {
    let (first, second) = (task.file.min(task.report), task.file.max(task.report));
    let number = |fd: RawFd| libc::c_uint::try_from(fd).unwrap_or_default();
    // SAFETY: no signal of a terminal is meant for this process any more.
    unsafe { libc::setsid() };
    // SAFETY: these files are this process's own, and nothing in it will use them.
    unsafe { libc::syscall(libc::SYS_close_range, 0, number(first).wrapping_sub(1), 0) };
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close_range, number(first) + 1, number(second).wrapping_sub(1), 0) };
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close_range, number(second) + 1, libc::c_uint::MAX, 0) };
    // SAFETY: the bytes are those of a mapping that this process has from the one before and does not end.
    let mut result = unsafe { libc::preadv2(task.file, &raw const task.into, 1, task.offset, 0) };
    if result < 0 {
        result =
            -isize::try_from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)).unwrap_or(5);
    }
    let report = (result as i64).to_ne_bytes();
    // SAFETY: the bytes are a local's. Nobody may be there to read them, which is all the same.
    unsafe { libc::write(task.report, report.as_ptr().cast(), report.len()) };
    0
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use vm_memory::VolatileMemory;

    use super::super::pages;
    use super::start;

    #[test]
    fn a_helper_reads_into_the_pages_of_this_process() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (reader, mut writer) = (File::from(reader), File::from(writer));
        let region = pages::memory(8192).unwrap();
        let mut read = start(&reader, &region, 4096, 4096, u64::MAX).unwrap();
        assert!(read.end().is_none());
        writer.write_all(b"answered").unwrap();
        let ended = loop {
            if let Some(ended) = read.end() {
                break ended;
            }
            std::thread::yield_now();
        };
        assert_eq!(ended.unwrap(), 8);
        let mut seen = [0; 8];
        region.get_slice(4096, 8).unwrap().copy_to(&mut seen);
        assert_eq!(&seen, b"answered");
    }

    #[test]
    fn what_the_system_refuses_is_reported() {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let region = pages::memory(4096).unwrap();
        let mut read = start(&writer.into(), &region, 0, 4096, u64::MAX).unwrap();
        let ended = loop {
            if let Some(ended) = read.end() {
                break ended;
            }
            std::thread::yield_now();
        };
        assert_eq!(ended.unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert!(start(&File::open("/dev/null").unwrap(), &region, 1, 4096, 0).is_err());
    }
}

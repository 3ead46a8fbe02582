//! Descriptors that do not reach another program.
//!
//! A descriptor that `recvmsg` installs without `MSG_CMSG_CLOEXEC` passes through `execve`. The vhost crate receives those
//! of a VMM so: guest memory, kick and call eventfds, the back channel. [`close_all_on_exec`] marks them once a request has
//! been handled; [`inherit_nothing`] does the same in the child between `fork` and `execve`, where no other thread can
//! receive another one.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The first descriptor that is not a standard stream.
const FIRST: libc::c_uint = 3;

/// Sets close-on-exec on every descriptor of this process but 0, 1 and 2.
///
/// # Errors
/// The kernel is older than Linux 5.11.
pub fn close_all_on_exec() -> io::Result<()> {
    // SAFETY: with this flag the call closes nothing and touches no memory: it sets one bit for each open descriptor.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has `command` start its program with descriptors 0, 1 and 2 only. Spawning fails as [`close_all_on_exec`] does.
pub fn inherit_nothing(command: &mut Command) {
    // SAFETY: between `fork` and `execve` the closure makes one system call and reads `errno`; it takes no lock and
    // allocates nothing.
    unsafe { command.pre_exec(close_all_on_exec) };
}

/// Takes a descriptor that this process was started with, and that nothing in it has: `systemd` hands those over by number alone.
///
/// # Errors
/// No descriptor of this number is open, or it is a standard stream.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call touches no memory.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    if u32::try_from(number).map_or(true, |number| number < FIRST) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is open, and by this function's contract nothing else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Has the descriptor of `owner` name another file, which it did not open: its number stays, and what it named is closed. It is
/// closed on exec.
///
/// # Errors
/// What the kernel says.
pub fn replace(owner: &mut impl AsRawFd, by: impl AsFd) -> io::Result<()> {
    let (by, number) = (by.as_fd().as_raw_fd(), owner.as_raw_fd());
    // SAFETY: both are open, as they are borrowed; the number stays that of an open descriptor of `owner`, which has no other user
    // meanwhile.
    let result = unsafe { libc::dup3(by, number, libc::O_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use std::fs::File;
    use std::io::Read;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::process::Stdio;

    use rustix::io::FdFlags;
    use rustix::io::fcntl_setfd;

    use super::*;

    #[test]
    fn a_program_is_started_without_the_descriptors_of_its_parent() {
        let file = File::open("/dev/null").unwrap();
        // As `recvmsg` leaves it.
        fcntl_setfd(&file, FdFlags::empty()).unwrap();
        let mut command = Command::new("test");
        command.arg("-e").arg(format!("/proc/self/fd/{}", file.as_raw_fd())).stdin(Stdio::null());
        assert!(command.status().unwrap().success(), "a plain child has it");
        inherit_nothing(&mut command);
        assert_eq!(command.status().unwrap().code(), Some(1));
    }

    #[test]
    fn a_program_that_is_not_there_is_still_reported() {
        let mut command = Command::new("/nonexistent/program");
        inherit_nothing(&mut command);
        assert_eq!(command.spawn().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_descriptor_that_is_open_is_adopted_and_no_standard_stream() {
        let file = File::open("/dev/null").unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(file);
        let adopted = adopt(number).unwrap();
        assert_eq!(adopted.as_raw_fd(), number);
        assert_eq!(adopt(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(adopt(-1).is_err() && adopt(1 << 20).is_err());
    }

    #[test]
    fn a_descriptor_takes_the_place_of_another_ones_file_and_is_closed_on_exec() {
        let (mut owner, mut before) = UnixStream::pair().unwrap();
        let (by, mut after) = UnixStream::pair().unwrap();
        replace(&mut owner, &by).unwrap();
        drop(by);
        owner.write_all(b"x").unwrap();
        assert_eq!(before.read(&mut [0; 1]).unwrap(), 0, "what it named is closed");
        let mut got = [0; 1];
        after.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"x");
        assert!(rustix::io::fcntl_getfd(&owner).unwrap().contains(FdFlags::CLOEXEC));
    }
}

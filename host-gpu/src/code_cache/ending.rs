//! The end of a driver's cache in a process.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Has the number of a descriptor mean this file from now on.
///
/// # Errors
/// The kernel refuses.
pub(super) fn replace(number: i32, by: &File) -> io::Result<()> {
    // SAFETY: the call takes numbers, and no memory changes. The one that has the descriptor, a driver, gets errors from now on.
    let result = unsafe { libc::dup3(by.as_raw_fd(), number, libc::O_CLOEXEC) };
    if result == number { Ok(()) } else { Err(io::Error::last_os_error()) }
}

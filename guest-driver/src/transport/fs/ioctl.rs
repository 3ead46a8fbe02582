//! One call to the daemon: an ioctl whose structure is the message.
//!
//! JUSTIFICATION: the size of the structure is part of an ioctl's number, and here it differs from call to call.
#![allow(
    unsafe_code,
    reason = "ioctls of the channel: no safe wrapper has a size that is known at run time only"
)]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use campanile_protocol::fs::call::Call;
use rustix::io::Errno;
use rustix::ioctl::Ioctl;
use rustix::ioctl::IoctlOutput;
use rustix::ioctl::Opcode;

/// A message that the daemon's answer takes the place of.
struct Message<'a> {
    number: u32,
    bytes: &'a mut [u8],
}

// SAFETY: the kernel copies as many bytes from and to the address as the number says, and the number has
// the length of the slice that is there and is borrowed until the call is over.
unsafe impl Ioctl for Message<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.number
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.bytes.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

/// Sends `bytes`, as many as a call may have, and has the answer in their place. Blocks until the daemon has answered.
///
/// # Errors
/// What the daemon, or the kernel, said; `EINTR` is not among them.
pub(super) fn call(channel: BorrowedFd<'_>, call: Call, bytes: &mut [u8]) -> Result<(), Errno> {
    let number = call.number(bytes.len()).ok_or(Errno::TOOBIG)?;
    loop {
        let message = Message { number, bytes: &mut *bytes };
        // SAFETY: the channel is a file of virtiofs, whose kernel side takes every ioctl as "copy so many bytes there and
        // back"; `Message` has them.
        match unsafe { rustix::ioctl::ioctl(channel, message) } {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

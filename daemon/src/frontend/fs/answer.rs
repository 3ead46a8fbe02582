//! Answers, as bytes.

use campanile_protocol::fs::call;
use campanile_protocol::fs::call::ReplyHeader;
use campanile_protocol::fs::errno;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::file::IoctlOut;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use crate::frontend::status::code_of;
use crate::vgpu::objects::refusal::Refusal;

/// Why a request is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request itself is wrong, or cannot be taken now.
    Errno(i32),
    /// The session refused what a call asks for.
    Refused(Refusal),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// EINVAL.
pub const INVALID: Fault = Fault::Errno(errno::EINVAL);

/// Length of an answer, as its header has it.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Done, with these results.
pub fn done(unique: u64, results: &[u8]) -> Vec<u8> {
    let header = OutHeader { length: length(size_of::<OutHeader>() + results.len()), error: 0, unique };
    [header.as_bytes(), results].concat()
}

/// Not done.
pub fn failed(unique: u64, errno: i32) -> Vec<u8> {
    OutHeader { length: length(size_of::<OutHeader>()), error: -errno, unique }.as_bytes().to_vec()
}

/// A call is answered.
pub fn reply(unique: u64, status: u32, body: &[u8]) -> Vec<u8> {
    let size = length(size_of::<ReplyHeader>() + body.len());
    let header = ReplyHeader { status, size };
    done(unique, &[IoctlOut::default().as_bytes(), header.as_bytes(), body].concat())
}

/// A call is done.
pub fn reply_with<T: IntoBytes + Immutable>(unique: u64, body: &T) -> Vec<u8> {
    reply(unique, call::OK, body.as_bytes())
}

/// A call is refused by the session, in the words of the gpu front; or a request is wrong.
pub fn fault(unique: u64, fault: Fault) -> Vec<u8> {
    match fault {
        Fault::Errno(errno) => failed(unique, errno),
        Fault::Refused(refusal) => reply(unique, code_of(refusal), &[]),
    }
}

/// The error number of a refusal, where there is room for no other word.
pub const fn errno_of(refusal: Refusal) -> i32 {
    match refusal {
        Refusal::OutOfMemory => errno::ENOMEM,
        Refusal::Context => errno::ENODEV,
        Refusal::Resource | Refusal::Parameter => errno::EINVAL,
        Refusal::Unspecified => errno::EIO,
    }
}

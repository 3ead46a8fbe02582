//! Calls: ioctls on the file `gpu`.
//!
//! ```text
//!   ioctl(fd, _IOWR('C', n, bytes), buffer)      n: Call; 8 ≤ bytes ≤ MAX_CALL_BYTES
//!   buffer in:   [ RequestHeader { size } | body ]        size: bytes of both
//!   buffer out:  [ ReplyHeader { status, size } | body ]  as long as the buffer; what is past size is left as it was
//! ```
//!
//! The buffer must have room for the reply: else the call is refused (EINVAL) and nothing was done.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// Largest buffer of a call: an ioctl's number has 14 bits for it.
pub const MAX_CALL_BYTES: usize = 16376;

/// `_IOC_READ | _IOC_WRITE`.
const BOTH_WAYS: u32 = 3;
/// The type byte.
const KIND: u32 = b'C' as u32;

/// What is asked. Bodies are those of [`super::body`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Call {
    /// `()` → [`super::body::About`] and capability set 24.
    Capset = 1,
    /// [`super::body::CreateBlob`] → [`super::body::CreatedBlob`].
    CreateBlob = 2,
    /// [`super::body::Submit`] and frames → [`super::body::Submitted`].
    Submit = 3,
    /// [`super::body::Wait`] → [`super::body::Waited`]. Parked.
    Wait = 4,
    /// [`super::body::BlobName`] → `()`. Answered at once; the reads that registered its pages are when nothing uses
    /// them any more, which GPU mappings of the blob do.
    DestroyBlob = 5,
    /// [`super::body::ReleaseAll`] → `()`.
    ReleaseAll = 6,
    /// `()` → [`super::body::Key`] of this session.
    Key = 7,
    /// [`super::body::Key`] → `()`: this file, on which nothing was called before, registers pages for that session.
    Join = 8,
    /// [`super::body::AwaitBlob`] → [`super::body::Waited`]: whether all pages are registered, and engines know them.
    /// Parked.
    AwaitBlob = 9,
}

impl Call {
    const ALL: [Self; 9] = [
        Self::Capset,
        Self::CreateBlob,
        Self::Submit,
        Self::Wait,
        Self::DestroyBlob,
        Self::ReleaseAll,
        Self::Key,
        Self::Join,
        Self::AwaitBlob,
    ];

    /// The ioctl's number, for a buffer of `bytes`; `None` where no buffer is that long, or so short.
    pub const fn number(self, bytes: usize) -> Option<u32> {
        if bytes < size_of::<ReplyHeader>() || bytes > MAX_CALL_BYTES {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        let bytes = bytes as u32;
        Some(BOTH_WAYS << 30 | bytes << 16 | KIND << 8 | self as u32)
    }

    /// What an ioctl's number asks for, and the bytes of its buffer.
    pub fn from_number(number: u32) -> Option<(Self, usize)> {
        let bytes = (number >> 16 & 0x3fff) as usize;
        Self::ALL.into_iter().find(|call| call.number(bytes) == Some(number)).map(|call| (call, bytes))
    }
}

/// Opens the buffer of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RequestHeader {
    /// Bytes of header and body; the buffer may be longer.
    pub size: u32,
    /// Zero.
    pub reserved: u32,
}

/// Opens the buffer of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReplyHeader {
    /// [`OK`], or `ERR_*` of [`crate::virtio_gpu::response`]: then there is no body, and nothing was done.
    pub status: u32,
    /// Bytes of header and body.
    pub size: u32,
}

/// In [`ReplyHeader::status`]: done.
pub const OK: u32 = 0;

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::proptest;

    use super::Call;
    use super::MAX_CALL_BYTES;

    #[test]
    fn numbers_are_those_of_the_macro() {
        // _IOWR('C', 3, char[64]).
        assert_eq!(Call::Submit.number(64), Some(0xc040_4303));
        assert_eq!(Call::Submit.number(7), None);
        assert_eq!(Call::Submit.number(MAX_CALL_BYTES + 1), None);
    }

    proptest! {
        #[test]
        fn a_number_is_a_call_or_none(number in any::<u32>(), bytes in 8..=MAX_CALL_BYTES, call in 0..9usize) {
            let call = Call::ALL[call];
            assert_eq!(call.number(bytes).and_then(Call::from_number), Some((call, bytes)));
            if let Some((call, bytes)) = Call::from_number(number) {
                assert_eq!(call.number(bytes), Some(number));
            }
        }
    }
}

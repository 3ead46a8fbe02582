//! Framing of control messages.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;

/// Most bytes of frames in one SUBMIT_3D (MCDM-55).
pub const MAX_CONTROL_BYTES: u32 = 128 * 1024;
/// First word of a frame: "CPN1".
pub const MAGIC: u32 = u32::from_le_bytes(*b"CPN1");

/// Opens every control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FrameHeader {
    /// [`MAGIC`].
    pub magic: u32,
    /// Bytes of header and body, a multiple of 8.
    pub size: u32,
    /// One of the codes of [`super::message`].
    pub opcode: u32,
    /// Response slot, below [`crate::device_page::RESPONSE_SLOTS`].
    pub slot: u32,
    /// The guest's own number, echoed in the response; not zero.
    pub sequence: u64,
}

/// Why a buffer is not a row of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// No frame at all.
    Empty,
    /// More than [`MAX_CONTROL_BYTES`].
    TooLong,
    /// Fewer bytes than a header needs.
    Truncated,
    /// The first word is not [`MAGIC`].
    Magic,
    /// A size that is no multiple of 8, shorter than the header, or longer than what is left.
    Size,
    /// A slot that does not exist, or a sequence of zero.
    Slot,
}

/// One frame of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its header, checked.
    pub header: FrameHeader,
    /// The bytes behind the header.
    pub body: &'a [u8],
}

/// Walks the frames of `bytes`. Ends after the first error.
pub fn frames(bytes: &[u8]) -> Frames<'_> {
    let error = if bytes.is_empty() {
        Some(FrameError::Empty)
    } else if bytes.len() > MAX_CONTROL_BYTES as usize {
        Some(FrameError::TooLong)
    } else {
        None
    };
    Frames { rest: bytes, error }
}

/// Iterator of [`frames`].
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    rest: &'a [u8],
    error: Option<FrameError>,
}

impl<'a> Frames<'a> {
    fn take(&mut self) -> Result<Frame<'a>, FrameError> {
        let (header, _) = FrameHeader::read_from_prefix(self.rest).map_err(|_| FrameError::Truncated)?;
        if header.magic != MAGIC {
            return Err(FrameError::Magic);
        }
        let size = header.size as usize;
        if size < size_of::<FrameHeader>() || !size.is_multiple_of(8) || size > self.rest.len() {
            return Err(FrameError::Size);
        }
        if header.slot >= crate::device_page::RESPONSE_SLOTS || header.sequence == 0 {
            return Err(FrameError::Slot);
        }
        let (frame, rest) = self.rest.split_at(size);
        self.rest = rest;
        Ok(Frame { header, body: &frame[size_of::<FrameHeader>()..] })
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.error.take() {
            self.rest = &[];
            return Some(Err(error));
        }
        if self.rest.is_empty() {
            return None;
        }
        let frame = self.take();
        if frame.is_err() {
            self.rest = &[];
        }
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::any;
    use proptest::proptest;
    use zerocopy::IntoBytes;

    use super::FrameError;
    use super::FrameHeader;
    use super::MAGIC;
    use super::frames;

    fn header(size: u32) -> FrameHeader {
        FrameHeader { magic: MAGIC, size, opcode: 1, slot: 0, sequence: 1 }
    }

    fn first_error(header: FrameHeader) -> Option<FrameError> {
        frames(header.as_bytes()).next().and_then(Result::err)
    }

    #[test]
    fn a_frame_that_lies_about_its_size_is_refused() {
        assert_eq!(first_error(header(32)), Some(FrameError::Size));
        assert_eq!(first_error(header(16)), Some(FrameError::Size));
        assert_eq!(first_error(header(0)), Some(FrameError::Size));
        assert_eq!(first_error(header(u32::MAX)), Some(FrameError::Size));
        assert_eq!(first_error(header(24)), None);
    }

    #[test]
    fn a_frame_without_slot_or_sequence_is_refused() {
        assert_eq!(first_error(FrameHeader { slot: 32, ..header(24) }), Some(FrameError::Slot));
        assert_eq!(first_error(FrameHeader { sequence: 0, ..header(24) }), Some(FrameError::Slot));
        assert_eq!(first_error(FrameHeader { magic: 0, ..header(24) }), Some(FrameError::Magic));
        assert_eq!(frames(&[]).next().and_then(Result::err), Some(FrameError::Empty));
        assert_eq!(frames(&[0; 7]).next().and_then(Result::err), Some(FrameError::Truncated));
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_frames_or_one_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let parsed: Vec<_> = frames(&bytes).collect();
            let errors = parsed.iter().filter(|frame| frame.is_err()).count();
            assert!(errors <= 1);
            assert!(errors == 0 || parsed.last().is_some_and(Result::is_err));
        }
    }
}

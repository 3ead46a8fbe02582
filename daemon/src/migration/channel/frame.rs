//! Frames: what every line, and every file, is cut into.

use std::io::Read;

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;
use zerocopy::little_endian::U16;
use zerocopy::little_endian::U32;
use zerocopy::little_endian::U64;

use super::kernel::MAX_KERNEL;
use crate::migration::error::MigrationError;

/// What every frame begins with.
pub const MAGIC: [u8; 4] = *b"CMPL";
/// Bytes of a frame's header.
pub const HEADER: usize = size_of::<Header>();
/// Bytes of the longest message: a HELLO with immutable data.
pub const MAX_MESSAGE: usize = 256 << 10;
/// Bytes of pages in one record.
pub const MAX_DATA: usize = 1 << 20;
/// Runs of pages in one record.
pub const MAX_RUNS: usize = 512;
/// Bytes of the longest record: its head, its pages, and its runs.
pub const MAX_RECORD: usize = 16 + MAX_DATA + MAX_RUNS * 16;
/// Bytes of the longest saved state: 4 MiB, and what the format adds.
pub const MAX_STATE: usize = (4 << 20) + (64 << 10);

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    kind: U16,
    reserved: U16,
    length: U32,
    checksum: U32,
    sequence: U64,
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A message.
    Message,
    /// Pages.
    Pages,
    /// Saved state; in files only, since the front-end carries it otherwise.
    State,
    /// A kernel; over lines only.
    Kernel,
}

impl Kind {
    const fn number(self) -> u16 {
        match self {
            Self::Message => 1,
            Self::Pages => 2,
            Self::State => 3,
            Self::Kernel => 4,
        }
    }

    fn from_wire(number: u16) -> Option<Self> {
        [Self::Message, Self::Pages, Self::State, Self::Kernel]
            .into_iter()
            .find(|kind| kind.number() == number)
    }

    /// Bytes of the longest body.
    pub const fn limit(self) -> usize {
        match self {
            Self::Message => MAX_MESSAGE,
            Self::Pages => MAX_RECORD,
            Self::State => MAX_STATE,
            Self::Kernel => MAX_KERNEL,
        }
    }
}

/// Over all of a frame but the checksum.
fn checksum(header: &Header, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(Header { checksum: U32::ZERO, ..*header }.as_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// Makes a frame of `bytes`: the body, behind [`HEADER`] bytes that are filled in here.
pub fn seal(bytes: &mut [u8], kind: Kind, sequence: u64) {
    let Some((head, body)) = bytes.split_at_mut_checked(HEADER) else { return };
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut header = Header {
        magic: MAGIC,
        kind: kind.number().into(),
        reserved: U16::ZERO,
        length: length.into(),
        checksum: U32::ZERO,
        sequence: sequence.into(),
    };
    header.checksum = checksum(&header, body).into();
    head.copy_from_slice(header.as_bytes());
}

/// A frame of its own.
pub fn framed(kind: Kind, sequence: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.extend_from_slice(body);
    seal(&mut bytes, kind, sequence);
    bytes
}

/// A header that was looked at: what is to come.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    header: Header,
    /// What kind of body.
    pub kind: Kind,
    /// Its bytes, no more than the kind's limit.
    pub length: usize,
}

impl Head {
    /// Looks at a header that should have this number.
    ///
    /// # Errors
    /// It is no header, or one that was sent before, or comes too early, or announces more than may be.
    pub fn read(bytes: &[u8; HEADER], sequence: u64) -> Result<Self, MigrationError> {
        let header = Header::read_from_bytes(bytes).map_err(|_| MigrationError::Corrupt("a short header"))?;
        if header.magic != MAGIC || header.reserved.get() != 0 {
            return Err(MigrationError::Corrupt("a frame does not begin as one"));
        }
        let kind = Kind::from_wire(header.kind.get())
            .ok_or(MigrationError::Corrupt("a frame is of an unknown kind"))?;
        if header.sequence.get() != sequence {
            return Err(MigrationError::Corrupt("a frame is repeated or missing"));
        }
        let length = usize::try_from(header.length.get()).unwrap_or(usize::MAX);
        if length > kind.limit() {
            return Err(MigrationError::Corrupt("a frame is too long"));
        }
        Ok(Self { header, kind, length })
    }

    /// Looks at the body.
    ///
    /// # Errors
    /// It is not what was sent.
    pub fn check(&self, body: &[u8]) -> Result<(), MigrationError> {
        if checksum(&self.header, body) == self.header.checksum.get() {
            Ok(())
        } else {
            Err(MigrationError::Corrupt("a checksum is wrong"))
        }
    }
}

/// Reads the next frame of a file into `body`, which becomes its body. `None` at the end.
///
/// # Errors
/// It cannot be read, or is no frame.
pub fn read_next(
    file: &mut impl Read,
    sequence: u64,
    body: &mut Vec<u8>,
) -> Result<Option<Kind>, MigrationError> {
    let mut bytes = [0; HEADER];
    let mut filled = 0;
    while filled < HEADER {
        match file.read(&mut bytes[filled..])? {
            0 if filled == 0 => return Ok(None),
            0 => return Err(MigrationError::Corrupt("it ends within a frame")),
            count => filled += count,
        }
    }
    let head = Head::read(&bytes, sequence)?;
    body.clear();
    // Read by what is there, so that a length alone takes no memory.
    let count = file.take(head.length as u64).read_to_end(body)?;
    if count < head.length {
        return Err(MigrationError::Corrupt("it ends within a frame"));
    }
    head.check(body)?;
    Ok(Some(head.kind))
}

#[cfg(test)]
mod tests {
    use super::HEADER;
    use super::Head;
    use super::Kind;
    use super::framed;
    use super::read_next;

    const KINDS: [Kind; 4] = [Kind::Message, Kind::Pages, Kind::State, Kind::Kernel];

    fn head(bytes: &[u8], sequence: u64) -> Result<Head, String> {
        Head::read(bytes[..HEADER].try_into().unwrap(), sequence).map_err(|error| error.to_string())
    }

    #[test]
    fn a_frame_is_read_as_it_was_made() {
        for kind in KINDS {
            let bytes = framed(kind, 77, b"body");
            let head = head(&bytes, 77).unwrap();
            assert_eq!((head.kind, head.length), (kind, 4));
            head.check(b"body").unwrap();
            let mut body = vec![1, 2, 3];
            assert_eq!(read_next(&mut bytes.as_slice(), 77, &mut body).unwrap(), Some(kind));
            assert_eq!(body, b"body");
            assert_eq!(read_next(&mut [].as_slice(), 77, &mut body).unwrap(), None);
            for cut in 1..bytes.len() {
                let error = read_next(&mut &bytes[..cut], 77, &mut body).unwrap_err().to_string();
                assert!(error.contains("ends within a frame"), "{cut} bytes: {error}");
            }
        }
    }

    #[test]
    fn lm_40_each_word_of_a_header_that_is_wrong_is_refused_by_name() {
        let changes: [(&str, usize, u8); 8] = [
            ("does not begin as one", 0, b'X'),
            ("does not begin as one", 3, b'X'),
            ("of an unknown kind", 4, 0),
            ("of an unknown kind", 4, 5),
            ("does not begin as one", 6, 1),
            ("too long", 11, 1),
            ("repeated or missing", 16, 76),
            ("repeated or missing", 16, 78),
        ];
        for (why, at, value) in changes {
            let mut bytes = framed(Kind::Message, 77, b"body");
            bytes[at] = value;
            let error = head(&bytes, 77).unwrap_err();
            assert!(error.contains(why), "{at}: {error:?}, and not {why:?}");
        }
    }

    #[test]
    fn lm_40_a_body_is_as_long_as_its_kind_may_be_and_no_longer() {
        for kind in KINDS {
            let mut bytes = framed(kind, 0, &[]);
            for (length, fits) in [(kind.limit(), true), (kind.limit() + 1, false)] {
                bytes[8..12].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
                assert_eq!(head(&bytes, 0).is_ok(), fits, "{length} bytes of {kind:?}");
            }
        }
    }

    #[test]
    fn lm_40_a_change_of_any_byte_is_seen() {
        let good = framed(Kind::Pages, 3, &[1, 2, 3, 4, 5]);
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 0x10;
            let read = read_next(&mut bytes.as_slice(), 3, &mut Vec::new());
            assert!(read.is_err(), "byte {at}");
        }
    }
}

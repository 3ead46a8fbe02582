//! Frames: what every line, and every file, is cut into.

use std::io::Read;

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;
use zerocopy::little_endian::U16;
use zerocopy::little_endian::U32;
use zerocopy::little_endian::U64;

use super::record;
use crate::migration::error::MigrationError;

/// What every frame begins with.
pub const MAGIC: [u8; 4] = *b"CMPL";
/// Bytes of a frame's header.
pub const HEADER: usize = size_of::<Header>();
/// Bytes of the longest message: a HELLO with immutable data.
pub const MAX_MESSAGE: usize = 256 << 10;
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
}

impl Kind {
    const fn number(self) -> u16 {
        match self {
            Self::Message => 1,
            Self::Pages => 2,
            Self::State => 3,
        }
    }

    fn from_wire(number: u16) -> Option<Self> {
        [Self::Message, Self::Pages, Self::State].into_iter().find(|kind| kind.number() == number)
    }

    /// Bytes of the longest body.
    pub const fn limit(self) -> usize {
        match self {
            Self::Message => MAX_MESSAGE,
            Self::Pages => record::MAX_BODY,
            Self::State => MAX_STATE,
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

//! Packets of the engine channel as bytes: what all types have in common (see [`campanile_protocol::engine::message`]).

use campanile_protocol::engine::message::Header;
use campanile_protocol::engine::message::MAGIC;
use campanile_protocol::engine::message::MAX_DESCRIPTORS;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

/// Why a message is none, or cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum WireError {
    /// Fewer bytes than a header.
    #[error("{0} bytes are no packet")]
    Short(usize),
    /// Another protocol.
    #[error("the packet begins with {0:#010x}")]
    Magic(u32),
    /// The header names another size.
    #[error("a packet of {came} bytes says that it has {said}")]
    Size {
        /// What the header says.
        said: u32,
        /// Bytes that came.
        came: usize,
    },
    /// No type that this end is sent.
    #[error("message type {0:#x} does not exist here")]
    Kind(u32),
    /// The lengths in it do not add up to its size.
    #[error("message type {kind:#x} does not have {came} bytes")]
    Length {
        kind: u32,
        /// Bytes of the packet.
        came: usize,
    },
    /// A part with more bytes than it may have.
    #[error("{what} of {bytes} bytes, of {most} at the most")]
    TooLong { what: &'static str, bytes: usize, most: u32 },
    /// Text that is not UTF-8.
    #[error("{0} is not UTF-8")]
    Utf8(&'static str),
    /// Text with control characters.
    #[error("{0} has control characters")]
    Control(&'static str),
    /// A field outside its values.
    #[error("{what} is {value:#x}")]
    Field {
        what: &'static str,
        /// What it is.
        value: u64,
    },
    /// More or fewer descriptors than the type has.
    #[error("message type {kind:#x} does not have {came} descriptors")]
    Descriptors {
        kind: u32,
        /// How many there are.
        came: usize,
    },
}

/// A message of the engine channel.
pub trait Message: Sized {
    /// Most bytes of a packet.
    const MAX_BYTES: u32;

    /// The packet, with `behind` as the part of the message that is not in it, and `descriptors` beside it.
    ///
    /// # Errors
    /// It is not one that [`Self::decode`] would take.
    fn encode(&self, behind: &[u8], descriptors: usize) -> Result<Vec<u8>, WireError>;

    /// The message of a packet that came with so many descriptors, and what is behind it.
    ///
    /// # Errors
    /// What is wrong with the packet.
    fn decode(packet: &[u8], descriptors: usize) -> Result<(Self, Vec<u8>), WireError>;
}

/// A packet that is put together.
pub(super) struct Writer {
    kind: u32,
    packet: Vec<u8>,
}

impl Writer {
    /// With the fixed part of its type.
    pub(super) fn new(kind: u32, fixed: &(impl IntoBytes + Immutable)) -> Self {
        let header = Header { magic: MAGIC, kind, size: 0, descriptors: 0 };
        Self { kind, packet: [header.as_bytes(), fixed.as_bytes()].concat() }
    }

    /// Then a variable part.
    pub(super) fn part(mut self, bytes: &[u8]) -> Self {
        self.packet.extend_from_slice(bytes);
        self
    }

    /// The packet, with its header filled in.
    pub(super) fn finish(mut self, descriptors: usize) -> Result<Vec<u8>, WireError> {
        let (kind, came) = (self.kind, self.packet.len());
        let count = within("a list of descriptors", descriptors, MAX_DESCRIPTORS)?;
        let size = u32::try_from(came).map_err(|_| WireError::Length { kind, came })?;
        let header = Header { magic: MAGIC, kind, size, descriptors: count };
        self.packet[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        Ok(self.packet)
    }
}

/// A packet that is taken apart.
pub(super) struct Reader<'a> {
    /// The type.
    pub(super) kind: u32,
    came: usize,
    descriptors: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// With a header that says what is there.
    pub(super) fn new(packet: &'a [u8], descriptors: usize) -> Result<Self, WireError> {
        let came = packet.len();
        let (header, rest) = Header::read_from_prefix(packet).map_err(|_| WireError::Short(came))?;
        if header.magic != MAGIC {
            return Err(WireError::Magic(header.magic));
        }
        if header.size as usize != came {
            return Err(WireError::Size { said: header.size, came });
        }
        let reader = Self { kind: header.kind, came, descriptors, rest };
        if header.descriptors as usize != descriptors {
            return Err(reader.wrong_descriptors());
        }
        Ok(reader)
    }

    fn wrong_descriptors(&self) -> WireError {
        WireError::Descriptors { kind: self.kind, came: self.descriptors }
    }

    fn wrong_length(&self) -> WireError {
        WireError::Length { kind: self.kind, came: self.came }
    }

    /// The type has so many descriptors.
    pub(super) fn has_descriptors(&self, least: usize, most: usize) -> Result<(), WireError> {
        (least..=most).contains(&self.descriptors).then_some(()).ok_or_else(|| self.wrong_descriptors())
    }

    /// The fixed part.
    pub(super) fn fixed<T: FromBytes>(&mut self) -> Result<T, WireError> {
        let (fixed, rest) = T::read_from_prefix(self.rest).map_err(|_| self.wrong_length())?;
        self.rest = rest;
        Ok(fixed)
    }

    /// A variable part of `bytes`, of `most` at the most.
    pub(super) fn part(&mut self, what: &'static str, bytes: u32, most: u32) -> Result<&'a [u8], WireError> {
        within(what, bytes as usize, most)?;
        let (part, rest) = self.rest.split_at_checked(bytes as usize).ok_or_else(|| self.wrong_length())?;
        self.rest = rest;
        Ok(part)
    }

    /// A variable part that is one line of text.
    pub(super) fn name(&mut self, what: &'static str, bytes: u32, most: u32) -> Result<String, WireError> {
        let text = self.utf8(what, bytes, most)?;
        checked_name(what, text, most)?;
        Ok(text.to_owned())
    }

    /// A variable part that is text, of several lines perhaps.
    pub(super) fn text(&mut self, what: &'static str, bytes: u32, most: u32) -> Result<String, WireError> {
        let text = self.utf8(what, bytes, most)?;
        if text.chars().any(is_unprintable) {
            return Err(WireError::Control(what));
        }
        Ok(text.to_owned())
    }

    fn utf8(&mut self, what: &'static str, bytes: u32, most: u32) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.part(what, bytes, most)?).map_err(|_| WireError::Utf8(what))
    }

    /// Nothing is left.
    pub(super) fn end(&self) -> Result<(), WireError> {
        self.rest.is_empty().then_some(()).ok_or_else(|| self.wrong_length())
    }
}

/// `bytes` as the length of a part that has `most` at the most.
pub(super) fn within(what: &'static str, bytes: usize, most: u32) -> Result<u32, WireError> {
    let length = u32::try_from(bytes).ok().filter(|length| *length <= most);
    length.ok_or(WireError::TooLong { what, bytes, most })
}

/// The length of a name, which is one line of text.
pub(super) fn checked_name(what: &'static str, name: &str, most: u32) -> Result<u32, WireError> {
    if name.chars().any(char::is_control) {
        return Err(WireError::Control(what));
    }
    within(what, name.len(), most)
}

/// A field that has to be zero.
pub(super) fn zero(what: &'static str, value: impl Into<u64>) -> Result<(), WireError> {
    match value.into() {
        0 => Ok(()),
        value => Err(WireError::Field { what, value }),
    }
}

/// A field that is 0 or 1.
pub(super) fn flag(what: &'static str, value: u32) -> Result<bool, WireError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(WireError::Field { what, value: other.into() }),
    }
}

fn is_unprintable(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// As much of `text` as fits into `most` bytes, without what a terminal might act on.
pub(super) fn printable(text: &str, most: u32, has_lines: bool) -> String {
    let mut fits = String::new();
    for c in text.chars() {
        let is_bad = if has_lines { is_unprintable(c) } else { c.is_control() };
        let c = if is_bad { char::REPLACEMENT_CHARACTER } else { c };
        if fits.len() + c.len_utf8() > most as usize {
            break;
        }
        fits.push(c);
    }
    fits
}

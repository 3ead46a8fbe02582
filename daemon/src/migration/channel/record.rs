//! Records: the pages of a stream.
//!
//! ```text
//!   head {memory, encoding, runs, data bytes, payload bytes} | payload | runs {byte offset, pages, zero or data}
//! ```
//!
//! The payload is what the data runs hold, one behind the other, as it is or as one zstd frame. A run of zero pages has
//! nothing in the payload. A record speaks of one memory, and is checked whole before anything of it is written.

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;
use zerocopy::KnownLayout;
use zerocopy::little_endian::U16;
use zerocopy::little_endian::U32;
use zerocopy::little_endian::U64;

use super::frame;
use super::frame::MAX_DATA;
use super::frame::MAX_RECORD;
use super::frame::MAX_RUNS;
use crate::migration::error::MigrationError;
use crate::migration::memory::Memory;
use crate::migration::pages::PAGE;

/// Bytes in front of the payload, with the frame's header.
pub const LEAD: usize = frame::HEADER + size_of::<Head>();

// A frame has room for a record of as much as may be, and no more.
const _: () = assert!(size_of::<Head>() + MAX_DATA + MAX_RUNS * size_of::<WireRun>() == MAX_RECORD);

const RAW: u8 = 0;
const ZSTD: u8 = 1;
const DATA: u32 = 0;
const ZERO: u32 = 1;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Head {
    memory: u8,
    encoding: u8,
    runs: U16,
    data: U32,
    payload: U32,
    reserved: U32,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct WireRun {
    offset: U64,
    pages: U32,
    kind: U32,
}

/// Pages one behind the other, all zero or all data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Byte offset in the memory, a multiple of a page.
    pub offset: u64,
    /// How many, at least one.
    pub pages: u32,
    /// Whether they are zero.
    pub is_zero: bool,
}

impl Run {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE
    }
}

/// How a payload is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// As it is.
    Raw,
    /// One zstd frame.
    Zstd,
}

/// A record that was looked at: every size in it is right, and no run is empty, but nothing is said about the memory's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'body> {
    /// Whose pages.
    pub memory: Memory,
    /// How the payload is packed.
    pub encoding: Encoding,
    /// Bytes of all data runs, at most [`MAX_DATA`].
    pub data: usize,
    /// What the data runs hold, packed.
    pub payload: &'body [u8],
    /// The runs.
    pub runs: Vec<Run>,
}

impl<'body> Record<'body> {
    /// Reads a record.
    ///
    /// # Errors
    /// A size in it is wrong.
    pub fn decode(body: &'body [u8]) -> Result<Self, MigrationError> {
        let wrong = |what: &str| MigrationError::Protocol(format!("a record: {what}"));
        let (head, rest) = Head::read_from_prefix(body).map_err(|_| wrong("it is too short"))?;
        let memory = Memory::from_wire(head.memory).ok_or_else(|| wrong("of no memory"))?;
        let encoding = match head.encoding {
            RAW => Encoding::Raw,
            ZSTD => Encoding::Zstd,
            _ => return Err(wrong("an unknown encoding")),
        };
        let size = |field: U32| usize::try_from(field.get()).unwrap_or(usize::MAX);
        let (data, payload) = (size(head.data), size(head.payload));
        let count = usize::from(head.runs.get());
        if data > MAX_DATA || count > MAX_RUNS || head.reserved.get() != 0 {
            return Err(wrong("too much in one"));
        }
        if encoding == Encoding::Raw && payload != data {
            return Err(wrong("data that is not packed has another size"));
        }
        let (payload, table) =
            rest.split_at_checked(payload).ok_or_else(|| wrong("the payload is cut off"))?;
        if table.len() != count * size_of::<WireRun>() {
            return Err(wrong("the runs are not as many as it says"));
        }
        let mut runs = Vec::with_capacity(count);
        let mut sum = 0;
        for bytes in table.chunks_exact(size_of::<WireRun>()) {
            let run = WireRun::read_from_bytes(bytes).map_err(|_| wrong("a short run"))?;
            let is_zero = match run.kind.get() {
                DATA => false,
                ZERO => true,
                _ => return Err(wrong("a run of an unknown kind")),
            };
            let run = Run { offset: run.offset.get(), pages: run.pages.get(), is_zero };
            if run.pages == 0 || !run.offset.is_multiple_of(PAGE) {
                return Err(wrong("a run that is no pages"));
            }
            if !run.is_zero {
                sum += run.bytes();
            }
            runs.push(run);
        }
        if sum != data as u64 {
            return Err(wrong("the data is not what its runs need"));
        }
        Ok(Self { memory, encoding, data, payload, runs })
    }
}

/// Makes records. Holds the memory for one, so that a line needs one of these and no more.
#[derive(Debug)]
pub struct RecordWriter {
    /// Frame header, head, payload, runs.
    bytes: Vec<u8>,
    packed: Vec<u8>,
    runs: Vec<Run>,
}

impl Default for RecordWriter {
    fn default() -> Self {
        Self { bytes: vec![0; frame::HEADER + MAX_RECORD], packed: Vec::new(), runs: Vec::new() }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    rest.iter().all(|byte| *byte == 0) && words.iter().all(|word| *word == [0; 64])
}

impl RecordWriter {
    /// Room for `length` bytes of pages, at most [`MAX_DATA`], to be filled before [`RecordWriter::finish`].
    pub fn room(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes[LEAD..LEAD + length]
    }

    /// Makes a record of pages of `memory` at these byte offsets, whose contents lie in [`RecordWriter::room`] one behind the
    /// other, and seals it as a frame. Zero pages stay out of the payload; what is left is packed where `level` says so and
    /// it helps. Also returns how many pages were zero.
    pub fn finish(
        &mut self,
        memory: Memory,
        ranges: &[(u64, usize)],
        level: Option<i32>,
        sequence: u64,
    ) -> (&[u8], u64) {
        self.runs.clear();
        let page = usize::try_from(PAGE).unwrap_or(usize::MAX);
        let (mut from, mut to, mut zeroes) = (LEAD, LEAD, 0);
        for (offset, length) in ranges {
            let mut at = *offset;
            for _ in 0..length / page {
                let is_zero = is_zero(&self.bytes[from..from + page]);
                match self.runs.last_mut() {
                    Some(run) if run.is_zero == is_zero && run.offset + run.bytes() == at => run.pages += 1,
                    _ => self.runs.push(Run { offset: at, pages: 1, is_zero }),
                }
                if is_zero {
                    zeroes += 1;
                } else {
                    if from != to {
                        self.bytes.copy_within(from..from + page, to);
                    }
                    to += page;
                }
                from += page;
                at += PAGE;
            }
        }
        let data = to - LEAD;
        let mut encoding = RAW;
        if let Some(level) = level.filter(|_| data > 0) {
            self.packed.resize(data, 0);
            // Fails where it would not get smaller, and the data goes as it is.
            if let Ok(count) = zstd::bulk::compress_to_buffer(&self.bytes[LEAD..to], &mut self.packed, level)
            {
                self.bytes[LEAD..LEAD + count].copy_from_slice(&self.packed[..count]);
                to = LEAD + count;
                encoding = ZSTD;
            }
        }
        let size = |bytes: usize| U32::from(u32::try_from(bytes).unwrap_or(u32::MAX));
        let head = Head {
            memory: u8::try_from(memory.index()).unwrap_or(u8::MAX),
            encoding,
            runs: u16::try_from(self.runs.len()).unwrap_or(u16::MAX).into(),
            data: size(data),
            payload: size(to - LEAD),
            reserved: U32::ZERO,
        };
        self.bytes[frame::HEADER..LEAD].copy_from_slice(head.as_bytes());
        for run in &self.runs {
            let kind = if run.is_zero { ZERO } else { DATA };
            let wire = WireRun { offset: run.offset.into(), pages: run.pages.into(), kind: kind.into() };
            self.bytes[to..to + size_of::<WireRun>()].copy_from_slice(wire.as_bytes());
            to += size_of::<WireRun>();
        }
        let bytes = &mut self.bytes[..to];
        frame::seal(bytes, frame::Kind::Pages, sequence);
        (bytes, zeroes)
    }
}

#[cfg(test)]
mod tests {
    use super::MAX_DATA;
    use super::MAX_RECORD;
    use super::MAX_RUNS;
    use super::Record;
    use super::RecordWriter;
    use super::frame;
    use crate::migration::memory::Memory;
    use crate::migration::pages::PAGE;

    /// Bytes in front of the payload.
    const HEAD: usize = 16;

    /// Three runs: two pages of data, one of zeroes, one of data.
    fn body(level: Option<i32>) -> Vec<u8> {
        let length = usize::try_from(PAGE).unwrap();
        let mut writer = RecordWriter::default();
        let room = writer.room(4 * length);
        room.fill(7);
        room[2 * length..3 * length].fill(0);
        let (bytes, zeroes) = writer.finish(Memory::Evicted, &[(8 * PAGE, 4 * length)], level, 0);
        assert_eq!(zeroes, 1);
        bytes[frame::HEADER..].to_vec()
    }

    fn put(body: &mut [u8], at: usize, value: u32) {
        body[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn runs() -> u16 {
        u16::try_from(MAX_RUNS).unwrap()
    }

    /// Where the run of this number begins.
    fn run(body: &[u8], number: usize) -> usize {
        body.len() - (3 - number) * 16
    }

    #[test]
    fn lm_09_a_record_says_which_memory_where_and_what() {
        for level in [None, Some(3)] {
            let body = body(level);
            let record = Record::decode(&body).unwrap();
            assert_eq!(record.memory, Memory::Evicted);
            assert_eq!(record.data, 3 * 4096);
            let runs: Vec<_> =
                record.runs.iter().map(|run| (run.offset, run.pages, run.is_zero, run.bytes())).collect();
            let expected =
                [(8 * PAGE, 2, false, 2 * PAGE), (10 * PAGE, 1, true, PAGE), (11 * PAGE, 1, false, PAGE)];
            assert_eq!(runs, expected);
            match level {
                None => assert_eq!(record.payload, [7; 3 * 4096]),
                Some(_) => assert!(record.payload.len() < 4096),
            }
        }
    }

    #[test]
    fn lm_40_each_size_in_a_record_that_is_wrong_is_refused_by_name() {
        type Change = (&'static str, fn(&mut Vec<u8>));
        let changes: [Change; 18] = [
            ("it is too short", |body| body.truncate(HEAD - 1)),
            ("of no memory", |body| body[0] = 2),
            ("an unknown encoding", |body| body[1] = 2),
            ("too much in one", |body| put(body, 4, u32::try_from(MAX_DATA).unwrap() + 1)),
            ("too much in one", |body| body[2..4].copy_from_slice(&(runs() + 1).to_le_bytes())),
            ("too much in one", |body| body[12] = 1),
            ("another size", |body| put(body, 8, 3 * 4096 - 1)),
            ("another size", |body| put(body, 4, 3 * 4096 + 4096)),
            ("the payload is cut off", |body| {
                put(body, 4, u32::try_from(MAX_DATA).unwrap());
                put(body, 8, u32::try_from(MAX_DATA).unwrap());
            }),
            ("not as many", |body| body[2] = 2),
            ("not as many", |body| body[2] = 4),
            ("not as many", |body| body.push(0)),
            ("of an unknown kind", |body| {
                let at = run(body, 0) + 12;
                put(body, at, 2);
            }),
            ("a run that is no pages", |body| {
                let at = run(body, 1) + 8;
                put(body, at, 0);
            }),
            ("a run that is no pages", |body| {
                let at = run(body, 0);
                body[at] = 1;
            }),
            ("not what its runs need", |body| {
                let at = run(body, 2) + 8;
                put(body, at, 2);
            }),
            ("not what its runs need", |body| {
                let at = run(body, 2) + 12;
                put(body, at, 1);
            }),
            ("not what its runs need", |body| {
                let at = run(body, 1) + 12;
                put(body, at, 0);
            }),
        ];
        for (number, (why, change)) in changes.iter().enumerate() {
            let mut body = body(None);
            change(&mut body);
            let error = Record::decode(&body).expect_err("a size that is wrong").to_string();
            assert!(error.contains(why), "change {number}: {error:?}, and not {why:?}");
        }
    }

    #[test]
    fn a_record_of_as_much_as_may_be_is_read() {
        let mut writer = RecordWriter::default();
        writer.room(MAX_DATA).fill(9);
        let (bytes, _) = writer.finish(Memory::Vram, &[(0, MAX_DATA)], None, 0);
        assert_eq!(Record::decode(&bytes[frame::HEADER..]).unwrap().data, MAX_DATA);
        let mut zeroes = vec![0; HEAD];
        zeroes[2..4].copy_from_slice(&runs().to_le_bytes());
        for number in 0..MAX_RUNS as u64 {
            zeroes.extend((number * PAGE).to_le_bytes());
            zeroes.extend([1, 0, 0, 0, 1, 0, 0, 0]);
        }
        assert!(zeroes.len() <= MAX_RECORD);
        assert_eq!(Record::decode(&zeroes).unwrap().runs.len(), MAX_RUNS);
    }
}

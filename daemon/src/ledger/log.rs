//! What was said of one thing after the other, the last word counts: a file of memory that is written with ordinary writes, and
//! committed by one word.
//!
//! ```text
//!   0     magic (8) │ version (4) │ 0 (4) │ committed (8): bit 63 which half, the others where its records end
//!   HALF  records of the first half        2 · HALF  of the second
//!   record  bytes of the value (4) │ 1, or 0 for "no more" (1) │ kind (1) │ number (8) │ value, CBOR
//! ```
//!
//! Little-endian. What is superseded is left behind by writing all that counts to the other half, and committing that. A process that
//! is killed between two writes leaves what was committed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use rustix::fs::FallocateFlags;
use rustix::fs::MemfdFlags;
use rustix::fs::fallocate;
use rustix::fs::memfd_create;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// First bytes of a log.
const MAGIC: [u8; 8] = *b"CAMPLEDG";
/// Version of what is written. Raised when an older daemon could not read it, or would read it wrongly.
const VERSION: u32 = 1;
/// Where the committed word lies.
const COMMITTED: u64 = 16;
const HEADER: usize = 24;
/// Bytes of a half.
const HALF: u64 = 32 << 20;
/// Bytes of a record before its value.
const RECORD: usize = 14;
const SECOND: u64 = 1 << 63;
/// Records are left behind when they are this many bytes more than twice those that count.
const SLACK: u64 = 64 << 10;

/// What is said something of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// What the front-end has negotiated, and where memory and rings lie.
    Connection,
    /// Whether it shows the window.
    Window,
    /// The device page of a guest process.
    Page(GuestProcess),
    /// A context of the guest's driver.
    Context(FrontContext),
    /// An open file of the fs front.
    File(u32),
    /// What the fs front's handles are told by.
    Generation,
    /// A range of the fs front's aperture, by its first byte.
    Range(u64),
    /// What the operator has changed at run time.
    Estate,
    /// How local memory is imported that is a device's own.
    Local,
}

impl Key {
    fn parts(self) -> (u8, u64) {
        match self {
            Self::Connection => (1, 0),
            Self::Window => (2, 0),
            Self::Page(process) => (3, u64::from(process.get())),
            Self::Range(offset) => (4, offset),
            Self::Context(context) => (5, u64::from(context.get())),
            Self::File(number) => (6, u64::from(number)),
            Self::Generation => (7, 0),
            Self::Estate => (8, 0),
            Self::Local => (9, 0),
        }
    }

    fn of(kind: u8, number: u64) -> Option<Self> {
        Some(match kind {
            1 => Self::Connection,
            2 => Self::Window,
            3 => Self::Page(GuestProcess::new(u32::try_from(number).ok()?)),
            4 => Self::Range(number),
            5 => Self::Context(FrontContext::new(u32::try_from(number).ok()?)),
            6 => Self::File(u32::try_from(number).ok()?),
            7 => Self::Generation,
            8 => Self::Estate,
            9 => Self::Local,
            _ => return None,
        })
    }
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Reading failed, or it ends too early.
    #[error("the ledger cannot be read")]
    Read(#[from] io::Error),
    /// It is none.
    #[error("the ledger does not begin as one")]
    Magic,
    /// A later daemon has written it.
    #[error("the ledger has version {0}; this daemon reads {VERSION}")]
    Version(u32),
    /// What it says where a record is to be is none.
    #[error("byte {0} of the ledger: no record")]
    Record(u64),
    /// A value is not what its key has.
    #[error("{key:?} of the ledger: {why}")]
    Value {
        /// The key.
        key: Key,
        /// What is wrong.
        why: String,
    },
    /// It says nothing of this.
    #[error("the ledger says nothing of {0:?}")]
    Missing(Key),
}

/// A log.
#[derive(Debug)]
pub struct Log {
    file: File,
    /// All that counts, encoded.
    live: BTreeMap<Key, Vec<u8>>,
    /// Bytes of the records of all that counts.
    live_bytes: u64,
    is_second: bool,
    end: u64,
}

fn record(key: Key, value: Option<&[u8]>) -> io::Result<Vec<u8>> {
    let (kind, number) = key.parts();
    let value_bytes = value.unwrap_or_default();
    let length = u32::try_from(value_bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = Vec::with_capacity(RECORD + value_bytes.len());
    bytes.extend(length.to_le_bytes());
    bytes.extend([u8::from(value.is_some()), kind]);
    bytes.extend(number.to_le_bytes());
    bytes.extend(value_bytes);
    Ok(bytes)
}

fn size(bytes: usize) -> u64 {
    u64::try_from(RECORD + bytes).unwrap_or(u64::MAX)
}

const fn base(is_second: bool) -> u64 {
    if is_second { 2 * HALF } else { HALF }
}

impl Log {
    /// One that says nothing.
    ///
    /// # Errors
    /// No memory or descriptor is left.
    pub fn new() -> io::Result<Self> {
        let file = File::from(memfd_create("campanile-ledger", MemfdFlags::CLOEXEC)?);
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.resize(HEADER, 0);
        file.write_all_at(&header, 0)?;
        let log = Self { file, live: BTreeMap::new(), live_bytes: 0, is_second: false, end: 0 };
        log.commit(false, 0)?;
        Ok(log)
    }

    /// The one in this file, which another process has written.
    ///
    /// # Errors
    /// It is none, or cannot be read.
    pub fn open(file: File) -> Result<Self, LogError> {
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)?;
        if header[..8] != MAGIC {
            return Err(LogError::Magic);
        }
        let word = |at: usize| header[at..].first_chunk().copied().unwrap_or_default();
        let version = u32::from_le_bytes(word(8));
        if version != VERSION {
            return Err(LogError::Version(version));
        }
        let committed = header[16..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        let (is_second, end) = (committed & SECOND != 0, committed & !SECOND);
        if end > HALF {
            return Err(LogError::Record(end));
        }
        let mut bytes = vec![0; usize::try_from(end).unwrap_or(0)];
        file.read_exact_at(&mut bytes, base(is_second))?;
        let mut live = BTreeMap::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let at = end - u64::try_from(rest.len()).unwrap_or(0);
            let Record { key, value, rest: next } = next_record(rest).ok_or(LogError::Record(at))?;
            match value {
                Some(value) => drop(live.insert(key, value.to_vec())),
                None => drop(live.remove(&key)),
            }
            rest = next;
        }
        let live_bytes = live.values().map(|value| size(value.len())).sum();
        Ok(Self { file, live, live_bytes, is_second, end })
    }

    /// Its file.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn commit(&self, is_second: bool, end: u64) -> io::Result<()> {
        let word = if is_second { SECOND | end } else { end };
        self.file.write_all_at(&word.to_le_bytes(), COMMITTED)
    }

    /// Says what `key` is.
    ///
    /// # Errors
    /// There is no room; what was said before counts.
    pub fn put(&mut self, key: Key, value: &impl Serialize) -> io::Result<()> {
        let mut bytes = Vec::new();
        ciborium::into_writer(value, &mut bytes).map_err(io::Error::other)?;
        if self.live.get(&key) == Some(&bytes) {
            return Ok(());
        }
        self.append(&record(key, Some(&bytes))?)?;
        self.live_bytes += size(bytes.len());
        let before = self.live.insert(key, bytes);
        self.live_bytes -= before.map_or(0, |before| size(before.len()));
        Ok(())
    }

    /// Says that `key` is no more.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn remove(&mut self, key: Key) -> io::Result<()> {
        let Some(value) = self.live.get(&key) else { return Ok(()) };
        let bytes = size(value.len());
        self.append(&record(key, None)?)?;
        self.live_bytes -= bytes;
        self.live.remove(&key);
        Ok(())
    }

    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let length = u64::try_from(record.len()).unwrap_or(u64::MAX);
        if self.end > 2 * self.live_bytes + SLACK {
            self.compact()?;
        }
        if self.end + length > HALF {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_all_at(record, base(self.is_second) + self.end)?;
        self.commit(self.is_second, self.end + length)?;
        self.end += length;
        Ok(())
    }

    /// Leaves behind what does not count any more.
    fn compact(&mut self) -> io::Result<()> {
        let records: io::Result<Vec<Vec<u8>>> =
            self.live.iter().map(|(key, value)| record(*key, Some(value))).collect();
        let records = records?.concat();
        let end = u64::try_from(records.len()).unwrap_or(u64::MAX);
        self.file.write_all_at(&records, base(!self.is_second))?;
        self.commit(!self.is_second, end)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, punch, base(self.is_second), self.end.max(1))?;
        (self.is_second, self.end) = (!self.is_second, end);
        Ok(())
    }

    /// What was said of `key`.
    ///
    /// # Errors
    /// Nothing was, or it is not that.
    pub fn get<T: DeserializeOwned>(&self, key: Key) -> Result<T, LogError> {
        let value = self.live.get(&key).ok_or(LogError::Missing(key))?;
        let wrong = |why: String| LogError::Value { key, why };
        ciborium::from_reader(value.as_slice()).map_err(|error| wrong(error.to_string()))
    }

    /// All that something was said of.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.live.keys().copied()
    }
}

/// What a record says, and the bytes that follow it.
struct Record<'a> {
    key: Key,
    /// None: it is no more.
    value: Option<&'a [u8]>,
    rest: &'a [u8],
}

fn next_record(bytes: &[u8]) -> Option<Record<'_>> {
    let (head, rest) = bytes.split_at_checked(RECORD)?;
    let length = usize::try_from(u32::from_le_bytes(*head.first_chunk()?)).ok()?;
    let key = Key::of(head[5], u64::from_le_bytes(*head[6..].first_chunk()?))?;
    let (value, rest) = rest.split_at_checked(length)?;
    let value = match head[4] {
        0 => None,
        1 => Some(value),
        _ => return None,
    };
    Some(Record { key, value, rest })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use campanile_protocol::PAGE_SIZE;
    use rustix::fs::MemfdFlags;
    use rustix::fs::SealFlags;
    use rustix::fs::fcntl_add_seals;
    use rustix::fs::memfd_create;

    use super::COMMITTED;
    use super::HALF;
    use super::Key;
    use super::Log;
    use super::LogError;
    use super::SLACK;
    use crate::ids::GuestProcess;

    fn again(log: &Log) -> Result<Log, LogError> {
        Log::open(log.file().try_clone().unwrap())
    }

    #[test]
    fn the_last_word_counts_and_what_was_taken_back_does_not() {
        let mut log = Log::new().unwrap();
        log.put(Key::Page(GuestProcess::new(7)), &1u32).unwrap();
        log.put(Key::Page(GuestProcess::new(8)), &2u32).unwrap();
        log.put(Key::Page(GuestProcess::new(7)), &3u32).unwrap();
        log.put(Key::Range(7), &"seven").unwrap();
        log.remove(Key::Page(GuestProcess::new(8))).unwrap();
        log.remove(Key::Page(GuestProcess::new(9))).unwrap();
        let mut read = again(&log).unwrap();
        assert_eq!(read.keys().collect::<Vec<_>>(), [Key::Page(GuestProcess::new(7)), Key::Range(7)]);
        assert_eq!(read.get::<u32>(Key::Page(GuestProcess::new(7))).unwrap(), 3);
        assert_eq!(read.get::<String>(Key::Range(7)).unwrap(), "seven");
        assert!(
            matches!(read.get::<u32>(Key::Page(GuestProcess::new(8))), Err(LogError::Missing(Key::Page(page))) if page.get() == 8)
        );
        assert!(matches!(read.get::<u32>(Key::Range(7)), Err(LogError::Value { key: Key::Range(7), .. })));
        read.put(Key::Window, &true).unwrap();
        assert!(again(&log).unwrap().get::<bool>(Key::Window).unwrap(), "the next one goes on with it");
    }

    #[test]
    fn what_does_not_count_any_more_is_left_behind() {
        let mut log = Log::new().unwrap();
        let text = "x".repeat(4096);
        log.put(Key::Connection, &text).unwrap();
        for round in 0..20_000u32 {
            log.put(Key::Page(GuestProcess::new(round % 3)), &round).unwrap();
        }
        assert!(log.end <= 2 * log.live_bytes + SLACK + 64, "{} bytes", log.end);
        let blocks = std::os::unix::fs::MetadataExt::blocks(&log.file().metadata().unwrap());
        // The header, and the last pages of both halves.
        assert!(
            blocks * 512 <= log.end + 4 * PAGE_SIZE,
            "{blocks} blocks: nothing is left of the other half"
        );
        let read = again(&log).unwrap();
        assert_eq!(read.live_bytes, log.live_bytes);
        assert_eq!(read.get::<String>(Key::Connection).unwrap(), text);
        assert_eq!(
            [0, 1, 2].map(|of| read.get::<u32>(Key::Page(GuestProcess::new(of))).unwrap()),
            [19_998, 19_999, 19_997]
        );
    }

    /// The same log in a file that does not grow: a record can be written there no more, and the committed word can.
    fn full(log: &Log) -> Log {
        let mut bytes = vec![0; usize::try_from(log.file().metadata().unwrap().len()).unwrap()];
        log.file().read_exact_at(&mut bytes, 0).unwrap();
        let file = File::from(memfd_create("full", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all_at(&bytes, 0).unwrap();
        fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        Log::open(file).unwrap()
    }

    #[test]
    fn cont_14_nothing_is_committed_before_it_is_written_and_what_was_said_before_counts() {
        let mut log = Log::new().unwrap();
        log.put(Key::Page(GuestProcess::new(7)), &1u32).unwrap();
        let mut cut = full(&log);
        assert!(
            cut.put(Key::Page(GuestProcess::new(8)), &2u32).is_err()
                && cut.remove(Key::Page(GuestProcess::new(7))).is_err()
        );
        let read = again(&cut).unwrap();
        assert_eq!((read.keys().count(), read.get::<u32>(Key::Page(GuestProcess::new(7))).unwrap()), (1, 1));
        // The same where all that counts is to be written to the other half.
        for round in 2.. {
            log.put(Key::Page(GuestProcess::new(7)), &round).unwrap();
            if log.end > 2 * log.live_bytes + SLACK {
                break;
            }
        }
        let last: u32 = log.get(Key::Page(GuestProcess::new(7))).unwrap();
        let mut cut = full(&log);
        assert!(cut.put(Key::Page(GuestProcess::new(7)), &0u32).is_err());
        assert_eq!(again(&cut).unwrap().get::<u32>(Key::Page(GuestProcess::new(7))).unwrap(), last);
        assert_eq!(
            cut.get::<u32>(Key::Page(GuestProcess::new(7))).unwrap(),
            last,
            "nor does the writer believe it"
        );
    }

    #[test]
    fn a_log_has_no_more_than_its_half_and_what_does_not_fit_changes_nothing() {
        let mut log = Log::new().unwrap();
        let quarter = "x".repeat(10 << 20);
        for page in 0..3 {
            log.put(Key::Page(GuestProcess::new(page)), &quarter).unwrap();
        }
        assert_eq!(
            log.put(Key::Page(GuestProcess::new(3)), &quarter).unwrap_err().kind(),
            std::io::ErrorKind::StorageFull
        );
        log.put(Key::Window, &true).unwrap();
        assert_eq!(again(&log).unwrap().keys().count(), 4);
    }

    #[test]
    fn cont_14_a_log_that_is_cut_of_another_version_or_none_is_refused_and_says_where() {
        let mut log = Log::new().unwrap();
        log.put(Key::Page(GuestProcess::new(7)), &"a value").unwrap();
        let whole = log.end;
        for cut in 1..whole {
            log.file().write_all_at(&cut.to_le_bytes(), COMMITTED).unwrap();
            assert!(matches!(again(&log), Err(LogError::Record(0))), "{cut}");
        }
        log.file().write_all_at(&(HALF + 1).to_le_bytes(), COMMITTED).unwrap();
        assert!(matches!(again(&log), Err(LogError::Record(_))));
        log.file().write_all_at(&HALF.to_le_bytes(), COMMITTED).unwrap();
        assert!(matches!(again(&log), Err(LogError::Read(_))), "the file is shorter");
        log.file().write_all_at(&[2], 8).unwrap();
        assert!(matches!(again(&log), Err(LogError::Version(2))));
        log.file().write_all_at(b"x", 0).unwrap();
        assert!(matches!(again(&log), Err(LogError::Magic)));
        log.file().set_len(5).unwrap();
        assert!(matches!(again(&log), Err(LogError::Read(_))));
    }
}

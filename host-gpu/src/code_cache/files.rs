//! The two files of Mesa's single-file cache, beside the driver that reads and appends them.
//!
//! ```text
//!   data    16 bytes of magic and version ─ entry ─ entry …
//!           an entry: 40 hexadecimal digits, the key ─ header ─ payload
//!   index   the same 16 bytes ─ record ─ record …
//!           a record: the key ─ a header, of 8 bytes of payload ─ where in the data the header of the entry begins
//!   a header: bytes of payload ─ format ─ checksum of the payload ─ bytes without compression; each u32, little-endian
//! ```
//!
//! The driver looks at what the index has more than it knows whenever it does not find a key, so entries that are appended while it
//! runs are found. It appends on threads of its own, some time after a kernel is compiled, under an exclusive lock of the data; so
//! does this side. It checks key, checksum and the name of driver and device of each entry that it reads.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::io::Write;
use std::os::unix::fs::FileExt;

use rustix::fs::FlockOperation;
use rustix::fs::flock;

use super::log::MAX_ENTRY_BYTES;

const MAGIC: &[u8; 12] = b"\x81FOSSILIZEDB";
const HEAD: usize = 16;
const KEY: usize = 40;
const HEADER: usize = 16;
const RECORD: usize = KEY + HEADER + 8;

/// Bytes of data, and records, with which a process's files are full: then the driver's cache ends for this process, whose
/// memory its own index would take. Kernels of some programs have 10 to 60 KB.
pub const MOST_DATA_BYTES: u64 = 48 << 20;
/// See [`MOST_DATA_BYTES`].
pub const MOST_RECORDS: u64 = 16 << 10;

type Key = [u8; KEY];

/// The files, by descriptors of our own.
#[derive(Debug)]
pub struct Files {
    data: File,
    index: File,
    /// How far the index is read, bytes.
    read: u64,
    /// Keys that were read, or appended by this side.
    known: HashSet<Key>,
}

impl Files {
    /// Over these, which are open for reading and appending.
    ///
    /// # Errors
    /// They are no such files.
    pub fn new(data: File, index: File) -> io::Result<Self> {
        let mut heads = [[0; HEAD]; 2];
        data.read_exact_at(&mut heads[0], 0)?;
        index.read_exact_at(&mut heads[1], 0)?;
        if heads[0] != heads[1] || !heads[0].starts_with(MAGIC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no cache of Mesa's"));
        }
        Ok(Self { data, index, read: HEAD as u64, known: HashSet::new() })
    }

    /// The descriptor of the data, which is locked.
    pub fn data(&self) -> &File {
        &self.data
    }

    /// Records of the index.
    pub fn records(&self) -> Option<u64> {
        Some(self.index_bytes()?.saturating_sub(HEAD as u64) / RECORD as u64)
    }

    fn index_bytes(&self) -> Option<u64> {
        Some(self.index.metadata().ok()?.len())
    }

    /// The next entry that the driver has appended.
    pub fn take_appended(&mut self) -> Option<Vec<u8>> {
        let end = self.index_bytes()?;
        while self.read + RECORD as u64 <= end {
            let mut record = [0; RECORD];
            self.index.read_exact_at(&mut record, self.read).ok()?;
            self.read += RECORD as u64;
            let key = key_of(&record)?;
            let header = u64::from_le_bytes(record[KEY + HEADER..].try_into().ok()?);
            if self.known.contains(&key) {
                continue;
            }
            if let Some(entry) = self.entry(&key, header) {
                self.known.insert(key);
                return Some(entry);
            }
        }
        None
    }

    /// The entry whose header is there.
    fn entry(&self, key: &Key, header: u64) -> Option<Vec<u8>> {
        let start = header.checked_sub(KEY as u64)?;
        let mut head = [0; KEY + HEADER];
        self.data.read_exact_at(&mut head, start).ok()?;
        let bytes = (head.len() as u64) + u64::from(payload_bytes(&head)?);
        if key_of(&head)? != *key || bytes > MAX_ENTRY_BYTES {
            return None;
        }
        let mut entry = vec![0; usize::try_from(bytes).ok()?];
        self.data.read_exact_at(&mut entry, start).ok()?;
        Some(entry)
    }

    /// Appends an entry of another process. False where it is none, or is there.
    ///
    /// # Errors
    /// It could not be written.
    pub fn put(&mut self, entry: &[u8]) -> io::Result<bool> {
        let payload = (entry.len() as u64).checked_sub((KEY + HEADER) as u64);
        let Some(key) = key_of(entry).filter(|_| payload == payload_bytes(entry).map(u64::from)) else {
            return Ok(false);
        };
        if !self.known.insert(key) {
            return Ok(false);
        }
        flock(&self.data, FlockOperation::LockExclusive)?;
        let appended = self.append(&key, entry);
        flock(&self.data, FlockOperation::Unlock)?;
        appended.map(|()| true)
    }

    fn append(&self, key: &Key, entry: &[u8]) -> io::Result<()> {
        let start = self.data.metadata()?.len();
        (&self.data).write_all(entry)?;
        let mut record = [0; RECORD];
        record[..KEY].copy_from_slice(key);
        let header: [u32; 4] = [8, 1, 0, 8];
        for (place, word) in record[KEY..].chunks_exact_mut(4).zip(header) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        record[KEY + HEADER..].copy_from_slice(&(start + KEY as u64).to_le_bytes());
        (&self.index).write_all(&record)
    }

    /// Whether they hold as much as they may.
    pub fn are_full(&self) -> bool {
        let bytes = |file: &File| file.metadata().map_or(u64::MAX, |metadata| metadata.len());
        bytes(&self.data) > MOST_DATA_BYTES || bytes(&self.index) > MOST_RECORDS * RECORD as u64
    }
}

fn key_of(bytes: &[u8]) -> Option<Key> {
    let key: Key = bytes.get(..KEY)?.try_into().ok()?;
    key.iter().all(u8::is_ascii_hexdigit).then_some(key)
}

fn payload_bytes(entry: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(entry.get(KEY..KEY + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use proptest::prelude::any;
    use proptest::prop_assert;
    use proptest::proptest;

    use super::Files;
    use super::HEAD;
    use super::HEADER;
    use super::KEY;
    use super::MAX_ENTRY_BYTES;
    use super::MOST_RECORDS;
    use super::RECORD;

    fn head() -> [u8; HEAD] {
        *b"\x81FOSSILIZEDB\0\0\0\x06"
    }

    fn file(bytes: &[u8]) -> File {
        let folder = tempfile::tempdir().unwrap();
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(folder.path().join("file")).unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn files() -> Files {
        Files::new(file(&head()), file(&head())).unwrap()
    }

    fn entry(key: u8, payload: &[u8]) -> Vec<u8> {
        let header = [u32::try_from(payload.len()).unwrap(), 1, 0, 4].map(u32::to_le_bytes).concat();
        [format!("{key:040x}").as_bytes(), &header, payload].concat()
    }

    fn all(files: &mut Files) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| files.take_appended()).collect()
    }

    #[test]
    fn what_the_driver_appends_is_found_once_and_what_this_side_appends_is_not() {
        let (mut files, mut driver) = (files(), files());
        // The driver has descriptors of its own to the same files.
        (driver.data, driver.index) = (files.data.try_clone().unwrap(), files.index.try_clone().unwrap());
        assert!(driver.put(&entry(1, b"one")).unwrap());
        assert!(files.put(&entry(2, b"two")).unwrap());
        assert!(driver.put(&entry(3, b"")).unwrap());
        assert_eq!(all(&mut files), [entry(1, b"one"), entry(3, b"")]);
        assert!(!files.put(&entry(1, b"other")).unwrap(), "it is there");
        assert!(!files.put(&entry(2, b"two")).unwrap());
        assert!(all(&mut files).is_empty());
        assert_eq!(all(&mut driver), [entry(2, b"two")]);
    }

    #[test]
    fn the_bytes_are_those_that_mesa_writes() {
        let mut files = files();
        files.put(&entry(0xab, b"code")).unwrap();
        let mut data = vec![0; HEAD + KEY + HEADER + 4];
        files.data.read_exact_at(&mut data, 0).unwrap();
        assert_eq!(data, [&head()[..], &entry(0xab, b"code")].concat());
        let mut index = vec![0; HEAD + RECORD];
        files.index.read_exact_at(&mut index, 0).unwrap();
        let record = b"\x08\0\0\0\x01\0\0\0\0\0\0\0\x08\0\0\0\x38\0\0\0\0\0\0\0";
        assert_eq!(index, [&head()[..], format!("{:040x}", 0xab).as_bytes(), record].concat());
        assert_eq!(files.data.metadata().unwrap().len(), data.len() as u64);
    }

    #[test]
    fn files_of_something_else_are_refused() {
        let other = b"\x81FOSSILIZEDB\0\0\0\x05";
        for (data, index) in
            [(&head()[..], &other[..]), (b"", &head()), (&head(), b"short"), (&[0; 16], &[0; 16])]
        {
            assert!(Files::new(file(data), file(index)).is_err());
        }
    }

    #[test]
    fn what_is_no_entry_is_not_appended() {
        let mut files = files();
        let mut long = entry(1, b"code");
        long.push(0);
        let mut short = entry(1, b"code");
        short.pop();
        let no_key = [b"z", &entry(1, b"code")[1..]].concat();
        for bytes in [&long[..], &short, &no_key, b"", &[b'0'; KEY + HEADER - 1]] {
            assert!(!files.put(bytes).unwrap(), "{bytes:?}");
        }
        assert_eq!(files.data.metadata().unwrap().len(), HEAD as u64);
    }

    #[test]
    fn files_are_full_by_their_bytes_or_by_their_records() {
        let by_records = files();
        assert!(!by_records.are_full());
        by_records.index.set_len((MOST_RECORDS + 1) * RECORD as u64).unwrap();
        assert!(by_records.are_full());
        let by_bytes = files();
        by_bytes.data.set_len(super::MOST_DATA_BYTES + 1).unwrap();
        assert!(by_bytes.are_full());
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_files_is_read_within_bounds(
            data in proptest::collection::vec(any::<u8>(), 0..200),
            places in proptest::collection::vec(0_u64..300, 0..8),
            lengths in proptest::collection::vec(any::<u32>(), 3),
        ) {
            let mut bytes = entry(1, &data);
            for (place, length) in lengths.into_iter().enumerate() {
                let at = KEY + 4 * place;
                bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
            }
            let mut files = Files::new(file(&[&head()[..], &bytes].concat()), file(&head())).unwrap();
            for place in places {
                let mut record = [0; RECORD];
                record[..KEY].copy_from_slice(&bytes[..KEY]);
                record[KEY + HEADER..].copy_from_slice(&place.to_le_bytes());
                files.index.write_all(&record).unwrap();
            }
            let found = all(&mut files);
            prop_assert!(found.len() <= 1);
            prop_assert!(found.iter().all(|entry| entry.len() as u64 <= MAX_ENTRY_BYTES && entry.len() <= bytes.len()));
        }
    }
}

//! The log of one engine: entries of a driver's cache, in a file that processes have one after the other.
//!
//! ```text
//!   0     identity ─ current half ─ generations of both ─ bytes of both ─ entries that were ever put in
//!   4096  half 0: entry, entry, entry …
//!   …     half 1: entry, entry …
//!         an entry: its bytes (u64), themselves, zeroes up to a multiple of 8
//! ```
//!
//! One process writes: the one that was told to begin, whose predecessor is gone. When a half is full it goes on in the other,
//! whose old entries go: at least half of the log is the youngest. A spare reads meanwhile. What is read was written by a process
//! that may be hostile, or be writing: lengths are bounded, and a half that was begun anew meanwhile gives nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::atomic::fence;

use crate::memory::mapping::Mapping;

/// Bytes of one entry, at the most: code of the largest kernels takes less.
pub const MAX_ENTRY_BYTES: u64 = 4 << 20;

const IDENTITY: u64 = 0;
const CURRENT: u64 = 8;
const GENERATIONS: u64 = 16;
const LENGTHS: u64 = 32;
const ADDED: u64 = 48;
const HEAD_BYTES: u64 = 4096;

/// What an engine's log says of itself; an engine may have written anything there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Claims {
    /// Entries that processes have put in, ever.
    pub added: u64,
    /// Bytes of those that are there.
    pub bytes: u64,
}

/// A log, as one of its processes, or the daemon, has it mapped.
#[derive(Debug, Clone)]
pub struct Log {
    mapping: Arc<Mapping>,
    half_bytes: u64,
}

impl Log {
    /// Over this mapping. None where that has no room for an entry.
    pub fn new(mapping: Arc<Mapping>) -> Option<Self> {
        let half_bytes = mapping.len().checked_sub(HEAD_BYTES)? / 2 / 8 * 8;
        (half_bytes >= 64).then_some(Self { mapping, half_bytes })
    }

    fn word(&self, place: u64) -> Option<&AtomicU64> {
        self.mapping.word(place)
    }

    fn load(&self, place: u64) -> u64 {
        self.word(place).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, place: u64, value: u64) {
        if let Some(word) = self.word(place) {
            word.store(value, Ordering::Release);
        }
    }

    fn length(&self, half: u64) -> u64 {
        self.load(LENGTHS + 8 * half).min(self.half_bytes)
    }

    fn start(&self, half: u64) -> u64 {
        HEAD_BYTES + half * self.half_bytes
    }

    /// How it stands, by its own words.
    pub fn claims(&self) -> Claims {
        Claims { added: self.load(ADDED), bytes: self.length(0) + self.length(1) }
    }

    /// Whether its entries are of the driver and device with this identity.
    pub fn is_of(&self, identity: u64) -> bool {
        self.load(IDENTITY) == identity
    }

    /// Has it for this identity from now on: entries of another one go.
    pub fn claim(&self, identity: u64) {
        if self.is_of(identity) {
            return;
        }
        self.empty(0);
        self.empty(1);
        self.store(IDENTITY, identity);
    }

    fn empty(&self, half: u64) {
        let generation = GENERATIONS + 8 * half;
        self.store(generation, self.load(generation).wrapping_add(1));
        // PAIRS WITH `Reader::take`: a reader that sees bytes of the new generation sees that it is new.
        fence(Ordering::SeqCst);
        self.store(LENGTHS + 8 * half, 0);
    }

    /// Puts an entry in. False where it is too large.
    pub fn put(&self, entry: &[u8]) -> bool {
        let bytes = entry.len() as u64;
        let takes = 8 + bytes.next_multiple_of(8);
        if bytes > MAX_ENTRY_BYTES || takes > self.half_bytes {
            return false;
        }
        let mut half = self.load(CURRENT) & 1;
        if self.length(half) + takes > self.half_bytes {
            half ^= 1;
            self.empty(half);
            self.store(CURRENT, half);
        }
        let at = self.length(half);
        let place = self.start(half) + at;
        let Some(slice) = self.mapping.slice(place + 8, bytes) else { return false };
        slice.copy_from(entry);
        self.store(place, bytes);
        // PAIRS WITH `Reader::take`: the entry is there first.
        self.store(LENGTHS + 8 * half, at + takes);
        self.store(ADDED, self.load(ADDED).wrapping_add(1));
        true
    }
}

/// How far a process has read a log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reader {
    generations: [u64; 2],
    read: [u64; 2],
}

impl Reader {
    /// The next entry that it has not read, older ones first.
    pub fn next(&mut self, log: &Log) -> Option<Vec<u8>> {
        let current = log.load(CURRENT) & 1;
        self.take(log, current ^ 1).or_else(|| self.take(log, current))
    }

    fn take(&mut self, log: &Log, half: u64) -> Option<Vec<u8>> {
        let index = usize::from(half == 1);
        let generation = log.load(GENERATIONS + 8 * half);
        if generation != self.generations[index] {
            (self.generations[index], self.read[index]) = (generation, 0);
        }
        // PAIRS WITH `Log::put`.
        let (at, end) = (self.read[index], log.length(half));
        if at + 8 > end {
            return None;
        }
        let bytes = log.load(log.start(half) + at);
        if bytes > MAX_ENTRY_BYTES || at + 8 + bytes.next_multiple_of(8) > end {
            // No writer of ours leaves that: nothing behind it is found.
            self.read[index] = end;
            return None;
        }
        let mut entry = vec![0; usize::try_from(bytes).unwrap_or_default()];
        log.mapping.slice(log.start(half) + at + 8, bytes)?.copy_to(&mut entry);
        // PAIRS WITH `Log::empty`.
        fence(Ordering::SeqCst);
        if log.load(GENERATIONS + 8 * half) != generation {
            return None;
        }
        self.read[index] = at + 8 + bytes.next_multiple_of(8);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::sync::Arc;

    use proptest::prelude::any;
    use proptest::prop_assert;
    use proptest::proptest;

    use super::CURRENT;
    use super::GENERATIONS;
    use super::HEAD_BYTES;
    use super::LENGTHS;
    use super::Log;
    use super::MAX_ENTRY_BYTES;
    use super::Reader;
    use crate::memory::mapping::Access;
    use crate::memory::mapping::Mapping;
    use crate::memory::vram::create_memfd;

    /// With room for so many bytes in each half.
    fn log(half: u64) -> Log {
        let bytes = HEAD_BYTES + 2 * half;
        let file = create_memfd("log", bytes).unwrap();
        Log::new(Arc::new(Mapping::new(file, 0, bytes, Access::ReadWrite).unwrap())).unwrap()
    }

    fn rest(log: &Log, reader: &mut Reader) -> Vec<Vec<u8>> {
        iter::from_fn(|| reader.next(log)).collect()
    }

    #[test]
    fn what_is_put_in_comes_out_once_in_its_order() {
        let log = log(4096);
        let mut reader = Reader::default();
        assert!(rest(&log, &mut reader).is_empty());
        assert!(log.put(b"one") && log.put(b"") && log.put(b"the third"));
        assert_eq!(rest(&log, &mut reader), [&b"one"[..], b"", b"the third"]);
        assert!(log.put(b"later"));
        assert_eq!(rest(&log, &mut reader), [b"later"]);
        assert_eq!(rest(&log, &mut Reader::default()).len(), 4);
        assert_eq!((log.claims().added, log.claims().bytes), (4, 16 + 8 + 24 + 16));
    }

    #[test]
    fn a_log_that_is_full_keeps_the_youngest_half_at_least() {
        let log = log(64);
        let mut early = Reader::default();
        assert!(log.put(&[0; 24]));
        assert_eq!(rest(&log, &mut early), [[0; 24]]);
        // Two fit into a half.
        for number in 1..=20 {
            assert!(log.put(&[number; 24]));
            let found: Vec<u8> = rest(&log, &mut Reader::default()).iter().map(|entry| entry[0]).collect();
            assert_eq!(found.last(), Some(&number));
            assert!(found.is_sorted() && found.len() >= 3.min(usize::from(number) + 1), "{found:?}");
            assert!(log.claims().bytes <= 128);
            assert_eq!(rest(&log, &mut early), [[number; 24]], "one that reads along misses none");
        }
        assert!(!log.put(&[0; 57]), "more than a half");
        assert!(log.put(&[0; 56]));
    }

    #[test]
    fn entries_of_another_driver_are_not_taken_and_go_when_a_process_of_this_one_begins() {
        let log = log(4096);
        log.claim(7);
        assert!(log.is_of(7) && !log.is_of(8));
        assert!(log.put(b"of seven"));
        log.claim(7);
        assert_eq!(rest(&log, &mut Reader::default()).len(), 1);
        log.claim(8);
        assert!(rest(&log, &mut Reader::default()).is_empty());
    }

    #[test]
    fn a_half_that_is_begun_anew_while_it_is_read_gives_nothing_of_before() {
        let log = log(64);
        let mut reader = Reader::default();
        assert!(log.put(&[1; 24]) && log.put(&[2; 24]));
        assert_eq!(reader.next(&log), Some(vec![1; 24]));
        log.empty(0);
        assert_eq!(reader.next(&log), None);
        assert!(log.put(&[3; 24]));
        assert_eq!(reader.next(&log), Some(vec![3; 24]));
    }

    #[test]
    fn a_log_needs_room() {
        let file = create_memfd("log", 4096).unwrap();
        let mapping = Mapping::new(file, 0, 4096, Access::ReadWrite).unwrap();
        assert!(Log::new(Arc::new(mapping)).is_none());
    }

    proptest! {
        #[test]
        fn whatever_a_hostile_engine_writes_is_read_within_bounds_and_ends(
            words in proptest::collection::vec((0_u64..40, any::<u64>()), 0..40),
            small in proptest::collection::vec((0_u64..40, 0_u64..80), 0..40),
        ) {
            let log = log(128);
            for (index, value) in words.into_iter().chain(small) {
                // The head, and the first words of the halves.
                let place = if index < 7 { index * 8 } else { HEAD_BYTES + (index - 7) * 8 };
                log.store(place, value);
            }
            let mut reader = Reader::default();
            let found = iter::from_fn(|| reader.next(&log)).take(1000).collect::<Vec<_>>();
            prop_assert!(found.len() <= 2 * 128 / 8);
            prop_assert!(found.iter().all(|entry| entry.len() as u64 <= 128.min(MAX_ENTRY_BYTES)));
            prop_assert!(log.claims().bytes <= 256);
            // A writer goes on over it.
            log.put(&[9; 24]);
            let _words = [CURRENT, GENERATIONS, LENGTHS].map(|place| log.load(place));
        }
    }
}

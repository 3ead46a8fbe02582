//! Which chains of which ring are in flight, in words that outlive this process.
//!
//! ```text
//!   take     head's word = its place in the order (never 0)
//!   handle   the word of what is handled = ring and head ─▶ the device has the request ─▶ that word = 0
//!   answer   used ring written, used index written ─▶ head's word = 0 ─▶ used index noted here
//! ```
//!
//! A process that is killed within `answer` leaves a head whose word is set, although the guest has it back: the used ring says so, as its
//! index is another than the one that is noted. So a chain is neither lost nor answered twice. One that is killed within `handle` may have been
//! killed by the request: the next one counts that in the head's word, and does not handle it for ever.

use std::fs::File;
use std::io;
use std::sync::Arc;
#[cfg(test)]
use std::sync::Mutex;
#[cfg(test)]
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;

/// Rings that there is room for.
pub const RINGS: u64 = 64;
/// Heads of each.
pub const HEADS: u64 = 1024;
/// Words of a ring: the used index, and its heads.
const RING: u64 = 1 + HEADS;
/// Words before the first ring: magic, whether a message is being handled, and which chain is.
const FIRST: u64 = 3;
const BYTES: u64 = (FIRST + RINGS * RING) * 8;
/// The first word: what this is, and its version.
const MAGIC: u64 = u64::from_le_bytes(*b"CAMPWRD2");
/// Of a head's word: processes that ended while they handled the chain, above its place in the order.
const END: u64 = 1 << 56;
const ORDER: u64 = END - 1;
/// Above ring and head of the chain that is being handled: there is one.
const HANDLED: u64 = 1 << 32;

/// The words of one connection.
#[derive(Debug)]
pub struct Words {
    file: File,
    mapping: Mapping,
    /// For tests of the order.
    #[cfg(test)]
    stores: Mutex<Vec<Store>>,
}

/// A store that counts for a chain that is answered.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// The word of this head.
    GiveBack(u16),
    /// The used index.
    NoteUsed(u16),
}

impl Words {
    /// Of a connection that begins.
    ///
    /// # Errors
    /// No memory or descriptor is left.
    pub fn new() -> io::Result<Self> {
        let words = Self::map(create_memfd("campanile-words", BYTES)?)?;
        words.word(0).store(MAGIC, Ordering::Release);
        Ok(words)
    }

    /// Those in this file, which another process has written.
    ///
    /// # Errors
    /// They are none.
    pub fn open(file: File) -> io::Result<Self> {
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let bytes = file.metadata()?.len();
        if bytes != BYTES {
            return wrong(format!("the words of its rings have {bytes} bytes, not {BYTES}"));
        }
        let words = Self::map(file)?;
        match words.word(0).load(Ordering::Acquire) {
            MAGIC => Ok(words),
            other => wrong(format!("the words of its rings begin with {other:#x}, not {MAGIC:#x}")),
        }
    }

    fn map(file: File) -> io::Result<Self> {
        let mapping = Mapping::new(file.try_clone()?, 0, BYTES, Access::ReadWrite);
        Ok(Self {
            file,
            mapping: mapping.map_err(io::Error::other)?,
            #[cfg(test)]
            stores: Mutex::default(),
        })
    }

    /// What was stored since the last call, in its order.
    #[cfg(test)]
    pub(crate) fn stores(&self) -> Vec<Store> {
        std::mem::take(&mut *self.stores.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg(test)]
    fn is_stored(&self, store: Store) {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).push(store);
    }

    /// Their file.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        // The mapping has all of them; what is asked for is bounded by its callers.
        self.mapping.word(index * 8).unwrap_or_else(|| unreachable!("word {index} of {BYTES} bytes"))
    }

    /// A message of the front-end is being handled, or is not any more.
    pub fn set_busy(&self, is_busy: bool) {
        self.word(1).store(u64::from(is_busy), Ordering::Release);
    }

    /// Whether one was.
    pub fn is_busy(&self) -> bool {
        self.word(1).load(Ordering::Acquire) != 0
    }

    /// No chain is being handled any more.
    pub fn end_handling(&self) {
        self.word(2).store(0, Ordering::Release);
    }

    /// Whether one is.
    #[cfg(test)]
    pub(crate) fn is_handling(&self) -> bool {
        self.word(2).load(Ordering::Acquire) != 0
    }

    /// The process before this one has ended while it handled this chain, if any: that is counted where the chain is in flight.
    pub fn count_end(self: &Arc<Self>) {
        let handled = self.word(2).load(Ordering::Acquire);
        let [_, _, _, is_there, ring @ .., high, low] = handled.to_be_bytes();
        if is_there == 1
            && let Some(ring) = self.ring(u16::from_be_bytes(ring))
        {
            ring.count_end(u16::from_be_bytes([high, low]));
        }
        self.end_handling();
    }

    /// Those of one ring, if there is room for it.
    pub fn ring(self: &Arc<Self>, index: u16) -> Option<RingWords> {
        (u64::from(index) < RINGS).then(|| RingWords {
            words: Arc::clone(self),
            index,
            first: FIRST + u64::from(index) * RING,
        })
    }
}

/// The words of one ring.
#[derive(Debug, Clone)]
pub struct RingWords {
    words: Arc<Words>,
    index: u16,
    first: u64,
}

impl RingWords {
    fn head(&self, head: u16) -> Option<&AtomicU64> {
        (u64::from(head) < HEADS).then(|| self.words.word(self.first + 1 + u64::from(head)))
    }

    /// A chain is in flight; `order`, which is not 0, rises with each. One that was in flight before keeps the count of [`Self::ends`].
    pub fn take(&self, head: u16, order: u64) {
        if let Some(word) = self.head(head) {
            word.store(word.load(Ordering::Acquire) & !ORDER | order & ORDER, Ordering::Release);
        }
    }

    /// The device gets the request of a chain in flight, until [`Words::end_handling`].
    pub fn handle(&self, head: u16) {
        self.words.word(2).store(HANDLED | u64::from(self.index) << 16 | u64::from(head), Ordering::Release);
    }

    fn count_end(&self, head: u16) {
        let counted = |word: u64| (word != 0).then(|| word.saturating_add(END));
        if let Some(word) = self.head(head) {
            let _in_flight = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, counted);
        }
    }

    /// Processes that have ended while they handled this chain, which is in flight.
    pub fn ends(&self, head: u16) -> u64 {
        self.head(head).map_or(0, |word| word.load(Ordering::Acquire) / END)
    }

    /// The guest has it back.
    pub fn give_back(&self, head: u16) {
        #[cfg(test)]
        self.words.is_stored(Store::GiveBack(head));
        if let Some(word) = self.head(head) {
            word.store(0, Ordering::Release);
        }
    }

    /// No chain is in flight.
    pub fn clear(&self) {
        (0..=u16::MAX).map_while(|head| self.head(head)).for_each(|word| word.store(0, Ordering::Release));
    }

    /// The used index, once the words of all that it counts are 0.
    pub fn note_used(&self, index: u16) {
        #[cfg(test)]
        self.words.is_stored(Store::NoteUsed(index));
        self.words.word(self.first).store(u64::from(index), Ordering::Release);
    }

    /// The used index as it was noted last.
    pub fn used(&self) -> u16 {
        u16::try_from(self.words.word(self.first).load(Ordering::Acquire) & 0xffff).unwrap_or(0)
    }

    /// The heads in flight, in their order.
    pub fn heads(&self) -> Vec<u16> {
        let order = |head| self.head(head).map(|word| (word.load(Ordering::Acquire) & ORDER, head));
        let mut taken: Vec<(u64, u16)> =
            (0..=u16::MAX).map_while(order).filter(|(order, _)| *order != 0).collect();
        taken.sort_unstable();
        taken.into_iter().map(|(_, head)| head).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::BYTES;
    use super::Words;

    #[test]
    fn another_process_finds_what_is_in_flight_in_its_order() {
        let words = Arc::new(Words::new().unwrap());
        let ring = words.ring(63).unwrap();
        assert!(words.ring(64).is_none());
        for (order, head) in [(1, 9), (2, 1023), (3, 0), (4, 1024), (5, 17)] {
            ring.take(head, order);
        }
        ring.give_back(17);
        ring.give_back(1023);
        ring.take(1023, 6);
        ring.note_used(u16::MAX);
        words.set_busy(true);
        let other = Arc::new(Words::open(words.file().try_clone().unwrap()).unwrap());
        let found = other.ring(63).unwrap();
        assert_eq!((found.heads(), found.used(), other.is_busy()), (vec![9, 0, 1023], u16::MAX, true));
        assert!(other.ring(62).unwrap().heads().is_empty());
        ring.clear();
        assert!(found.heads().is_empty());
    }

    #[test]
    fn a_chain_counts_the_processes_that_ended_while_they_handled_it_until_the_guest_has_it_back() {
        let words = Arc::new(Words::new().unwrap());
        let (ring, other) = (words.ring(63).unwrap(), words.ring(1).unwrap());
        other.take(1023, 1);
        ring.take(7, 1);
        ring.take(1023, 2);
        for ends in 0..3 {
            assert_eq!((ring.ends(1023), ring.ends(7), other.ends(1023)), (ends, 0, 0));
            ring.handle(7);
            words.end_handling();
            words.count_end();
            ring.handle(1023);
            words.count_end();
            // It is repeated, behind another; and counts once.
            ring.take(1023, 3 + ends);
            assert_eq!(ring.heads(), [7, 1023]);
            words.count_end();
        }
        ring.give_back(1023);
        ring.handle(1023);
        words.count_end();
        ring.take(1023, 3);
        assert_eq!(ring.ends(1023), 0, "that is another chain");
        // What lies in the file is a claim.
        words.word(2).store(u64::MAX, super::Ordering::Release);
        words.count_end();
        words.word(super::FIRST + 63 * super::RING + 1 + 7).store(u64::MAX, super::Ordering::Release);
        ring.handle(7);
        words.count_end();
        assert_eq!(ring.ends(7), 255);
    }

    #[test]
    fn cont_14_words_that_are_none_are_refused() {
        let words = Words::new().unwrap();
        words.word(0).store(7, super::Ordering::Release);
        assert!(Words::open(words.file().try_clone().unwrap()).unwrap_err().to_string().contains("0x7"));
        let short = File::from(rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        short.set_len(BYTES - 8).unwrap();
        assert!(Words::open(short).unwrap_err().to_string().contains("bytes"));
    }
}

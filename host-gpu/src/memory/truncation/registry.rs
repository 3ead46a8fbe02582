//! The ranges of memory whose pages may go away, readable from a signal handler.
//!
//! Slots lie in chunks that are made once and stay for ever, so that reading takes no lock and frees nothing. A slot is
//! written under the mutex, and its version is odd meanwhile.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::sync::atomic::fence;

/// Slots of a chunk.
const CHUNK: usize = 1024;
/// Chunks that there can be: a million slots.
const CHUNKS: usize = 1024;

/// That of this process.
pub(super) static REGISTRY: Registry = Registry::new();

/// A range of memory, and the domain that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) domain: usize,
}

#[derive(Debug, Default)]
struct Slot {
    /// Odd while the rest is being changed.
    version: AtomicU64,
    start: AtomicUsize,
    /// Equal to `start` where nothing is registered.
    end: AtomicUsize,
    domain: AtomicUsize,
}

impl Slot {
    /// Only under the registry's mutex.
    fn set(&self, range: Found) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // PAIRS WITH the fence in `get`: a reader that sees one of the stores below sees the odd version.
        fence(Ordering::Release);
        self.start.store(range.start, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Relaxed);
        self.domain.store(range.domain, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }

    fn clear(&self) {
        self.set(Found { start: 0, end: 0, domain: 0 });
    }

    /// What is there, unless it is being changed: then it is not the range of the caller, which stands.
    fn get(&self) -> Option<Found> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let domain = self.domain.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let stands = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        stands.then_some(Found { start, end, domain })
    }
}

/// Items that are made in chunks, in order, and never freed.
#[derive(Debug)]
struct Table<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

impl<T: Default> Table<T> {
    const fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    fn get(&self, number: usize) -> Option<&T> {
        self.chunks.get(number / CHUNK)?.get()?.get(number % CHUNK)
    }

    /// The item, and its chunk where that is not there yet.
    fn make(&self, number: usize) -> Option<&T> {
        let chunk = self.chunks.get(number / CHUNK)?;
        chunk.get_or_init(|| (0..CHUNK).map(|_| T::default()).collect()).get(number % CHUNK)
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().map_while(OnceLock::get).flatten()
    }
}

/// Numbers that are given out, the lowest that is free first.
#[derive(Debug)]
struct Numbers {
    next: usize,
    free: Vec<usize>,
}

impl Numbers {
    const fn new() -> Self {
        Self { next: 0, free: Vec::new() }
    }

    fn take(&mut self) -> Option<usize> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let number = self.next;
        self.next = (number < CHUNK * CHUNKS).then_some(number + 1)?;
        Some(number)
    }
}

/// What is written under the mutex.
#[derive(Debug)]
struct Book {
    slots: Numbers,
    domains: Numbers,
    /// End and slot of each range, by its start. They do not overlap.
    ranges: BTreeMap<usize, (usize, usize)>,
}

#[derive(Debug)]
pub(super) struct Registry {
    slots: Table<Slot>,
    /// The address of the first fault of each domain; 0 without.
    faults: Table<AtomicUsize>,
    book: Mutex<Book>,
}

impl Registry {
    pub(super) const fn new() -> Self {
        let book = Book { slots: Numbers::new(), domains: Numbers::new(), ranges: BTreeMap::new() };
        Self { slots: Table::new(), faults: Table::new(), book: Mutex::new(book) }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new domain; `None` when all are taken.
    pub(super) fn add_domain(&self) -> Option<usize> {
        let number = self.book().domains.take()?;
        self.faults.make(number)?.store(0, Ordering::Relaxed);
        Some(number)
    }

    /// Only when no range of it is left.
    pub(super) fn remove_domain(&self, domain: usize) {
        self.book().domains.free.push(domain);
    }

    /// Registers a range; `None` when all slots are taken, or it has no end. Older ranges that it overlaps are void: they
    /// are unmapped by now, since there is something else in their place.
    pub(super) fn add(&self, start: usize, length: usize, domain: usize) -> Option<usize> {
        let end = start.checked_add(length)?;
        let mut book = self.book();
        let number = book.slots.take()?;
        let slot = self.slots.make(number)?;
        while let Some((&old, &(old_end, old_slot))) = book.ranges.range(..end).next_back()
            && old_end > start
        {
            book.ranges.remove(&old);
            self.slots.get(old_slot).into_iter().for_each(Slot::clear);
        }
        book.ranges.insert(start, (end, number));
        slot.set(Found { start, end, domain });
        Some(number)
    }

    /// Takes back what [`Self::add`] gave.
    pub(super) fn remove(&self, number: usize) {
        let Some(slot) = self.slots.get(number) else { return };
        let mut book = self.book();
        if let Some(range) = slot.get()
            && book.ranges.get(&range.start).is_some_and(|(_, its)| *its == number)
        {
            book.ranges.remove(&range.start);
        }
        slot.clear();
        book.slots.free.push(number);
    }

    /// The range that `address` lies in. Async-signal-safe.
    pub(super) fn find(&self, address: usize) -> Option<Found> {
        self.slots.iter().filter_map(Slot::get).find(|range| (range.start..range.end).contains(&address))
    }

    /// Notes a fault, if it is the domain's first. Async-signal-safe.
    pub(super) fn note_fault(&self, domain: usize, address: usize) {
        if let Some(fault) = self.faults.get(domain) {
            let _earlier = fault.compare_exchange(0, address, Ordering::Release, Ordering::Relaxed);
        }
    }

    pub(super) fn fault(&self, domain: usize) -> Option<usize> {
        let address = self.faults.get(domain).map_or(0, |fault| fault.load(Ordering::Acquire));
        (address != 0).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::CHUNK;
    use super::Found;
    use super::Registry;

    #[test]
    fn an_address_is_found_in_the_range_that_it_lies_in_and_in_no_other() {
        let registry = Box::new(Registry::new());
        let [first, second] = [(); 2].map(|()| registry.add_domain().unwrap());
        let low = registry.add(0x1000, 0x2000, first).unwrap();
        registry.add(0x3000, 0x1000, second).unwrap();
        let at = |address| registry.find(address).map(|range| range.domain);
        assert_eq!(
            [0xfff, 0x1000, 0x2fff, 0x3000, 0x3fff, 0x4000].map(at),
            [None, Some(first), Some(first), Some(second), Some(second), None]
        );
        registry.remove(low);
        assert_eq!([0x1000, 0x3000].map(at), [None, Some(second)]);
        assert!(registry.add(usize::MAX, 2, first).is_none());
    }

    #[test]
    fn a_new_range_voids_older_ones_that_it_overlaps_and_their_removal_leaves_it_alone() {
        let registry = Box::new(Registry::new());
        let [old, new] = [(); 2].map(|()| registry.add_domain().unwrap());
        let stale: Vec<_> =
            [0x1000, 0x2000, 0x4000].map(|start| registry.add(start, 0x1000, old).unwrap()).into();
        registry.add(0x1000, 0x2000, new).unwrap();
        let at = |address| registry.find(address).map(|range| range.domain);
        assert_eq!([0x1000, 0x2fff, 0x4000].map(at), [Some(new), Some(new), Some(old)]);
        stale.into_iter().for_each(|slot| registry.remove(slot));
        assert_eq!([0x1000, 0x2fff, 0x4000].map(at), [Some(new), Some(new), None]);
    }

    #[test]
    fn slots_are_used_again_and_there_can_be_more_than_one_chunk() {
        let registry = Box::new(Registry::new());
        let domain = registry.add_domain().unwrap();
        let place = |index: usize| 0x1000 * (index + 1);
        let slots: Vec<_> =
            (0..3 * CHUNK).map(|index| registry.add(place(index), 0x1000, domain).unwrap()).collect();
        for index in 0..3 * CHUNK {
            let found = Found { start: place(index), end: place(index + 1), domain };
            assert_eq!(registry.find(place(index) + 7), Some(found));
        }
        slots.iter().for_each(|slot| registry.remove(*slot));
        assert!(registry.find(place(0)).is_none());
        assert!(registry.add(place(0), 0x1000, domain).unwrap() < 3 * CHUNK);
    }

    #[test]
    fn the_first_fault_of_a_domain_is_kept() {
        let registry = Box::new(Registry::new());
        let [one, other] = [(); 2].map(|()| registry.add_domain().unwrap());
        registry.note_fault(one, 0x1234);
        registry.note_fault(one, 0x5678);
        assert_eq!((registry.fault(one), registry.fault(other)), (Some(0x1234), None));
        registry.remove_domain(one);
        assert_eq!(registry.add_domain(), Some(one));
        assert_eq!(registry.fault(one), None);
    }

    #[test]
    fn a_range_that_stands_is_found_whole_while_others_come_and_go() {
        let registry = Box::new(Registry::new());
        let [domain, others] = [(); 2].map(|()| registry.add_domain().unwrap());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let before = registry.add(0x100_0000, 0x1000, others).unwrap();
            let _stands = registry.add(0x5000, 0x3000, domain).unwrap();
            registry.remove(before);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // Torn, the halves of these two would be a range around the one that stands.
                    for (start, length) in [(0x1000, 0x1000), (0x9000, 0x9000)] {
                        let slot = registry.add(start, length, others).unwrap();
                        registry.remove(slot);
                    }
                }
            });
            for _ in 0..100_000 {
                assert_eq!(registry.find(0x6000), Some(Found { start: 0x5000, end: 0x8000, domain }));
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

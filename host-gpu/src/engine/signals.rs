//! FENCE_SIGNAL: stores that a CPU may wait for (UMS-134, UMS-136, UMS-141).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::fences;
use campanile_protocol::handshake::fence;
use campanile_protocol::handshake::signalled::Report;
use campanile_protocol::page_table::SegmentId;

use super::words::load;
use crate::event::Event;
use crate::memory::mapping::Mapping;
use crate::memory::segment::Place;
use crate::memory::segment::Segments;
use crate::node::signal::Signal;

/// What signals need: the shared block, and the way to wake the daemon. Owned by the execution thread.
#[derive(Debug)]
pub struct Signals {
    shared: Arc<Mapping>,
    event: Event,
}

impl Signals {
    /// Over the shared block; `event` interrupts the vGPU's thread.
    pub fn new(shared: Arc<Mapping>, event: Event) -> Self {
        Self { shared, event }
    }

    /// The number of the native fence whose value lies at `place`; none for any other memory.
    fn fence_at(segments: &Segments, place: &Place) -> Option<u32> {
        let of_fences = segments.get(SegmentId::FENCES)?;
        let is_value = Arc::ptr_eq(of_fences, &place.mapping) && place.offset.is_multiple_of(PAGE_SIZE);
        if is_value { u32::try_from(place.offset / PAGE_SIZE).ok() } else { None }
    }

    fn report(&self, index: u32) {
        let handle = load(&self.shared, fences::handle(index));
        let word = |offset| self.shared.word(offset);
        let words =
            [fences::SIGNALLED_WRITTEN, fences::SIGNALLED_TAKEN, fences::SIGNALLED_OVERFLOW].map(word);
        let [Some(written), Some(taken), Some(overflow)] = words else { return };
        let report = Report { written, taken, overflow, slots: fences::SIGNALLED_SLOTS };
        report.push(handle, |count| word(fences::signalled(count)));
        self.event.signal();
    }
}

impl Signal for Signals {
    fn signal(&self, segments: &Segments, place: &Place, value: u64) -> bool {
        let Some(word) = place.word(0) else { return false };
        let index = Self::fence_at(segments, place);
        let monitored = index.and_then(|index| self.shared.word(fences::monitored(index)));
        match (index, monitored) {
            (Some(index), Some(monitored)) => {
                if fence::signal(word, monitored, value) {
                    self.report(index);
                }
            }
            _ => word.store(value, Ordering::Release),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::engine::block::BLOCK_BYTES;
    use campanile_protocol::engine::fences;
    use campanile_protocol::handshake::fence::NOBODY;
    use campanile_protocol::page_table::SegmentId;

    use super::Signals;
    use crate::event::Event;
    use crate::memory::mapping::Access;
    use crate::memory::mapping::Mapping;
    use crate::memory::segment::Place;
    use crate::memory::segment::Segments;
    use crate::memory::vram::create_memfd;
    use crate::node::signal::Signal;

    fn mapping(bytes: u64) -> Arc<Mapping> {
        Arc::new(Mapping::new(create_memfd("test", bytes).unwrap(), 0, bytes, Access::ReadWrite).unwrap())
    }

    #[test]
    fn ums_134_ums_141_a_value_that_is_waited_for_is_reported_and_no_other_word_of_its_page_is() {
        let (shared, values, other) = (mapping(BLOCK_BYTES), mapping(4 * PAGE_SIZE), mapping(4 * PAGE_SIZE));
        let mut segments = Segments::default();
        segments.insert(SegmentId::FENCES, Arc::clone(&values));
        let event = Event::new().unwrap();
        let signals = Signals::new(Arc::clone(&shared), event.try_clone().unwrap());
        let word = |offset: u64| shared.word(offset).unwrap();
        word(fences::handle(2)).store(77, Ordering::Release);
        word(fences::monitored(2)).store(NOBODY, Ordering::Release);
        let reports = || word(fences::SIGNALLED_WRITTEN).load(Ordering::Acquire);
        let signal = |mapping: &Arc<Mapping>, offset: u64, value: u64| {
            let place = Place { mapping: Arc::clone(mapping), offset };
            assert!(signals.signal(&segments, &place, value));
            assert_eq!(mapping.word(offset).unwrap().load(Ordering::Acquire), value);
        };
        signal(&values, 2 * PAGE_SIZE, 4);
        assert_eq!((reports(), event.drain()), (0, false), "no thread waits");
        word(fences::monitored(2)).store(4, Ordering::Release);
        signal(&values, 2 * PAGE_SIZE + 8, 9);
        signal(&other, 2 * PAGE_SIZE, 9);
        signal(&values, 2 * PAGE_SIZE, 4);
        assert_eq!((reports(), event.drain()), (0, false), "neither of these is above what is waited for");
        signal(&values, 2 * PAGE_SIZE, 5);
        assert_eq!((reports(), event.drain()), (1, true));
        assert_eq!(word(fences::signalled(0)).load(Ordering::Acquire), 77);
    }
}

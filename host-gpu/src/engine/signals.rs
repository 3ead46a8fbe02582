//! FENCE_SIGNAL: stores that a CPU may wait for (UMS-134, UMS-136, UMS-141).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::fences;
use campanile_protocol::handshake::fence;
use campanile_protocol::handshake::signalled::Report;
use campanile_protocol::page_table::SegmentId;

use super::watch::load;
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

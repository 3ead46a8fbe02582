//! The segments that an engine can reach.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use campanile_protocol::page_table::SegmentId;

use super::local::DeviceFailed;
use super::local::LocalDevice;
use super::local::Side;
use super::mapping::Mapping;
use super::page_table::reader::Run;
use super::wants::Uses;
use super::wants::Wants;
use super::writes::Writes;

/// The segments of one vGPU, as one engine has them mapped.
#[derive(Debug, Default)]
pub struct Segments {
    vram: Option<Arc<Mapping>>,
    others: HashMap<SegmentId, Arc<Mapping>>,
    /// What was looked for and is not resident.
    pub wants: Wants,
    /// What was used.
    pub uses: Uses,
    /// What is written.
    pub writes: Writes,
    device: Option<RefCell<Box<dyn LocalDevice>>>,
    is_device_lost: Cell<bool>,
}

/// The device whose memory local memory is did not do what was asked; why is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotDone;

impl Segments {
    /// From now on local memory is a device's own.
    pub fn set_device(&mut self, device: Box<dyn LocalDevice>) {
        self.device = Some(RefCell::new(device));
    }

    /// Whether local memory is a device's own.
    pub fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// Whether that device has failed: all that is asked of it later fails, too.
    pub fn is_device_lost(&self) -> bool {
        self.is_device_lost.get()
    }

    /// What `work` makes of the device; none where there is none.
    fn with_device<T>(
        &self,
        work: impl FnOnce(&mut dyn LocalDevice) -> Result<T, DeviceFailed>,
    ) -> Option<Result<T, NotDone>> {
        let done = work(&mut **self.device.as_ref()?.borrow_mut());
        Some(done.map_err(|error| {
            log::warn!("local memory: {error}");
            self.is_device_lost.set(self.is_device_lost.get() || error.is_lost);
            NotDone
        }))
    }

    /// Has the device copy between two runs, one of which is local memory; none where a segment is not there.
    pub fn copy_by_device(&self, from: Run, to: Run, length: u64) -> Option<Result<(), NotDone>> {
        let side = |run: Run| {
            Some(match run.segment {
                SegmentId::LOCAL => Side::Local(run.offset),
                segment => {
                    let mapping = self.get(segment)?;
                    mapping.slice(run.offset, length)?;
                    Side::Segment(segment, mapping, run.offset)
                }
            })
        };
        let (from, to) = (side(from)?, side(to)?);
        self.with_device(|device| device.copy(from, to, length))
    }

    /// Has the device fill a run of local memory with a word.
    pub fn fill_by_device(&self, run: Run, word: u32) -> Option<Result<(), NotDone>> {
        self.with_device(|device| device.fill(run.offset, run.length, word))
    }

    /// Has the device read a run of local memory.
    pub fn read_by_device(&self, run: Run, into: &mut [u8]) -> Option<Result<(), NotDone>> {
        self.with_device(|device| device.read(run.offset, into))
    }

    /// Adds a segment, or replaces what had its number.
    pub fn insert(&mut self, id: SegmentId, mapping: Arc<Mapping>) {
        self.forget(id);
        if id == SegmentId::VRAM {
            self.vram = Some(mapping);
        } else {
            self.others.insert(id, mapping);
        }
    }

    /// Takes a segment away.
    pub fn remove(&mut self, id: SegmentId) {
        self.forget(id);
        self.others.remove(&id);
    }

    fn forget(&self, id: SegmentId) {
        if let Some(device) = &self.device {
            device.borrow_mut().forget(id);
        }
    }

    /// The mapping of a segment.
    pub fn get(&self, id: SegmentId) -> Option<&Arc<Mapping>> {
        if id == SegmentId::VRAM { self.vram.as_ref() } else { self.others.get(&id) }
    }

    /// Bytes of a segment; zero where there is none.
    pub fn length(&self, id: SegmentId) -> u64 {
        self.get(id).map_or(0, |mapping| mapping.len())
    }

    /// Where a run lies, if it lies inside its segment.
    pub fn place(&self, run: Run) -> Option<Place> {
        let mapping = self.get(run.segment)?;
        mapping.slice(run.offset, run.length)?;
        Some(Place { mapping: Arc::clone(mapping), offset: run.offset })
    }
}

/// A place in a mapped segment, kept mapped while this lives.
#[derive(Debug, Clone)]
pub struct Place {
    /// The mapping.
    pub mapping: Arc<Mapping>,
    /// Bytes into it.
    pub offset: u64,
}

impl Place {
    /// The word `bytes` further on.
    pub fn word(&self, bytes: u64) -> Option<&AtomicU64> {
        self.mapping.word(self.offset.checked_add(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use std::sync::Mutex;

    use super::*;
    use crate::memory::mapping::Access;
    use crate::memory::vram::create_memfd;

    /// A device that does what it is told, or says why not, and notes what it was asked to forget.
    #[derive(Debug, Default)]
    struct Fake {
        fails: Option<DeviceFailed>,
        forgotten: Arc<Mutex<Vec<SegmentId>>>,
    }

    impl LocalDevice for Fake {
        fn copy(&mut self, _from: Side<'_>, _to: Side<'_>, _length: u64) -> Result<(), DeviceFailed> {
            self.fails.clone().map_or(Ok(()), Err)
        }

        fn fill(&mut self, _offset: u64, _length: u64, _word: u32) -> Result<(), DeviceFailed> {
            self.fails.clone().map_or(Ok(()), Err)
        }

        fn read(&mut self, _offset: u64, _into: &mut [u8]) -> Result<(), DeviceFailed> {
            self.fails.clone().map_or(Ok(()), Err)
        }

        fn forget(&mut self, segment: SegmentId) {
            self.forgotten.lock().unwrap().push(segment);
        }
    }

    const RUN: Run = Run { segment: SegmentId::LOCAL, offset: 4096, length: 64 };

    fn mapping() -> Arc<Mapping> {
        Arc::new(Mapping::new(create_memfd("segment", 4096).unwrap(), 0, 4096, Access::ReadWrite).unwrap())
    }

    #[test]
    fn local_memory_of_a_device_is_no_place_of_the_cpu_and_none_is_without_a_device() {
        let mut segments = Segments::default();
        assert!(!segments.has_device() && segments.fill_by_device(RUN, 1).is_none());
        segments.set_device(Box::new(Fake::default()));
        assert!(segments.has_device() && segments.place(RUN).is_none());
        assert_eq!(segments.fill_by_device(RUN, 1), Some(Ok(())));
        assert_eq!(segments.read_by_device(RUN, &mut [0; 64]), Some(Ok(())));
        let visible = Run { segment: SegmentId::VRAM, offset: 0, length: 64 };
        assert_eq!(segments.copy_by_device(RUN, visible, 64), None, "that segment is not there");
        segments.insert(SegmentId::VRAM, mapping());
        assert_eq!(segments.copy_by_device(RUN, visible, 64), Some(Ok(())));
        let beyond = Run { offset: 4096 - 32, ..visible };
        assert_eq!(segments.copy_by_device(beyond, RUN, 64), None, "it ends before that");
    }

    #[test]
    fn a_device_is_lost_when_it_failed_and_not_when_it_refused() {
        for is_lost in [false, true] {
            let mut segments = Segments::default();
            let fails = Some(DeviceFailed { text: "why".to_owned(), is_lost });
            segments.set_device(Box::new(Fake { fails, ..Fake::default() }));
            assert!(!segments.is_device_lost());
            assert_eq!(segments.fill_by_device(RUN, 1), Some(Err(NotDone)));
            assert_eq!(segments.is_device_lost(), is_lost);
        }
    }

    #[test]
    fn a_device_forgets_segments_that_go_and_those_whose_number_another_gets() {
        let (mut segments, forgotten) = (Segments::default(), Arc::default());
        segments.set_device(Box::new(Fake { fails: None, forgotten: Arc::clone(&forgotten) }));
        segments.insert(SegmentId(3), mapping());
        segments.insert(SegmentId(3), mapping());
        segments.remove(SegmentId(3));
        assert_eq!(*forgotten.lock().unwrap(), [SegmentId(3); 3]);
    }
}

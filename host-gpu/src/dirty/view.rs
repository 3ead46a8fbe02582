//! What the daemon sees of one engine process: where it has memory mapped, and how it is found out what it wrote there.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::page_table::SegmentId;

use super::basis::Pages;
use super::pagemap::Pagemap;
use super::planes::Planes;

/// How its writes are found out.
#[derive(Debug)]
pub enum How {
    /// Its mappings are write-protected; video memory begins at this address of it.
    Protected {
        /// Of the process.
        pagemap: Pagemap,
        /// Where it has video memory.
        vram: u64,
    },
    /// It says so itself.
    Planes(Arc<Planes>),
    /// Not known: whatever it could write to counts as written, in each query (DIRTY-50).
    Unknown,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    serial: u64,
    length: u64,
    /// None while it is not known, or where the kernel would not protect it: then all of it counts as written.
    address: Option<u64>,
}

/// An engine process, as far as it writes to memory. It has written nothing before [`Self::begin`].
#[derive(Debug)]
pub struct EngineView {
    how: OnceLock<How>,
    vram_bytes: u64,
    segments: Mutex<BTreeMap<SegmentId, Segment>>,
}

impl EngineView {
    /// Of a process that is about to start, over `vram_bytes` of video memory.
    pub fn new(vram_bytes: u64) -> Self {
        Self { how: OnceLock::new(), vram_bytes, segments: Mutex::default() }
    }

    /// It has come up, tracked in this way, and is told to begin after this. Once only.
    pub fn begin(&self, how: How) {
        // A second time changes nothing.
        let _first = self.how.set(how);
    }

    fn segments(&self) -> MutexGuard<'_, BTreeMap<SegmentId, Segment>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was told, by the request with this serial, to map a segment of guest RAM of `length` bytes.
    pub fn announce_segment(&self, id: SegmentId, serial: u64, length: u64) {
        self.segments().insert(id, Segment { serial, length, address: None });
    }

    /// It has mapped what that request named at `address`, protected; without one, unprotected. An answer that comes when
    /// the number belongs to another segment says nothing of that.
    pub fn segment_is_mapped(&self, id: SegmentId, serial: u64, address: Option<u64>) {
        if let Some(segment) = self.segments().get_mut(&id).filter(|segment| segment.serial == serial) {
            segment.address = address;
        }
    }

    /// It is to unmap it; nothing of it is written any more.
    pub fn remove_segment(&self, id: SegmentId) {
        self.segments().remove(&id);
    }

    /// Takes out what was written in `length` bytes of video memory from `offset` on, whole pages, and calls `found` with
    /// each run of it (byte, bytes).
    ///
    /// # Errors
    /// What was noted is lost, or not to be had: all may have been written.
    pub fn harvest(&self, offset: u64, length: u64, mut found: impl FnMut(u64, u64)) -> io::Result<()> {
        let length = length.min(self.vram_bytes.saturating_sub(offset));
        let Some(how) = self.how.get() else { return Ok(()) };
        match how {
            How::Protected { pagemap, vram } => {
                pagemap.scan(vram.saturating_add(offset), length, |at, length| {
                    found(at.saturating_sub(*vram), length);
                })
            }
            How::Planes(planes) => {
                planes.take(Pages::touched(offset, length, PAGE_SIZE), found);
                Ok(())
            }
            How::Unknown => {
                found(offset, length);
                Ok(())
            }
        }
    }

    /// Takes out what was written to segments of guest RAM, or to one of them, and calls `found` with each run: segment,
    /// byte, bytes. Of a segment of which that cannot be known, that is all of it.
    pub fn sweep(&self, only: Option<SegmentId>, mut found: impl FnMut(SegmentId, u64, u64)) {
        let Some(how) = self.how.get() else { return };
        // Held, so that none is unmapped and another mapped there meanwhile.
        let segments = self.segments();
        let wanted = segments.iter().filter(|(id, _)| only.is_none_or(|only| only == **id));
        for (&id, segment) in wanted {
            match (how, segment.address) {
                (How::Protected { pagemap, .. }, Some(address)) => {
                    let scanned = pagemap.scan(address, segment.length, |at, length| {
                        found(id, at.saturating_sub(address), length);
                    });
                    if scanned.is_err() {
                        found(id, 0, segment.length);
                    }
                }
                (How::Planes(planes), _) => {
                    planes.take_segment(id.0, segment.length, |at, length| found(id, at, length));
                }
                (How::Protected { .. }, None) | (How::Unknown, _) => found(id, 0, segment.length),
            }
        }
    }

    /// It has ended, and was looked at for the last time.
    pub fn close(&self) {
        if let Some(How::Planes(planes)) = self.how.get() {
            planes.close(self.segments().keys().map(|id| id.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::engine::written::HELD;
    use campanile_protocol::engine::written::Layout;
    use campanile_protocol::engine::written::TOUCHED;
    use campanile_protocol::page_table::SegmentId;

    use super::EngineView;
    use super::How;
    use super::Pagemap;
    use super::Planes;
    use crate::dirty::protect::Guard;
    use crate::memory::mapping::Access;
    use crate::memory::mapping::Mapping;
    use crate::memory::vram::create_memfd;

    const ONE: SegmentId = SegmentId(1);
    const TWO: SegmentId = SegmentId(2);

    fn swept(view: &EngineView, only: Option<SegmentId>) -> Vec<(u16, u64, u64)> {
        let mut found = Vec::new();
        view.sweep(only, |id, at, length| found.push((id.0, at / PAGE_SIZE, length / PAGE_SIZE)));
        found
    }

    fn with_two_segments(how: Option<How>) -> EngineView {
        let view = EngineView::new(0);
        view.announce_segment(ONE, 7, 4 * PAGE_SIZE);
        view.announce_segment(TWO, 8, 2 * PAGE_SIZE);
        if let Some(how) = how {
            view.begin(how);
        }
        view
    }

    #[test]
    fn dirty_50_of_a_segment_of_which_nothing_is_known_all_counts_as_written() {
        assert!(swept(&with_two_segments(None), None).is_empty(), "it has not begun");
        let view = with_two_segments(Some(How::Unknown));
        assert_eq!(swept(&view, None), [(1, 0, 4), (2, 0, 2)]);
        assert_eq!(swept(&view, Some(TWO)), [(2, 0, 2)]);
        view.remove_segment(TWO);
        assert_eq!(swept(&view, None), [(1, 0, 4)]);
        assert!(swept(&view, Some(TWO)).is_empty());
    }

    #[test]
    fn what_an_engine_notes_of_segments_is_swept_and_what_is_under_way_ends_with_it() {
        let planes = Arc::new(Planes::new(64 * PAGE_SIZE).unwrap());
        let view = with_two_segments(Some(How::Planes(Arc::clone(&planes))));
        let layout = Layout::new(64 * PAGE_SIZE);
        let engine =
            Mapping::new(planes.file().try_clone().unwrap(), 0, layout.bytes(), Access::ReadWrite).unwrap();
        let note = |plane, id: SegmentId, bits| {
            engine.word(layout.segment(plane, id.0)).unwrap().store(bits, Ordering::Relaxed);
        };
        note(TOUCHED, ONE, 0b100);
        note(HELD, TWO, 0b1);
        assert_eq!(swept(&view, None), [(1, 2, 1), (2, 0, 1)]);
        assert_eq!(swept(&view, None), [(2, 0, 1)], "under way still");
        view.close();
        assert!(swept(&view, None).is_empty());
    }

    #[test]
    fn dirty_50_stores_to_a_segment_that_is_mapped_protected_are_found_once() {
        let Ok(guard) = Guard::new() else {
            eprintln!("skipped: this kernel notes no stores (it needs to be Linux 6.7)");
            return;
        };
        let file = create_memfd("test", 4 * PAGE_SIZE).unwrap();
        let map = || Mapping::new(file.try_clone().unwrap(), 0, 4 * PAGE_SIZE, Access::ReadWrite).unwrap();
        let (mapping, unprotected) = (map(), map());
        let address = mapping.host_pointer().addr() as u64;
        guard.protect(address, 4 * PAGE_SIZE).unwrap();
        let view = with_two_segments(Some(How::Protected { pagemap: Pagemap::own().unwrap(), vram: 0 }));
        assert_eq!(swept(&view, Some(ONE)), [(1, 0, 4)], "it is not known where it is mapped");
        view.segment_is_mapped(ONE, 6, Some(address));
        assert_eq!(swept(&view, Some(ONE)), [(1, 0, 4)], "the answer is of an earlier segment");
        view.segment_is_mapped(ONE, 7, Some(address));
        assert!(swept(&view, Some(ONE)).is_empty());
        mapping.slice(3 * PAGE_SIZE, 1).unwrap().copy_from(&[1u8]);
        assert_eq!(swept(&view, Some(ONE)), [(1, 3, 1)]);
        assert!(swept(&view, Some(ONE)).is_empty());
        view.segment_is_mapped(TWO, 8, None);
        assert_eq!(swept(&view, None), [(2, 0, 2)], "it is mapped unprotected");
        // Where the kernel has noted nothing all counts.
        view.segment_is_mapped(TWO, 8, Some(unprotected.host_pointer().addr() as u64));
        assert_eq!(swept(&view, None), [(2, 0, 2)]);
    }
}

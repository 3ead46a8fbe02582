//! The video memory of one vGPU.

use std::fs::File;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::dirty::basis::Range;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::page_table::SegmentId;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::in_device::InDevice;
use super::ranges::Ranges;
use super::store::Store;

/// Largest aperture (design §10.4).
pub const MAX_APERTURE: u64 = 256 << 20;

/// Bytes behind the video memory that save areas lie in, and nothing else: no guest can take or hold them, so that whatever
/// a guest holds, contexts find room for what they need to run. More than all engines of a vGPU run with at a time.
pub const AREA_REGION: u64 = 1 << 20;

/// Bytes for each dirty bit.
const DIRTY_PAGE: u64 = PAGE_SIZE;

/// Number of the segment that is video memory, for dirty tracking.
pub const VRAM_SEGMENT: u32 = SegmentId::VRAM.0 as u32;

/// Where an allocation lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the aperture, at an offset that the guest chose.
    Aperture(u64),
    /// In the rest of the video memory.
    Local(u64),
    /// Behind the local memory, where save areas lie.
    Area(u64),
    /// Evicted: in host memory, where no engine reaches it.
    Host(u64),
}

impl Place {
    /// Byte offset in the video memory, or in the store of what is evicted.
    pub const fn offset(self) -> u64 {
        match self {
            Self::Aperture(offset) | Self::Local(offset) | Self::Area(offset) | Self::Host(offset) => offset,
        }
    }

    /// Whether its contents are seen by a device alone.
    pub(super) fn is_hidden(self, memory: &VideoMemory) -> bool {
        memory.device.is_some() && matches!(self, Self::Local(_))
    }
}

/// The memfd, its regions, and which pages were ever handed out.
#[derive(Debug)]
pub struct VideoMemory {
    file: File,
    mapping: Arc<Mapping>,
    length: u64,
    aperture_bytes: u64,
    aperture: Ranges,
    pub(super) local: Ranges,
    /// Where local memory lies that is a device's own; then the file has a hole there.
    pub(super) device: Option<InDevice>,
    pub(super) areas: Ranges,
    store: Store,
    pub(super) touched: Vec<bool>,
    tracker: Arc<Tracker>,
}

impl VideoMemory {
    /// `length` bytes, a multiple of two pages; at most half of it is aperture. At most `commit_limit` bytes are in use at a time, here and
    /// evicted. It is zero, and what is written to it is tracked from here on (DIRTY-34).
    pub fn new(length: u64, commit_limit: u64, tracking: Method) -> io::Result<Self> {
        let file = create_memfd("campanile-vram", Self::file_bytes_of(length))?;
        let store = Store::new(Self::store_bytes(length, commit_limit), tracking)?;
        Self::over(file, length, store, tracking)
    }

    /// Bytes of the memory that what is evicted lies in, beside a video memory of `length` bytes of which at most
    /// `commit_limit` are in use. Room for what is allowed is found as long as half of it is free, or nearly always. It
    /// costs addresses only.
    pub const fn store_bytes(length: u64, commit_limit: u64) -> u64 {
        let most = if commit_limit > length { commit_limit } else { length };
        most.saturating_mul(2)
    }

    /// Bytes of the file of a video memory of `length` bytes: save areas lie behind it.
    pub const fn file_bytes_of(length: u64) -> u64 {
        length.saturating_add(AREA_REGION)
    }

    /// Bytes of the aperture of a video memory of `length` bytes.
    pub const fn aperture_of(length: u64) -> u64 {
        let half = length / 2;
        (if half < MAX_APERTURE { half } else { MAX_APERTURE }) / PAGE_SIZE * PAGE_SIZE
    }

    /// Memory that was filled elsewhere: `vram` of [`Self::file_bytes_of`] `length`, and `evicted` of [`Self::store_bytes`]. Nothing is
    /// allocated in it yet; what an allocation does not get back by its place is zeroed when it is handed out.
    ///
    /// # Errors
    /// A file has another length, or cannot be mapped or examined.
    pub fn filled(
        vram: File,
        evicted: File,
        length: u64,
        commit_limit: u64,
        tracking: Method,
    ) -> io::Result<Self> {
        let store_bytes = Self::store_bytes(length, commit_limit);
        for (name, file, bytes) in
            [("vram", &vram, Self::file_bytes_of(length)), ("evicted", &evicted, store_bytes)]
        {
            let found = file.metadata()?.len();
            if found != bytes {
                return Err(io::Error::other(format!("{name}: {found} bytes, not {bytes}")));
            }
        }
        let mut memory = Self::over(vram, length, Store::over(evicted, store_bytes, tracking)?, tracking)?;
        memory.note_filled()?;
        Ok(memory)
    }

    /// Notes every page that has something in it, whatever is said of it.
    fn note_filled(&mut self) -> io::Result<()> {
        let mut at = 0;
        loop {
            let start = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Ok(start) => start,
                // Nothing but a hole is left.
                Err(Errno::NXIO) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            };
            let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start))?;
            let first = start / PAGE_SIZE * PAGE_SIZE;
            self.touch(first, end.next_multiple_of(PAGE_SIZE).min(self.file_bytes()).saturating_sub(first));
            at = end;
        }
    }

    fn over(file: File, length: u64, store: Store, tracking: Method) -> io::Result<Self> {
        let bytes = Self::file_bytes_of(length);
        let mapping =
            Mapping::new(file.try_clone()?, 0, bytes, Access::ReadWrite).map_err(io::Error::other)?;
        let aperture_bytes = Self::aperture_of(length);
        let tracker = Tracker::new(VRAM_SEGMENT, &file, bytes, DIRTY_PAGE, tracking)?;
        let pages = usize::try_from(bytes / PAGE_SIZE).map_err(io::Error::other)?;
        Ok(Self {
            file,
            mapping: Arc::new(mapping),
            length,
            aperture_bytes,
            aperture: Ranges::new(0, aperture_bytes),
            local: Ranges::new(aperture_bytes, length - aperture_bytes),
            device: None,
            areas: Ranges::new(length, AREA_REGION),
            store,
            touched: vec![false; pages],
            tracker: Arc::new(tracker),
        })
    }

    /// Its local memory, where that is a device's.
    pub fn device(&self) -> Option<&InDevice> {
        self.device.as_ref()
    }

    /// Whether a place of `length` bytes lies in its region, taken or free: whole pages.
    pub fn has_place(&self, place: Place, length: u64) -> bool {
        let region = match place {
            Place::Aperture(_) => 0..self.aperture_bytes,
            Place::Local(_) => self.aperture_bytes..self.length(),
            Place::Area(_) => self.length()..self.file_bytes(),
            Place::Host(_) => 0..self.store.mapping().len(),
        };
        let end = place.offset().checked_add(length);
        let is_whole = place.offset().is_multiple_of(PAGE_SIZE) && length.is_multiple_of(PAGE_SIZE);
        is_whole && place.offset() >= region.start && end.is_some_and(|end| end <= region.end)
    }

    /// Takes exactly this place, with what is in it; false where it is not all free, or outside of its region.
    pub(super) fn take_place(&mut self, place: Place, length: u64) -> bool {
        let taken = self.has_place(place, length)
            && match place {
                Place::Aperture(offset) => self.aperture.reserve(offset, length),
                Place::Local(offset) => self.local.reserve(offset, length),
                Place::Area(offset) => self.areas.reserve(offset, length),
                Place::Host(offset) => self.store.reserve(offset, length),
            };
        if taken && !matches!(place, Place::Host(_)) {
            self.touch(place.offset(), length);
        }
        if taken && matches!(place, Place::Aperture(_)) {
            self.tracker.set_cpu_visible(Range { offset: place.offset(), length }, true);
        }
        taken
    }

    /// Nothing is allocated any more; contents stay.
    pub(super) fn forget_places(&mut self) {
        self.tracker.set_cpu_visible(Range { offset: 0, length: self.aperture_bytes }, false);
        self.aperture = Ranges::new(0, self.aperture_bytes);
        self.local = Ranges::new(self.aperture_bytes, self.length() - self.aperture_bytes);
        if let Some(device) = &self.device {
            device.take_out_of(&mut self.local);
        }
        self.areas = Ranges::new(self.length(), AREA_REGION);
        self.store.forget();
    }

    /// The file that what is evicted lies in.
    pub fn evicted_file(&self) -> &File {
        self.store.file()
    }

    /// The file, for engines and for the window.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The daemon's mapping of all of it.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// What is written to it. A caller that stores through [`Self::mapping`] tells it, afterwards.
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.tracker
    }

    /// Tracks what is written to memory for what is evicted.
    pub fn evicted_tracker(&self) -> &Arc<Tracker> {
        self.store.tracker()
    }

    /// Notes that the daemon has stored `length` bytes at byte `offset` of what a place is in.
    pub fn mark(&self, place: Place, offset: u64, length: u64) {
        let tracker = match place {
            Place::Aperture(_) | Place::Local(_) | Place::Area(_) => &self.tracker,
            Place::Host(_) => self.store.tracker(),
        };
        tracker.mark(offset, length);
    }

    /// Bytes that allocations of guests lie in.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of the file: those, and the region of save areas.
    pub fn file_bytes(&self) -> u64 {
        self.mapping.len()
    }

    /// Bytes of the aperture, which lies at the head.
    pub fn aperture_bytes(&self) -> u64 {
        self.aperture_bytes
    }

    /// Takes zeroed memory outside the aperture.
    pub fn allocate_local(&mut self, length: u64) -> Option<Place> {
        let offset = self.local.allocate(length)?;
        match self.device {
            None => self.hand_out(offset, length),
            // What is free of a device's memory is zero.
            Some(_) => self.touch(offset, length),
        }
        Some(Place::Local(offset))
    }

    /// Takes memory outside the aperture for what is copied there whole.
    pub fn take_local(&mut self, length: u64) -> Option<Place> {
        let offset = self.local.allocate(length)?;
        self.touch(offset, length);
        Some(Place::Local(offset))
    }

    /// Takes memory at `offset` outside the aperture for what is copied there whole.
    pub fn reserve_local(&mut self, offset: u64, length: u64) -> Option<Place> {
        if !self.local.reserve(offset, length) {
            return None;
        }
        self.touch(offset, length);
        Some(Place::Local(offset))
    }

    /// Takes room for what is evicted.
    pub fn take_host(&mut self, length: u64) -> Option<Place> {
        self.store.take(length).map(Place::Host)
    }

    /// Free memory outside the aperture.
    pub fn local(&self) -> &Ranges {
        &self.local
    }

    /// Bytes of the aperture that are free.
    pub fn aperture_free(&self) -> u64 {
        self.aperture.free_bytes()
    }

    /// Bytes that are evicted.
    pub fn evicted_bytes(&self) -> u64 {
        self.store.used()
    }

    /// Takes zeroed memory at `offset` of the aperture.
    pub fn reserve_aperture(&mut self, offset: u64, length: u64) -> Option<Place> {
        if !self.aperture.reserve(offset, length) {
            return None;
        }
        self.hand_out(offset, length);
        self.tracker.set_cpu_visible(Range { offset, length }, true);
        Some(Place::Aperture(offset))
    }

    /// Takes memory back.
    pub fn release(&mut self, place: Place, length: u64) {
        match place {
            Place::Aperture(offset) => {
                self.tracker.set_cpu_visible(Range { offset, length }, false);
                self.aperture.release(offset, length);
            }
            Place::Local(offset) => match &mut self.device {
                Some(device) => device.keep(offset, length),
                None => self.local.release(offset, length),
            },
            Place::Area(offset) => self.areas.release(offset, length),
            Place::Host(offset) => self.store.release(offset, length),
        }
    }

    /// Copies an allocation to another place.
    pub fn copy(&self, from: Place, to: Place, length: u64) {
        let source = self.mapping_of(from).slice(from.offset(), length);
        if let Some((source, target)) = source.zip(self.mapping_of(to).slice(to.offset(), length)) {
            source.copy_to_volatile_slice(target);
            self.mark(to, to.offset(), length);
        }
    }

    /// The daemon's mapping of what a place is in.
    pub fn mapping_of(&self, place: Place) -> &Arc<Mapping> {
        match place {
            Place::Aperture(_) | Place::Local(_) | Place::Area(_) => &self.mapping,
            Place::Host(_) => self.store.mapping(),
        }
    }

    /// Notes that a range was in use.
    pub(super) fn touch(&mut self, offset: u64, length: u64) {
        let page = |at: u64| usize::try_from(at / PAGE_SIZE).unwrap_or(usize::MAX);
        if let Some(touched) = self.touched.get_mut(page(offset)..page(offset + length)) {
            touched.fill(true);
        }
    }

    /// Zeroes the pages of a range that was in use before.
    pub(super) fn hand_out(&mut self, offset: u64, length: u64) {
        const ZERO: [u8; 4096] = [0; 4096];
        const _: () = assert!(ZERO.len() as u64 == PAGE_SIZE, "a page of zeroes");
        let mut at = offset;
        while at < offset + length {
            let touched = usize::try_from(at / PAGE_SIZE).ok().and_then(|page| self.touched.get_mut(page));
            if let Some(touched) = touched {
                if *touched && let Some(slice) = self.mapping.slice(at, PAGE_SIZE) {
                    slice.copy_from(&ZERO);
                    self.tracker.mark(at, PAGE_SIZE);
                }
                *touched = true;
            }
            at += PAGE_SIZE;
        }
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::PAGE_SIZE;

    use super::Method;
    use super::Place;
    use super::VideoMemory;

    #[test]
    fn what_another_wrote_is_zero_when_handed_out_again() {
        let mut memory = VideoMemory::new(8 * PAGE_SIZE, 0, Method::Off).unwrap();
        let place = memory.allocate_local(2 * PAGE_SIZE).unwrap();
        memory.mapping().slice(place.offset(), 2 * PAGE_SIZE).unwrap().copy_from(&[0xa5u8; 8192]);
        memory.release(place, 2 * PAGE_SIZE);
        let again = memory.allocate_local(2 * PAGE_SIZE).unwrap();
        assert_eq!(again, place);
        let mut bytes = vec![1u8; 8192];
        memory.mapping().slice(again.offset(), 2 * PAGE_SIZE).unwrap().copy_to(&mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn aperture_and_local_memory_do_not_meet() {
        let mut memory = VideoMemory::new(8 * PAGE_SIZE, 0, Method::Off).unwrap();
        assert_eq!(memory.aperture_bytes(), 4 * PAGE_SIZE);
        assert!(memory.reserve_aperture(0, 4 * PAGE_SIZE).is_some());
        assert!(memory.reserve_aperture(PAGE_SIZE, PAGE_SIZE).is_none());
        assert!(memory.reserve_aperture(4 * PAGE_SIZE, PAGE_SIZE).is_none(), "past the aperture");
        assert_eq!(memory.allocate_local(4 * PAGE_SIZE), Some(Place::Local(4 * PAGE_SIZE)));
        assert_eq!(memory.allocate_local(PAGE_SIZE), None);
    }
}

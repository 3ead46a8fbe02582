//! The tracker of one memory of one vGPU.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use super::basis::Pages;
use super::basis::Range;
use super::basis::Subrange;
use super::caps::Caps;
use super::error::DirtyError;
use super::marks::Marks;
use super::method::Method;
use super::requests::BasisHandle;
use super::requests::Requests;
use super::view::EngineView;
use super::visible::Hasher;
use super::visible::Visible;

/// An engine process that is attached; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineKey(u64);

/// How an engine process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// It is stopped, or has ended and left planes: look once more.
    Look,
    /// Nothing can be known of what it wrote: all of it counts (design §10.6).
    Unscanned,
}

/// Tracks writes to one memory. Usable from any thread; see the folder's picture.
#[derive(Debug)]
pub struct Tracker {
    segment: u32,
    file: File,
    length: u64,
    page_size: u64,
    method: Method,
    marks: Marks,
    hasher: Hasher,
    whole: BasisHandle,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    requests: Requests,
    engines: BTreeMap<EngineKey, Arc<EngineView>>,
    attached: u64,
    visible: Visible,
}

impl Tracker {
    /// Of segment `segment`, which is all of `file`: `length` bytes, a bit for each `page_size` (a power of two, at
    /// least 4096; DIRTY-06), which divides `length`. All of it is tracked from here on (DIRTY-31, DIRTY-34): see
    /// [`Self::whole`].
    ///
    /// # Errors
    /// `InvalidInput` for a size that breaks a rule; no memory, descriptors or random bytes.
    pub fn new(segment: u32, file: &File, length: u64, page_size: u64, method: Method) -> io::Result<Self> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        if !page_size.is_power_of_two() || page_size < super::caps::SMALLEST_PAGE {
            return Err(invalid(format!("a dirty bit for each {page_size} bytes")));
        }
        if length == 0 || !length.is_multiple_of(page_size) {
            return Err(invalid(format!("{length} bytes are no whole pages of {page_size}")));
        }
        let pages = length / page_size;
        let mut requests = Requests::new(pages, page_size);
        let whole = requests.create(&[Range { offset: 0, length }]).map_err(io::Error::other)?;
        if method != Method::Off {
            requests.start(whole).map_err(io::Error::other)?;
        }
        let visible = Visible::new(pages);
        Ok(Self {
            segment,
            file: file.try_clone()?,
            length,
            page_size,
            method,
            marks: Marks::new(pages),
            hasher: Hasher::new()?,
            whole,
            state: Mutex::new(State { requests, engines: BTreeMap::new(), attached: 0, visible }),
        })
    }

    /// What it can do (DIRTY-02, DIRTY-03, DIRTY-06).
    pub fn caps(&self) -> Caps {
        let is_on = self.method != Method::Off;
        Caps { supported: is_on, performant: is_on, page_size: self.page_size, method: self.method }
    }

    /// Bytes of the memory.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The number of the segment.
    pub fn segment(&self) -> u32 {
        self.segment
    }

    /// The basis of the whole memory, which is tracked since the memory was made, zero (DIRTY-31, DIRTY-34). Who queries it
    /// without clearing learns all that was ever written; bases of one's own tell what was written since.
    pub fn whole(&self) -> BasisHandle {
        self.whole
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tracked(&self) -> Result<MutexGuard<'_, State>, DirtyError> {
        if self.method == Method::Off { Err(DirtyError::NotImplemented) } else { Ok(self.lock()) }
    }

    fn all(&self) -> Pages {
        Pages { first: 0, count: self.length / self.page_size }
    }

    /// The daemon has written `length` bytes at `offset`. Called after the write, from any thread, and never waits.
    pub fn mark(&self, offset: u64, length: u64) {
        if self.method != Method::Off {
            self.marks.set(Pages::touched(offset, length, self.page_size));
        }
    }

    /// The guest's CPU can write this range from here on, or, where not `visible`, no longer.
    pub fn set_cpu_visible(&self, range: Range, visible: bool) {
        if self.method == Method::Off {
            return;
        }
        let pages = Pages::touched(range.offset, range.length, self.page_size);
        if visible {
            self.lock().visible.show(pages);
        } else {
            self.lock().visible.hide(pages);
            // What it wrote last, nobody compares any more.
            self.marks.set(pages);
        }
    }

    /// An engine process begins to write to this memory; called before it is told to.
    pub fn attach(&self, engine: Arc<EngineView>) -> EngineKey {
        let mut state = self.lock();
        state.attached += 1;
        let key = EngineKey(state.attached);
        state.engines.insert(key, engine);
        key
    }

    /// An engine process has ended, or is stopped and is never continued. What it wrote is carried over. False where that
    /// could not be known, and all of the memory counts as written.
    pub fn detach(&self, key: EngineKey, last: Last) -> bool {
        let all = self.all();
        let mut state = self.lock();
        let Some(engine) = state.engines.remove(&key) else { return true };
        let requests = &mut state.requests;
        let is_known = last == Last::Look && self.harvest_engine(&engine, all, requests).is_ok();
        if !is_known {
            requests.record(all);
        }
        is_known
    }

    fn harvest_engine(&self, engine: &EngineView, pages: Pages, requests: &mut Requests) -> io::Result<()> {
        let (offset, length) = (pages.first * self.page_size, pages.count * self.page_size);
        engine.harvest(offset, length, |at, length| {
            requests.record(Pages::touched(at, length, self.page_size).common(pages));
        })
    }

    /// Notes in every view what was written in `pages` since it was last asked.
    fn harvest(&self, state: &mut State, pages: Pages) {
        let State { requests, engines, .. } = state;
        for (key, engine) in engines.iter() {
            if let Err(error) = self.harvest_engine(engine, pages, requests) {
                // It has just ended, most likely, which its owner will see soon. The same goes for the pages that were
                // not asked for, whose bits are lost too.
                log::debug!("segment {}: {key:?} cannot be asked what it wrote: {error}", self.segment);
                requests.record(self.all());
            }
        }
        self.marks.take(pages, |word, bits| requests.record_word(word, bits));
    }

    /// Makes a basis of this segment (DIRTY-12, DIRTY-13).
    ///
    /// # Errors
    /// Another segment, a rule for ranges that is broken, or too many bases.
    pub fn create_memory_basis(&self, segment: u32, ranges: &[Range]) -> Result<BasisHandle, DirtyError> {
        let mut state = self.tracked()?;
        if segment != self.segment {
            return Err(DirtyError::Segment(segment));
        }
        state.requests.create(ranges)
    }

    /// Forgets a basis, which is tracked no more then (DIRTY-21, DIRTY-22).
    ///
    /// # Errors
    /// There is no such basis: who asks has lost track.
    pub fn destroy_memory_basis(&self, handle: BasisHandle) -> Result<(), DirtyError> {
        self.tracked()?.requests.destroy(handle)
    }

    /// Tracks a basis; its bits read zero (DIRTY-24, DIRTY-25). Others keep theirs (DIRTY-32).
    ///
    /// # Errors
    /// No such basis, or it is tracked already.
    pub fn start_dirty_tracking(&self, handle: BasisHandle) -> Result<(), DirtyError> {
        let mut state = self.tracked()?;
        state.requests.check_start(handle)?;
        // What was written until now is the others' business.
        self.harvest(&mut state, self.all());
        state.requests.start(handle)
    }

    /// Ends that (DIRTY-28). Others go on (DIRTY-29).
    ///
    /// # Errors
    /// No such basis, or it is not tracked.
    pub fn stop_dirty_tracking(&self, handle: BasisHandle) -> Result<(), DirtyError> {
        self.tracked()?.requests.stop(handle)
    }

    /// Copies the bits of a basis, or of part of one range of it, into `buffer`: bit i is page i, least significant first,
    /// ranges one behind the other in the order in which they came (DIRTY-35 to DIRTY-41). With `clear`, in one step with
    /// the copy, those bits are zero then: each write is in this result or in a later one (DIRTY-44). Pages are read after
    /// this, with [`Self::read`] (DIRTY-51).
    ///
    /// # Errors
    /// No such basis, it is not tracked, no such part, or too small a buffer: then nothing was cleared.
    pub fn query_dirty_bit_data(
        &self,
        handle: BasisHandle,
        subrange: Option<Subrange>,
        buffer: &mut [u8],
        clear: bool,
    ) -> Result<(), DirtyError> {
        let pages = self.tracked()?.requests.check_query(handle, subrange, buffer.len())?;
        pages.iter().for_each(|pages| self.compare(*pages));
        let mut state = self.lock();
        pages.iter().for_each(|pages| self.harvest(&mut state, *pages));
        state.requests.query(handle, subrange, buffer, clear)
    }

    /// Notes in every view which pages the guest's CPU has changed. Nothing is locked while contents are hashed.
    fn compare(&self, pages: Pages) {
        let mut rest = pages;
        let page_bytes = usize::try_from(self.page_size).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        loop {
            let next = {
                let mut state = self.lock();
                let State { requests, visible, .. } = &mut *state;
                visible.next(rest, |unsettled| requests.record(unsettled))
            };
            let Some(batch) = next else { return };
            bytes.resize(page_bytes.saturating_mul(usize::try_from(batch.count).unwrap_or(0)), 0);
            let is_read = self.file.read_exact_at(&mut bytes, batch.first * self.page_size).is_ok();
            let hashes: Vec<u64> =
                bytes.chunks_exact(page_bytes).map(|page| self.hasher.hash(page)).collect();
            let mut state = self.lock();
            for (page, hash) in (batch.first..).zip(hashes) {
                if !is_read || state.visible.differs(page, hash) {
                    state.requests.record(Pages { first: page, count: 1 });
                }
            }
            rest = Pages { first: batch.end(), count: rest.end() - batch.end() };
        }
    }

    /// Reads whole pages from `offset` on, to be sent for a basis after its bits were cleared.
    ///
    /// # Errors
    /// Bytes that are no whole pages of the segment; what the system says.
    pub fn read(&self, handle: BasisHandle, offset: u64, into: &mut [u8]) -> Result<(), DirtyError> {
        let length = into.len() as u64;
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        if !is_inside || !offset.is_multiple_of(self.page_size) || !length.is_multiple_of(self.page_size) {
            return Err(DirtyError::Pages { offset, length });
        }
        self.file.read_exact_at(into, offset).map_err(|error| DirtyError::Read(error.to_string()))?;
        self.settle(handle, offset, into);
        Ok(())
    }

    /// Writes bytes that came from elsewhere, and marks them: whoever moves on has them too (DIRTY-54).
    ///
    /// # Errors
    /// Bytes that lie outside of the segment; what the system says.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DirtyError> {
        let length = bytes.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(DirtyError::Pages { offset, length });
        }
        let written = self.file.write_all_at(bytes, offset);
        // A part of it may be there.
        self.mark(offset, length);
        written.map_err(|error| DirtyError::Read(error.to_string()))
    }

    /// These bytes, whole pages copied from `offset`, are what is sent for a basis: pages that the guest's CPU can write
    /// are compared with them from here on. [`Self::read`] does that by itself.
    pub fn settle(&self, handle: BasisHandle, offset: u64, copy: &[u8]) {
        let Ok(page_bytes) = usize::try_from(self.page_size) else { return };
        let pages = Pages::touched(offset, copy.len() as u64, self.page_size);
        for (page, bytes) in (pages.first..).zip(copy.chunks_exact(page_bytes)) {
            if !self.lock().visible.is_shown(page) {
                continue;
            }
            let hash = self.hasher.hash(bytes);
            let mut state = self.lock();
            if state.visible.settle(page, hash) {
                // Others were sent something else, or nothing.
                state.requests.record_for_others(handle, Pages { first: page, count: 1 });
            }
        }
    }

    /// Pages of the whole memory that were ever written, as far as is known by now.
    pub fn pages_written(&self) -> u64 {
        let Ok(mut state) = self.tracked() else { return 0 };
        let all = self.all();
        self.harvest(&mut state, all);
        state.requests.count(self.whole, all)
    }
}

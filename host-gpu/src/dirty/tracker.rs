//! The tracker of one memory of one vGPU.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::RwLockReadGuard;

use super::basis::Pages;
use super::basis::Range;
use super::basis::Subrange;
use super::caps::Caps;
use super::elsewhere::Part;
use super::error::DirtyError;
use super::marks::Marks;
use super::method::Method;
use super::requests::BasisHandle;
use super::requests::Requests;
use super::shadow::Shadow;
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
    pub(super) file: File,
    /// What of it is not in the file.
    pub(super) part: OnceLock<Part>,
    length: u64,
    pub(super) page_size: u64,
    pub(super) method: Method,
    marks: Marks,
    pub(super) hasher: Hasher,
    whole: BasisHandle,
    /// Held shared by reads of what is sent, and alone by comparisons of contents with a shadow. Taken before `state`.
    sending: RwLock<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) requests: Requests,
    engines: BTreeMap<EngineKey, Arc<EngineView>>,
    attached: u64,
    pub(super) visible: Visible,
    /// Where tracking is costly, while any basis is tracked.
    pub(super) shadow: Option<Shadow>,
}

/// Where what was harvested is noted.
enum Noted<'a> {
    /// In every view: it was written.
    Written(&'a mut Requests),
    /// It is only suspect; without a shadow it is not recorded.
    Suspect(Option<&'a mut Shadow>),
}

impl Noted<'_> {
    fn pages(&mut self, pages: Pages) {
        match self {
            Self::Written(requests) => requests.record(pages),
            Self::Suspect(Some(shadow)) => shadow.suspect(pages),
            Self::Suspect(None) => {}
        }
    }

    fn word(&mut self, word: usize, bits: u64) {
        match self {
            Self::Written(requests) => requests.record_word(word, bits),
            Self::Suspect(Some(shadow)) => shadow.suspect_word(word, bits),
            Self::Suspect(None) => {}
        }
    }
}

impl State {
    /// Nothing that costs memory is kept while no basis is tracked.
    fn let_go(&mut self) {
        if !self.requests.is_tracking() {
            self.shadow = None;
        }
    }
}

impl Tracker {
    /// Of segment `segment`, which is all of `file`: `length` bytes, a bit for each `page_size` (a power of two, at
    /// least 4096; DIRTY-06), which divides `length`. Where that is cheap, all of it is tracked from here on (DIRTY-31,
    /// DIRTY-34): see [`Self::whole`]. Else nothing is, until a basis is started (DIRTY-30).
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
        if method.is_performant() {
            requests.start(whole).map_err(io::Error::other)?;
        }
        let visible = Visible::new(pages);
        Ok(Self {
            segment,
            file: file.try_clone()?,
            part: OnceLock::new(),
            length,
            page_size,
            method,
            marks: Marks::new(pages),
            hasher: Hasher::new()?,
            whole,
            sending: RwLock::default(),
            state: Mutex::new(State {
                requests,
                engines: BTreeMap::new(),
                attached: 0,
                visible,
                shadow: None,
            }),
        })
    }

    /// What it can do (DIRTY-02, DIRTY-03, DIRTY-06).
    pub fn caps(&self) -> Caps {
        let supported = self.method != Method::Off;
        let performant = self.method.is_performant();
        Caps { supported, performant, page_size: self.page_size, method: self.method }
    }

    /// Bytes of the memory.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The number of the segment.
    pub fn segment(&self) -> u32 {
        self.segment
    }

    /// The basis of the whole memory, which is tracked since the memory was made, zero (DIRTY-31, DIRTY-34). A pass that queries it
    /// without clearing learns all that was ever written; bases of one's own tell what was written since. Where tracking is
    /// costly it is not tracked, and all may have been written.
    pub fn whole(&self) -> BasisHandle {
        self.whole
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No contents are compared with a shadow while this is kept.
    pub(super) fn sending(&self) -> RwLockReadGuard<'_, ()> {
        self.sending.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any basis is tracked.
    pub fn is_tracking(&self) -> bool {
        self.lock().requests.is_tracking()
    }

    /// Bytes that the shadow takes, where there is one.
    pub fn shadow_bytes(&self) -> u64 {
        self.lock().shadow.as_ref().map_or(0, Shadow::bytes)
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
        if visible && self.method.is_performant() {
            self.lock().visible.show(pages);
        } else if visible {
            self.lock().visible.show_without_hash(pages);
        } else {
            self.lock().visible.hide(pages);
            // What it wrote last is not compared any more.
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
        let is_known =
            last == Last::Look && self.harvest_engine(&engine, all, self.noted(&mut state)).is_ok();
        if !is_known {
            // Also where contents could be compared: what it still writes would come after that.
            state.requests.record(all);
        }
        is_known
    }

    fn noted<'a>(&self, state: &'a mut State) -> Noted<'a> {
        let State { requests, shadow, .. } = state;
        if self.method.is_performant() { Noted::Written(requests) } else { Noted::Suspect(shadow.as_mut()) }
    }

    fn harvest_engine(&self, engine: &EngineView, pages: Pages, mut noted: Noted<'_>) -> io::Result<()> {
        let (offset, length) = (pages.first * self.page_size, pages.count * self.page_size);
        engine.harvest(offset, length, |at, length| {
            noted.pages(Pages::touched(at, length, self.page_size).common(pages));
        })
    }

    /// Notes what was written in `pages` since it was last asked.
    pub(super) fn harvest(&self, state: &mut State, pages: Pages) {
        let engines: Vec<_> = state.engines.iter().map(|(key, engine)| (*key, Arc::clone(engine))).collect();
        for (key, engine) in engines {
            if let Err(error) = self.harvest_engine(&engine, pages, self.noted(state)) {
                // It has just ended, most likely, which its owner will see soon. The same goes for the pages that were
                // not asked for, whose bits are lost too.
                log::debug!("segment {}: {key:?} cannot be asked what it wrote: {error}", self.segment);
                state.requests.record(self.all());
            }
        }
        let mut noted = self.noted(state);
        self.marks.take(pages, |word, bits| noted.word(word, bits));
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
    /// There is no such basis: the caller has lost track.
    pub fn destroy_memory_basis(&self, handle: BasisHandle) -> Result<(), DirtyError> {
        let mut state = self.tracked()?;
        let destroyed = state.requests.destroy(handle);
        state.let_go();
        destroyed
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
        if !self.method.is_performant() && state.shadow.is_none() {
            state.shadow = Some(Shadow::new(self.all().count));
        }
        state.requests.start(handle)
    }

    /// Tracks a basis, and tells in `buffer` which pages of the whole memory were ever written until then: each write is in
    /// `buffer` or in a later query of the basis, and in both only where it came while this was going on. Where tracking is
    /// costly all pages were.
    ///
    /// # Errors
    /// No such basis, it is tracked already, or too small a buffer.
    pub fn start_after_history(&self, handle: BasisHandle, buffer: &mut [u8]) -> Result<(), DirtyError> {
        if !self.method.is_performant() {
            buffer.fill(0xff);
            return self.start_dirty_tracking(handle);
        }
        // What the guest's CPU has written is noted before the basis is tracked: it would be told by it, too.
        self.compare_visible(self.all());
        let mut state = self.tracked()?;
        state.requests.check_start(handle)?;
        state.requests.check_query(self.whole, None, buffer.len())?;
        self.harvest(&mut state, self.all());
        state.requests.query(self.whole, None, buffer, false)?;
        state.requests.start(handle)
    }

    /// Ends that (DIRTY-28). Others go on (DIRTY-29).
    ///
    /// # Errors
    /// No such basis, or it is not tracked.
    pub fn stop_dirty_tracking(&self, handle: BasisHandle) -> Result<(), DirtyError> {
        let mut state = self.tracked()?;
        let stopped = state.requests.stop(handle);
        state.let_go();
        stopped
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
        if !self.method.is_performant() {
            let _nothing_is_sent = self.sending.write().unwrap_or_else(PoisonError::into_inner);
            pages.iter().for_each(|pages| self.compare_suspects(*pages));
            return self.lock().requests.query(handle, subrange, buffer, clear);
        }
        pages.iter().for_each(|pages| self.compare_visible(*pages));
        let mut state = self.lock();
        pages.iter().for_each(|pages| self.harvest(&mut state, *pages));
        state.requests.query(handle, subrange, buffer, clear)
    }

    /// Writes bytes that came from elsewhere, and marks them: a further move has them too (DIRTY-54).
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

    /// Pages of the whole memory that were ever written, as far as is known by now. Zero where tracking is costly:
    /// there is no record of them.
    pub fn pages_written(&self) -> u64 {
        let Ok(mut state) = self.tracked() else { return 0 };
        let all = self.all();
        self.harvest(&mut state, all);
        state.requests.count(self.whole, all)
    }
}

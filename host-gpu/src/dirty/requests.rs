//! Memory bases, which of them are tracked, and each one's view of the bits. Pure: where bits come from is another
//! matter.

use std::collections::BTreeMap;

use super::basis::Basis;
use super::basis::Pages;
use super::basis::Range;
use super::basis::Subrange;
use super::basis::buffer_bytes;
use super::error::DirtyError;
use super::plane::Plane;

/// Most bases of one segment.
pub const MAX_BASES: usize = 64;

/// A basis of one segment, for its maker; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BasisHandle(pub u64);

#[derive(Debug)]
struct Request {
    basis: Basis,
    /// Its bits, over the whole segment, while it is tracked.
    view: Option<Plane>,
}

/// All bases of a segment.
#[derive(Debug)]
pub struct Requests {
    pages: u64,
    page_size: u64,
    table: BTreeMap<BasisHandle, Request>,
    next: u64,
}

impl Requests {
    /// None, of a segment of `pages` pages of `page_size` bytes.
    pub fn new(pages: u64, page_size: u64) -> Self {
        Self { pages, page_size, table: BTreeMap::new(), next: 1 }
    }

    /// Makes a basis (DIRTY-13); not tracked yet.
    ///
    /// # Errors
    /// A rule for ranges is broken, or there are [`MAX_BASES`].
    pub fn create(&mut self, ranges: &[Range]) -> Result<BasisHandle, DirtyError> {
        let basis = Basis::new(ranges, self.pages * self.page_size, self.page_size)?;
        if self.table.len() >= MAX_BASES {
            return Err(DirtyError::TooMany(self.table.len()));
        }
        let handle = BasisHandle(self.next);
        self.next += 1;
        self.table.insert(handle, Request { basis, view: None });
        Ok(handle)
    }

    /// Forgets a basis; where it is tracked, that ends first (DIRTY-21, DIRTY-22).
    ///
    /// # Errors
    /// There is no such basis.
    pub fn destroy(&mut self, handle: BasisHandle) -> Result<(), DirtyError> {
        self.table.remove(&handle).map(|_| ()).ok_or(DirtyError::NoSuchBasis)
    }

    fn get(&mut self, handle: BasisHandle) -> Result<&mut Request, DirtyError> {
        self.table.get_mut(&handle).ok_or(DirtyError::NoSuchBasis)
    }

    /// Whether [`Self::start`] would be refused.
    ///
    /// # Errors
    /// No such basis, or it is tracked already.
    pub fn check_start(&mut self, handle: BasisHandle) -> Result<(), DirtyError> {
        if self.get(handle)?.view.is_some() { Err(DirtyError::Started) } else { Ok(()) }
    }

    /// Tracks a basis from here on; its bits read zero (DIRTY-25).
    ///
    /// # Errors
    /// No such basis, or it is tracked already.
    pub fn start(&mut self, handle: BasisHandle) -> Result<(), DirtyError> {
        self.check_start(handle)?;
        let pages = self.pages;
        self.get(handle)?.view = Some(Plane::new(pages));
        Ok(())
    }

    /// Tracks a basis no more; others go on (DIRTY-29).
    ///
    /// # Errors
    /// No such basis, or it is not tracked.
    pub fn stop(&mut self, handle: BasisHandle) -> Result<(), DirtyError> {
        self.get(handle)?.view.take().map(|_| ()).ok_or(DirtyError::NotStarted)
    }

    /// Whether anything is tracked.
    pub fn is_tracking(&self) -> bool {
        self.table.values().any(|request| request.view.is_some())
    }

    /// The views that are on, and all others where `but` is one.
    fn views(&mut self, but: Option<BasisHandle>) -> impl Iterator<Item = &mut Plane> {
        let others = self.table.iter_mut().filter(move |(handle, _)| Some(**handle) != but);
        others.filter_map(|(_, request)| request.view.as_mut())
    }

    /// Pages were written: every view has that.
    pub fn record(&mut self, pages: Pages) {
        self.views(None).for_each(|view| view.set(pages));
    }

    /// The same for the pages of one word of a plane.
    pub fn record_word(&mut self, word: usize, bits: u64) {
        self.views(None).for_each(|view| view.set_word(word, bits));
    }

    /// The same for all views but that of `handle`.
    pub fn record_for_others(&mut self, handle: BasisHandle, pages: Pages) {
        self.views(Some(handle)).for_each(|view| view.set(pages));
    }

    /// How many bits of `pages` a basis has set; none where it is not tracked.
    pub fn count(&self, handle: BasisHandle, pages: Pages) -> u64 {
        let view = self.table.get(&handle).and_then(|request| request.view.as_ref());
        view.map_or(0, |view| view.count(pages))
    }

    /// The pages that a query is about, and that `given` bytes hold their bits.
    ///
    /// # Errors
    /// Whatever a query is refused for.
    pub fn check_query(
        &mut self,
        handle: BasisHandle,
        subrange: Option<Subrange>,
        given: usize,
    ) -> Result<Vec<Pages>, DirtyError> {
        let page_size = self.page_size;
        let request = self.get(handle)?;
        if request.view.is_none() {
            return Err(DirtyError::NotStarted);
        }
        let pages = request.basis.pages(subrange, page_size)?;
        let needed = buffer_bytes(&pages);
        if given < needed { Err(DirtyError::Buffer { needed, given }) } else { Ok(pages) }
    }

    /// Copies the bits of a basis, or of a part of it, and clears them where that is asked: in this view, and of what was
    /// copied alone (DIRTY-32, DIRTY-42, DIRTY-43, DIRTY-45).
    ///
    /// # Errors
    /// No such basis, it is not tracked, no such part, or too small a buffer: then nothing was cleared.
    pub fn query(
        &mut self,
        handle: BasisHandle,
        subrange: Option<Subrange>,
        buffer: &mut [u8],
        clear: bool,
    ) -> Result<(), DirtyError> {
        let pages = self.check_query(handle, subrange, buffer.len())?;
        let view = self.get(handle)?.view.as_mut().ok_or(DirtyError::NotStarted)?;
        view.pack(&pages, buffer);
        if clear {
            pages.iter().for_each(|pages| view.clear(*pages));
        }
        Ok(())
    }
}

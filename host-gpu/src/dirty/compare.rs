//! Contents that are compared with what was sent of them, and what is sent.

use std::io;
use std::sync::Arc;

use super::basis::Pages;
use super::basis::Range;
use super::elsewhere;
use super::elsewhere::Ahead;
use super::elsewhere::Elsewhere;
use super::elsewhere::Part;
use super::error::DirtyError;
use super::requests::BasisHandle;
use super::tracker::State;
use super::tracker::Tracker;

impl Tracker {
    /// A range of it, whole pages, does not lie in the file, and is read by this. Once, before anything is read.
    pub fn lies_elsewhere(&self, range: Range, reader: Arc<dyn Elsewhere>) {
        // A second time changes nothing.
        let _first = self.part.set(Part { range, reader });
    }

    fn read_bytes(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        elsewhere::read(&self.file, self.part.get(), offset, into)
    }

    fn page_bytes(&self) -> usize {
        usize::try_from(self.page_size).unwrap_or(usize::MAX)
    }

    /// The hashes of pages as they are now, or none where they cannot be read. `bytes` is room that is used again.
    fn hashes(&self, pages: Pages, bytes: &mut Vec<u8>) -> Option<Vec<u64>> {
        bytes.resize(self.page_bytes().saturating_mul(usize::try_from(pages.count).unwrap_or(0)), 0);
        self.read_bytes(pages.first * self.page_size, bytes).ok()?;
        Some(bytes.chunks_exact(self.page_bytes()).map(|page| self.hasher.hash(page)).collect())
    }

    /// Notes in every view which pages the guest's CPU has changed. Nothing is locked while contents are hashed.
    pub(super) fn compare_visible(&self, pages: Pages) {
        let mut rest = pages;
        let mut bytes = Vec::new();
        loop {
            let next = {
                let mut state = self.lock();
                let State { requests, visible, .. } = &mut *state;
                visible.next(rest, |unsettled| requests.record(unsettled))
            };
            let Some(batch) = next else { return };
            let hashes = self.hashes(batch, &mut bytes);
            let mut state = self.lock();
            for (page, hash) in (batch.first..batch.end()).zip(hashes_or_none(hashes)) {
                if hash.is_none_or(|hash| state.visible.differs(page, hash)) {
                    state.requests.record(Pages { first: page, count: 1 });
                }
            }
            rest = Pages { first: batch.end(), count: rest.end() - batch.end() };
        }
    }

    /// Notes in every view which pages differ from what was sent of them: of those that may have been written since the last
    /// comparison, as engines and the daemon know it, and of those that the guest's CPU can write.
    ///
    /// A suspect is taken out *before* its contents are read: a write after that makes it one again. The caller holds
    /// [`Tracker::sending`] alone, so that nothing is sent between a look at contents and the judgement of them, and no other
    /// query returns before what it has taken is in the views.
    pub(super) fn compare_suspects(&self, pages: Pages) {
        {
            let mut state = self.lock();
            self.harvest(&mut state, pages);
            let State { shadow, visible, .. } = &mut *state;
            if let Some(shadow) = shadow {
                shadow.suspect_all_of(visible.shown(), pages);
            }
        }
        let mut rest = pages;
        let mut bytes = Vec::new();
        loop {
            let (batch, is_unsent) = {
                let mut state = self.lock();
                let Some(shadow) = &mut state.shadow else { return };
                let Some(batch) = shadow.take(rest) else { return };
                (batch, shadow.is_unsent(batch))
            };
            let hashes = if is_unsent { None } else { self.hashes(batch, &mut bytes) };
            let mut state = self.lock();
            let State { requests, shadow, .. } = &mut *state;
            for (page, hash) in (batch.first..batch.end()).zip(hashes_or_none(hashes)) {
                let is_same =
                    hash.zip(shadow.as_ref()).is_some_and(|(hash, shadow)| !shadow.differs(page, hash));
                if !is_same {
                    requests.record(Pages { first: page, count: 1 });
                }
            }
            rest = Pages { first: batch.end(), count: rest.end() - batch.end() };
        }
    }

    /// Reads whole pages from `offset` on, to be sent for a basis after its bits were cleared. What was read is what later
    /// queries compare with, of pages that are compared.
    ///
    /// # Errors
    /// Bytes that are no whole pages of the segment; what the system says.
    pub fn read(&self, handle: BasisHandle, offset: u64, into: &mut [u8]) -> Result<(), DirtyError> {
        self.check_pages(offset, into.len() as u64)?;
        let _no_comparison = self.sending();
        self.read_bytes(offset, into).map_err(|error| DirtyError::Read(error.to_string()))?;
        if self.method.is_performant() {
            self.settle_visible(handle, offset, into);
        } else {
            self.settle_shadow(handle, offset, into);
        }
        Ok(())
    }

    fn check_pages(&self, offset: u64, length: u64) -> Result<(), DirtyError> {
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.length());
        let is_whole = offset.is_multiple_of(self.page_size) && length.is_multiple_of(self.page_size);
        if is_inside && is_whole { Ok(()) } else { Err(DirtyError::Pages { offset, length }) }
    }

    /// Begins what [`Self::read`] does, where that takes long and can be done beside something else: bytes that do not lie in the file. None
    /// otherwise, and where contents are compared: what is sent and what it is compared with later must be one.
    pub fn read_ahead(&self, handle: BasisHandle, offset: u64, length: u64) -> Option<Ahead<'_>> {
        self.check_pages(offset, length).ok()?;
        let read = self.part.get().filter(|_| self.method.is_performant())?.read_ahead(offset, length)?;
        Some(Box::new(move |into: &mut [u8]| {
            let _no_comparison = self.sending();
            read(into)?;
            self.settle_visible(handle, offset, into);
            Ok(())
        }))
    }

    /// Of pages that the guest's CPU can write, this copy is what is sent.
    fn settle_visible(&self, handle: BasisHandle, offset: u64, copy: &[u8]) {
        let pages = Pages::touched(offset, copy.len() as u64, self.page_size);
        for (page, bytes) in (pages.first..).zip(copy.chunks_exact(self.page_bytes())) {
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

    /// Of all pages, where anything is tracked.
    fn settle_shadow(&self, handle: BasisHandle, offset: u64, copy: &[u8]) {
        if self.lock().shadow.is_none() {
            return;
        }
        let pages = Pages::touched(offset, copy.len() as u64, self.page_size);
        let hashes: Vec<u64> =
            copy.chunks_exact(self.page_bytes()).map(|page| self.hasher.hash(page)).collect();
        let mut state = self.lock();
        let State { requests, shadow, .. } = &mut *state;
        let Some(shadow) = shadow else { return };
        for (page, hash) in (pages.first..).zip(hashes) {
            if shadow.settle(page, hash) {
                requests.record_for_others(handle, Pages { first: page, count: 1 });
            }
        }
    }
}

/// One for each page; without end where nothing could be read.
fn hashes_or_none(hashes: Option<Vec<u64>>) -> Box<dyn Iterator<Item = Option<u64>>> {
    match hashes {
        Some(hashes) => Box::new(hashes.into_iter().map(Some)),
        None => Box::new(std::iter::repeat(None)),
    }
}

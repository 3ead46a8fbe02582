//! What was last sent of each page, where tracking is costly: a page is dirty when its contents differ from that.
//!
//! ```text
//!   may have been written (planes, marks, pages the guest's CPU maps) ──▶ suspect ──compared──▶ the same: clean
//!                                                                            │                 differs: dirty, in every view
//!                                                                            └─ never sent: dirty, and not read
//! ```
//!
//! Lives from the start of the first basis to the stop of the last (LM-15, DIRTY-30). A hash of 64 bits with a secret is
//! kept of each page, not a copy: 2 MiB for 1 GiB, of which the system gives only what is filled in. Two contents with one
//! hash are a matter of 2^-64 a comparison, and no guest can choose them without the secret.

use super::basis::Pages;
use super::plane::Plane;

/// The shadow of one memory.
#[derive(Debug)]
pub(super) struct Shadow {
    /// May have been written since they were last compared.
    suspects: Plane,
    /// Of which something was sent.
    sent: Plane,
    hashes: Vec<u64>,
}

impl Shadow {
    /// Nothing was sent, and nothing is suspect.
    pub(super) fn new(pages: u64) -> Self {
        let count = usize::try_from(pages).unwrap_or(0);
        Self { suspects: Plane::new(pages), sent: Plane::new(pages), hashes: vec![0; count] }
    }

    /// Bytes that it takes at the most.
    pub(super) fn bytes(&self) -> u64 {
        // And two planes of one bit each.
        let pages = self.hashes.len() as u64;
        pages * 8 + pages.div_ceil(4)
    }

    /// These may have been written.
    pub(super) fn suspect(&mut self, pages: Pages) {
        self.suspects.set(pages);
    }

    /// The same for the pages of one word of a plane.
    pub(super) fn suspect_word(&mut self, word: usize, bits: u64) {
        self.suspects.set_word(word, bits);
    }

    /// The same for those of `pages` that are in `plane`.
    pub(super) fn suspect_all_of(&mut self, plane: &Plane, pages: Pages) {
        self.suspects.merge(plane, pages);
    }

    /// Takes out the next suspects of `within`, one behind the other, at most 64.
    pub(super) fn take(&mut self, within: Pages) -> Option<Pages> {
        let run = self.suspects.next_run(within)?;
        self.suspects.clear(run);
        Some(run)
    }

    /// Whether a page with these contents, as their hash, differs from what was sent of it.
    pub(super) fn differs(&self, page: u64, hash: u64) -> bool {
        self.hash_of(page) != Some(hash)
    }

    /// Whether nothing was sent of any of these.
    pub(super) fn is_unsent(&self, pages: Pages) -> bool {
        self.sent.count(pages) == 0
    }

    /// This was sent of a page; whether something else was before, or nothing.
    pub(super) fn settle(&mut self, page: u64, hash: u64) -> bool {
        let is_new = self.differs(page, hash);
        if let Some(place) = usize::try_from(page).ok().and_then(|page| self.hashes.get_mut(page)) {
            *place = hash;
            self.sent.set(Pages { first: page, count: 1 });
        }
        is_new
    }

    fn hash_of(&self, page: u64) -> Option<u64> {
        let hash = usize::try_from(page).ok().and_then(|page| self.hashes.get(page)).copied();
        hash.filter(|_| self.sent.has(page))
    }
}

//! Pages that the daemon itself wrote: set from any thread, taken by queries.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use super::basis::Pages;
use super::plane::masks;
use super::plane::words;

/// A plane that is set without a lock.
#[derive(Debug)]
pub struct Marks {
    words: Vec<AtomicU64>,
    pages: u64,
}

impl Marks {
    /// None set.
    pub fn new(pages: u64) -> Self {
        Self { words: (0..words(pages)).map(|_| AtomicU64::new(0)).collect(), pages }
    }

    /// Sets the bits of `pages`. Called *after* they were written: a thread that takes a bit, and reads the page then,
    /// sees what was written before.
    pub fn set(&self, pages: Pages) {
        for (word, mask) in masks(pages.common(Pages { first: 0, count: self.pages })) {
            if let Some(word) = self.words.get(word) {
                // PAIRS WITH `take`. Set also where it is set already: a `take` in between must see this write's mark.
                word.fetch_or(mask, Ordering::Release);
            }
        }
    }

    /// Takes the bits of `pages` out, and hands each word that has any to `found`, with its index.
    pub fn take(&self, pages: Pages, mut found: impl FnMut(usize, u64)) {
        for (index, mask) in masks(pages.common(Pages { first: 0, count: self.pages })) {
            let Some(word) = self.words.get(index) else { continue };
            if word.load(Ordering::Relaxed) & mask != 0 {
                // PAIRS WITH `set`.
                let taken = word.fetch_and(!mask, Ordering::AcqRel) & mask;
                if taken != 0 {
                    found(index, taken);
                }
            }
        }
    }
}

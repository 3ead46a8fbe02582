//! The descriptor chains that a guest has handed over and not had back.

use super::super::MAX_QUEUE_SIZE;

const WORDS: usize = (MAX_QUEUE_SIZE / 64) as usize;

/// A set of heads, and what the chain of each looked like. It bounds what a guest can have in flight: no head twice.
#[derive(Debug)]
pub(in super::super) struct Heads {
    taken: [u64; WORDS],
    /// By head; of those that are taken: see [`super::super::writable::Writable::shape`].
    shapes: Box<[u64]>,
}

impl Default for Heads {
    fn default() -> Self {
        Self { taken: [0; WORDS], shapes: vec![0; usize::from(MAX_QUEUE_SIZE)].into_boxed_slice() }
    }
}

impl Heads {
    /// Takes a head; false if it is taken already, or is no head.
    #[must_use]
    pub(in super::super) fn take(&mut self, head: u16) -> bool {
        let Some((word, bit)) = self.place(head) else { return false };
        let free = *word & bit == 0;
        *word |= bit;
        free
    }

    pub(in super::super) fn give_back(&mut self, head: u16) {
        if let Some((word, bit)) = self.place(head) {
            *word &= !bit;
        }
    }

    /// Notes the shape of a chain that is taken.
    pub(in super::super) fn note(&mut self, head: u16, shape: u64) {
        if let Some(noted) = self.shapes.get_mut(usize::from(head)) {
            *noted = shape;
        }
    }

    /// All that are taken, with their shapes.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (u16, u64)> {
        (0..MAX_QUEUE_SIZE).zip(&self.shapes).filter_map(|(head, shape)| {
            let word = self.taken.get(usize::from(head / 64))?;
            (word & (1 << (head % 64)) != 0).then_some((head, *shape))
        })
    }

    pub(in super::super) fn clear(&mut self) {
        self.taken = [0; WORDS];
    }

    fn place(&mut self, head: u16) -> Option<(&mut u64, u64)> {
        let word = self.taken.get_mut(usize::from(head / 64))?;
        Some((word, 1 << (head % 64)))
    }
}

//! The descriptor chains that a guest has handed over and not had back.

use super::super::MAX_QUEUE_SIZE;

const WORDS: usize = (MAX_QUEUE_SIZE / 64) as usize;

/// A set of heads. It bounds what a guest can have in flight: no head twice.
#[derive(Debug, Default)]
pub(in super::super) struct Heads([u64; WORDS]);

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

    pub(in super::super) fn clear(&mut self) {
        self.0 = [0; WORDS];
    }

    fn place(&mut self, head: u16) -> Option<(&mut u64, u64)> {
        let word = self.0.get_mut(usize::from(head / 64))?;
        Some((word, 1 << (head % 64)))
    }
}

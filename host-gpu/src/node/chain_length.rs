//! How many dispatches go into a chain: learned from how long chains take.

use std::time::Duration;

use crate::vulkan::gates::CHAIN;

/// Dispatches of the first chain.
const FIRST: usize = 4;

/// How long chains are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Length(usize);

impl Default for Length {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Length {
    /// Most dispatches of the next one.
    pub(super) fn most(self) -> usize {
        self.0
    }

    /// A chain of `count` took so long: the next one is to take about as long as a slice.
    pub(super) fn learn(&mut self, count: usize, took: Duration, slice: Duration) {
        if took > slice {
            self.0 = (self.0 / 2).max(2);
        } else if count >= self.0 && took < slice / 2 {
            self.0 = (self.0 * 2).min(CHAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::CHAIN;
    use super::FIRST;
    use super::Length;

    const SLICE: Duration = Duration::from_millis(2);

    #[test]
    fn chains_grow_while_they_are_short_and_shrink_when_one_takes_longer_than_a_slice() {
        let mut length = Length::default();
        for wanted in [2 * FIRST, 4 * FIRST, 8 * FIRST, CHAIN, CHAIN] {
            length.learn(length.0, SLICE / 3, SLICE);
            assert_eq!(length.0, wanted.min(CHAIN));
        }
        length.learn(3, SLICE / 3, SLICE);
        length.learn(CHAIN, SLICE * 3 / 4, SLICE);
        assert_eq!(length.0, CHAIN);
        for _ in 0..9 {
            length.learn(length.0, SLICE * 2, SLICE);
        }
        assert_eq!(length.0, 2);
        length.learn(1, SLICE / 9, SLICE);
        assert_eq!(length.0, 2, "one that was cut short says little");
    }
}

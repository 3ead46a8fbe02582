//! How far a buffer is that an engine put aside: what the next process of that engine goes on from (PRE-31).

/// The state of a buffer between two packets, two chunks of a copy or fill, or two slices of a dispatch. Four words: the
/// first says which buffer and which packet, the second how far in it, the others the grid of a dispatch.
///
/// ```text
///           63                  32 31                   0
///          +----------------------+----------------------+
///   first  | buffer (its number)  | bytes of packets + 1 |
///          +----------------------+----------------------+
///   second | bytes, or thread groups, of the packet      |
///          +----------------------+----------------------+
///   third  | grid y               | grid x               |
///          +----------------------+----------------------+
///   fourth | zero                 | grid z               |
///          +----------------------+----------------------+
/// ```
///
/// A first word of zero, or one that names another buffer, saves nothing. Whoever reads trusts nothing of it: a place
/// that cannot be is a fault of that buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Saved {
    /// Bytes of packets that are done.
    pub at: u32,
    /// Bytes of the packet there that are done; thread groups of a dispatch, counted in x, then y, then z.
    pub done_in_packet: u64,
    /// Thread groups of the dispatch there in x, y, z, where some are done and the grid was read from memory, which may
    /// have changed since; else zero.
    pub grid: [u32; 3],
}

/// Words of a [`Saved`].
pub const SAVED_WORDS: usize = 4;

impl Saved {
    /// The words for the buffer that is the `count`-th of its queue.
    pub const fn words(self, count: u64) -> [u64; SAVED_WORDS] {
        let [x, y, z] = self.grid;
        [count << 32 | (self.at as u64 + 1), self.done_in_packet, (y as u64) << 32 | x as u64, z as u64]
    }

    /// What was saved of the `count`-th buffer.
    pub const fn from_words(words: [u64; SAVED_WORDS], count: u64) -> Option<Self> {
        let place = words[0] & 0xffff_ffff;
        if place == 0 || words[0] >> 32 != count & 0xffff_ffff {
            return None;
        }
        let [_, done_in_packet, xy, z] = words;
        let grid = [(xy & 0xffff_ffff) as u32, (xy >> 32) as u32, (z & 0xffff_ffff) as u32];
        Some(Self { at: ((place - 1) & 0xffff_ffff) as u32, done_in_packet, grid })
    }
}

#[cfg(test)]
mod tests {
    use super::SAVED_WORDS;
    use super::Saved;

    #[test]
    fn what_is_saved_is_found_by_its_own_buffer_alone() {
        let saved = Saved { at: 64, done_in_packet: 1 << 20, grid: [7, u32::MAX, 1 << 31] };
        for count in [0, 7, u64::from(u32::MAX), 1 << 40] {
            assert_eq!(Saved::from_words(saved.words(count), count), Some(saved));
            assert_eq!(Saved::from_words(saved.words(count), count + 1), None);
        }
        assert_eq!(Saved::from_words([0; SAVED_WORDS], 0), None);
    }
}

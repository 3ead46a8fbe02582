//! How far a buffer is that an engine put aside: what the next process of that engine goes on from (PRE-31).

/// The state of a buffer between two packets, or two chunks of one. Two words: the first says which buffer and
/// which packet, the second how far in it.
///
/// ```text
///   first    63                  32 31                   0      second   63                    0
///           +----------------------+----------------------+             +----------------------+
///           | buffer (its number)  | bytes of packets + 1 |             | bytes of the packet  |
///           +----------------------+----------------------+             +----------------------+
/// ```
///
/// A first word of zero, or one that names another buffer, saves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Saved {
    /// Bytes of packets that are done.
    pub at: u32,
    /// Bytes of the packet there that are done.
    pub done_in_packet: u64,
}

impl Saved {
    /// The words for the buffer that is the `count`-th of its queue.
    pub const fn words(self, count: u64) -> [u64; 2] {
        [count << 32 | (self.at as u64 + 1), self.done_in_packet]
    }

    /// What was saved of the `count`-th buffer.
    pub const fn from_words(words: [u64; 2], count: u64) -> Option<Self> {
        let place = words[0] & 0xffff_ffff;
        if place == 0 || words[0] >> 32 != count & 0xffff_ffff {
            return None;
        }
        Some(Self { at: ((place - 1) & 0xffff_ffff) as u32, done_in_packet: words[1] })
    }
}

#[cfg(test)]
mod tests {
    use super::Saved;

    #[test]
    fn what_is_saved_is_found_by_its_own_buffer_alone() {
        let saved = Saved { at: 64, done_in_packet: 1 << 20 };
        for count in [0, 7, u64::from(u32::MAX), 1 << 40] {
            assert_eq!(Saved::from_words(saved.words(count), count), Some(saved));
            assert_eq!(Saved::from_words(saved.words(count), count + 1), None);
        }
        assert_eq!(Saved::from_words([0, 0], 0), None);
    }
}

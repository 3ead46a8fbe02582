//! Bytes of a fuzzer, taken piece by piece. What is cut off is shorter, not an error.

/// What is left of an input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; `None` at the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next two bytes, little-endian; 0 past the end.
    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte().unwrap_or(0), self.byte().unwrap_or(0)])
    }

    /// So many bytes, or what is left.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Bytes with their length in front.
    pub(crate) fn piece(&mut self) -> &'a [u8] {
        let count = usize::from(self.short());
        self.take(count)
    }
}

/// Bytes with their length in front, as [`Input::piece`] takes them.
pub(crate) fn piece(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    [&length.to_le_bytes(), bytes].concat()
}

//! Lines of bounded length from a stream.

use std::io;
use std::io::Read;

/// Bytes of the longest line.
pub const MAX_LINE: usize = 64 << 10;

/// What a look for a line found.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A line, without its end.
    Line(Vec<u8>),
    /// More bytes without an end of line than a line may have.
    TooLong,
    /// The other side has hung up.
    End,
}

/// Cuts a stream into lines.
#[derive(Debug)]
pub struct Lines<R> {
    stream: R,
    limit: usize,
    kept: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// Of at most `limit` bytes each.
    pub fn new(stream: R, limit: usize) -> Self {
        Self { stream, limit, kept: Vec::new() }
    }

    /// The next line.
    ///
    /// # Errors
    /// What the stream says; a timeout of its own is one.
    pub fn next_line(&mut self) -> io::Result<Found> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.kept[looked..].iter().position(|byte| *byte == b'\n') {
                let rest = self.kept.split_off(looked + end + 1);
                let mut line = std::mem::replace(&mut self.kept, rest);
                line.pop();
                return Ok(Found::Line(line));
            }
            looked = self.kept.len();
            if looked >= self.limit {
                return Ok(Found::TooLong);
            }
            let mut bytes = [0; 1024];
            let room = bytes.len().min(self.limit - looked);
            match self.stream.read(&mut bytes[..room]) {
                Ok(0) => return Ok(Found::End),
                Ok(count) => self.kept.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Found;
    use super::Lines;

    #[test]
    fn lines_are_cut_whatever_pieces_they_come_in() {
        let mut lines = Lines::new(&b"one\n\ntwo\nrest"[..], 8);
        for line in [&b"one"[..], b"", b"two"] {
            assert_eq!(lines.next_line().unwrap(), Found::Line(line.to_vec()));
        }
        assert_eq!(lines.next_line().unwrap(), Found::End);
    }

    #[test]
    fn a_line_that_is_too_long_is_not_kept() {
        let long = [b'x'; 4096];
        let mut lines = Lines::new(&long[..], 16);
        assert_eq!(lines.next_line().unwrap(), Found::TooLong);
        assert!(lines.kept.len() <= 16);
    }
}

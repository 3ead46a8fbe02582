//! A part of a memory that its file does not have: local memory of a device's own.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::basis::Range;

/// Bytes that are on their way: waits for them, and has them where it is told, which is as long as what was asked for. Dropped, it gives them up.
///
/// # Errors
/// They cannot be read.
pub type Ahead<'a> = Box<dyn FnOnce(&mut [u8]) -> io::Result<()> + Send + 'a>;

/// Reads that part.
pub trait Elsewhere: Debug + Send + Sync {
    /// Reads bytes from `offset` of the memory on, as they are now: whole pages of that part.
    ///
    /// # Errors
    /// They cannot be read.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Begins to read `length` bytes, as they are at some moment from now on, whatever its caller does meanwhile. None where they are to be
    /// read when they are needed.
    fn read_ahead(self: Arc<Self>, offset: u64, length: u64) -> Option<Ahead<'static>>;
}

/// Where that part is, and what reads it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) range: Range,
    pub(super) reader: Arc<dyn Elsewhere>,
}

impl Part {
    /// Begins to read what lies in this part alone.
    pub(super) fn read_ahead(&self, offset: u64, length: u64) -> Option<Ahead<'static>> {
        let Range { offset: first, length: all } = self.range;
        let is_within = offset >= first && offset.checked_add(length)? <= first.checked_add(all)?;
        is_within.then(|| Arc::clone(&self.reader).read_ahead(offset, length)).flatten()
    }
}

/// Reads from a file, and from the part that lies elsewhere.
pub(super) fn read(file: &File, part: Option<&Part>, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let Some(Part { range, reader }) = part else { return file.read_exact_at(into, offset) };
    let within = |at: u64| usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
    let (first, last) = (within(range.offset), within(range.offset.saturating_add(range.length)));
    let (before, rest) = into.split_at_mut(first);
    let (part, behind) = rest.split_at_mut(last.saturating_sub(first));
    if !before.is_empty() {
        file.read_exact_at(before, offset)?;
    }
    if !part.is_empty() {
        reader.read(offset.max(range.offset), part)?;
    }
    if !behind.is_empty() {
        file.read_exact_at(behind, offset.saturating_add(last as u64))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::vram::create_memfd;

    /// Reads what it was asked for: the low byte of each page's number, and one more.
    #[derive(Debug)]
    struct Numbers;

    impl Elsewhere for Numbers {
        fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            for (page, bytes) in (offset / 4096..).zip(into.chunks_mut(4096)) {
                bytes.fill(u8::try_from(page).unwrap() + 1);
            }
            Ok(())
        }

        fn read_ahead(self: Arc<Self>, offset: u64, _length: u64) -> Option<Ahead<'static>> {
            Some(Box::new(move |into: &mut [u8]| self.read(offset, into)))
        }
    }

    #[test]
    fn only_what_lies_elsewhere_is_read_ahead() {
        let part = Part { range: Range { offset: 4 * 4096, length: 8 * 4096 }, reader: Arc::new(Numbers) };
        let begins = |first: u64, pages: u64| part.read_ahead(first * 4096, pages * 4096).is_some();
        assert!(begins(4, 8) && begins(11, 1));
        assert!(![(3, 2), (11, 2), (0, 4), (12, 1)].iter().any(|(first, pages)| begins(*first, *pages)));
        assert!(part.read_ahead(u64::MAX - 4095, 4096).is_none());
    }

    #[test]
    fn dirty_52_a_read_has_what_lies_elsewhere_from_there_and_all_else_from_the_file() {
        let file = create_memfd("file", 16 * 4096).unwrap();
        file.write_all_at(&[0xff; 16 * 4096], 0).unwrap();
        let part = Part { range: Range { offset: 4 * 4096, length: 8 * 4096 }, reader: Arc::new(Numbers) };
        for first in 0..16u64 {
            for pages in 1..=16 - first {
                let mut bytes = vec![0; usize::try_from(pages * 4096).unwrap()];
                read(&file, Some(&part), first * 4096, &mut bytes).unwrap();
                for (page, bytes) in (first..).zip(bytes.chunks(4096)) {
                    let expected =
                        if (4..12).contains(&page) { u8::try_from(page).unwrap() + 1 } else { 0xff };
                    assert!(
                        bytes.iter().all(|byte| *byte == expected),
                        "page {page} of {pages} from {first}"
                    );
                }
            }
        }
        let mut bytes = [0; 4096];
        read(&file, None, 5 * 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [0xff; 4096]);
        assert!(read(&file, Some(&part), 16 * 4096, &mut bytes).is_err(), "behind its end");
    }
}

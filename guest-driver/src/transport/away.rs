//! What a transport does when its device is taken away and comes back, and where the bytes are meanwhile (decision 64).
//!
//! ```text
//!   mapped blob ──▶ stand-in: private pages with the same bytes ──▶ the blob made again, at the same address
//!        here              away: stores go there                    what was stored meanwhile goes along
//! ```
//!
//! No address is ever without memory, so that code which reads or stores need not know. While the pages of one blob
//! change hands they cannot be touched: a thread that tries waits for that moment (`bar.rs`).
//!
//! JUSTIFICATION: a mapping that others hold pointers into is replaced in place.
#![allow(unsafe_code, reason = "mmap with MAP_FIXED: no safe wrapper exists")]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::MemfdFlags;
use rustix::mm::MapFlags;
use rustix::mm::ProtFlags;
use vm_memory::FileOffset;
use vm_memory::MmapRegion;

use super::bar::Bar;
use super::error::TransportError;
use super::shared_memory::Piece;
use super::shared_memory::SharedMemory;

/// A transport whose device can be taken away. Nobody else uses it between [`Self::views`] and the end.
pub trait Migrant: Send + Sync {
    /// All blobs, by number, and what the process has mapped of each. Fails where some of it cannot be put aside.
    #[doc(hidden)]
    fn views(&self) -> Result<Vec<(u32, Option<SharedMemory>)>, TransportError>;

    /// A mapped blob at another address.
    #[doc(hidden)]
    fn alias(&self, resource: u32) -> Result<SharedMemory, TransportError>;

    /// Closes the device, with all blobs.
    #[doc(hidden)]
    fn leave(&self);

    /// Whether it has left the device, and none has come since.
    #[doc(hidden)]
    fn has_left(&self) -> bool;

    /// Opens the device that has come; false where none has come yet. `patiently`: not the one that was left.
    #[doc(hidden)]
    fn arrive(&self, patiently: bool) -> Result<bool, TransportError>;

    /// Makes a blob again, under the name that the daemon knows it by: how much of what it was is there.
    #[doc(hidden)]
    fn make_again(&self, resource: u32, name: u64) -> Result<Again, TransportError>;

    /// Shows a blob at the address where `view` is.
    #[doc(hidden)]
    fn show(&self, resource: u32, view: &SharedMemory) -> Result<(), TransportError>;
}

/// What a blob is that was made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The blob that it was.
    Itself,
    /// Other pages, with zeros, of which the daemon has to be told.
    Empty,
    /// The same pages, of which the daemon has to be told.
    SamePages,
}

/// Numbers by which a process knows its blobs: those of the device, but for one that an earlier device has used.
#[derive(Debug, Default)]
pub struct Numbers {
    own: u32,
}

/// Where numbers begin that no device gives.
const OWN_NUMBERS: u32 = 1 << 31;

impl Numbers {
    /// The process's number for the blob that the device calls `number`.
    pub fn name<T>(&mut self, number: u32, known: &HashMap<u32, T>) -> u32 {
        if !known.contains_key(&number) {
            return number;
        }
        self.own += 1;
        OWN_NUMBERS | self.own
    }
}

/// Shows `length` bytes of `file` from `offset` on at the address of `view`. All three are whole pages.
///
/// # Errors
/// `InvalidInput` where the first piece of `view` is shorter, or not all are whole pages; what the system says of the mapping.
pub fn show_file(view: &SharedMemory, file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    show_part(view, 0, length, file, offset)
}

fn show_part(view: &SharedMemory, start: u64, length: u64, file: impl AsFd, offset: u64) -> io::Result<()> {
    let slice = view.slice(start, length).ok_or(io::ErrorKind::InvalidInput)?;
    let bytes = usize::try_from(length).map_err(io::Error::other)?;
    let address = slice.ptr_guard_mut().as_ptr();
    check_pages(address.addr(), bytes, offset)?;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
    // SAFETY: `slice` lies in one mapping that `view` keeps as long as it is borrowed, and `check_pages` has seen that it is
    // whole pages: the kernel replaces these bytes and no others, neither of another mapping nor of another blob in this one.
    // What is in there is reached through volatile slices, atomics and raw pointers alone, which promise nothing of its contents.
    let at = unsafe { rustix::mm::mmap(address.cast(), bytes, protection, flags, file, offset) }?;
    debug_assert_eq!(at.cast(), address);
    Ok(())
}

/// The kernel rounds a length up to whole pages, and replaces what lies in the rest of the last one, too.
fn check_pages(address: usize, bytes: usize, offset: u64) -> io::Result<()> {
    let page = rustix::param::page_size();
    let is_whole = |of: usize| of.is_multiple_of(page);
    if bytes > 0 && is_whole(address) && is_whole(bytes) && offset.is_multiple_of(page as u64) {
        return Ok(());
    }
    let text = format!("not whole pages: {bytes} bytes of a file from {offset:#x} on, shown at {address:#x}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// A private copy that stands in for a blob.
#[derive(Debug)]
pub(crate) struct StandIn {
    /// The address that the process knows.
    view: SharedMemory,
    /// The pages that are there now, at another address.
    pages: SharedMemory,
    /// What the blob's words are.
    before: Vec<u64>,
}

fn word(memory: &SharedMemory, index: usize) -> u64 {
    memory.word(index as u64 * 8).map_or(0, |word| word.load(Ordering::Acquire))
}

/// Stores the bytes of `new` that differ from those of `old`: others of the word may be the daemon's.
fn store_changed(memory: &SharedMemory, index: usize, old: u64, new: u64) {
    for (at, (old, new)) in (0..).zip(old.to_ne_bytes().into_iter().zip(new.to_ne_bytes())) {
        let byte = memory.byte(index as u64 * 8 + at).filter(|_| old != new);
        byte.into_iter().for_each(|byte| byte.store(new, Ordering::Release));
    }
}

impl StandIn {
    /// Puts private pages where `view` is. `blob`: the same bytes at another address; only this process's CPU stores
    /// there any more.
    pub(crate) fn take_over(view: SharedMemory, blob: &SharedMemory) -> io::Result<Self> {
        let length = view.len();
        let file = File::from(rustix::fs::memfd_create("campanile-away", MemfdFlags::CLOEXEC)?);
        file.set_len(length)?;
        let bytes = usize::try_from(length).map_err(io::Error::other)?;
        let at = FileOffset::new(file.try_clone()?, 0);
        let region = Arc::new(MmapRegion::from_file(at, bytes).map_err(io::Error::other)?);
        let pages = SharedMemory::new(vec![Piece { region, region_offset: 0, length }], None);
        let mut before = vec![0; bytes / 8];
        let bar = Bar::before(&view)?;
        for (index, place) in before.iter_mut().enumerate() {
            *place = word(blob, index);
            let target = pages.word(index as u64 * 8);
            target.into_iter().for_each(|target| target.store(*place, Ordering::Relaxed));
        }
        show_part(&view, 0, length, &file, 0)?;
        drop(bar);
        Ok(Self { view, pages, before })
    }

    /// Puts the blob where its stand-in is, with what was stored there meanwhile. `blob`: the same bytes at another address,
    /// or zeros, where it `is_empty`.
    pub(crate) fn give_back(
        self,
        blob: &SharedMemory,
        is_empty: bool,
        show: impl FnOnce(&SharedMemory) -> Result<(), TransportError>,
    ) -> Result<(), TransportError> {
        let Self { view, pages, mut before } = self;
        let refused =
            |source: io::Error| TransportError::System { what: "a bar before a blob", source: source.into() };
        if is_empty {
            before.fill(0);
        }
        let mut bring = || {
            for (index, old) in before.iter_mut().enumerate() {
                let now = word(&pages, index);
                if now != *old {
                    store_changed(blob, index, *old, now);
                    *old = now;
                }
            }
        };
        // Most of it while no thread has to wait.
        bring();
        let bar = Bar::before(&view).map_err(refused)?;
        bring();
        let shown = show(&view);
        drop(bar);
        shown
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering;

    use rustix::fs::MemfdFlags;
    use vm_memory::FileOffset;
    use vm_memory::MmapRegion;

    use super::StandIn;
    use super::show_file;
    use crate::transport::error::TransportError;
    use crate::transport::shared_memory::Piece;
    use crate::transport::shared_memory::SharedMemory;

    const BYTES: u64 = 64 * 4096;

    fn blob() -> File {
        let file = File::from(rustix::fs::memfd_create("blob", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(BYTES).unwrap();
        file
    }

    fn map(file: &File) -> SharedMemory {
        let at = FileOffset::new(file.try_clone().unwrap(), 0);
        let region = Arc::new(MmapRegion::from_file(at, usize::try_from(BYTES).unwrap()).unwrap());
        SharedMemory::new(vec![Piece { region, region_offset: 0, length: BYTES }], None)
    }

    fn show(view: &SharedMemory, file: &File) -> Result<(), TransportError> {
        show_file(view, file, 0, BYTES).unwrap();
        Ok(())
    }

    fn byte(memory: &SharedMemory, at: u64) -> u8 {
        memory.byte(at).unwrap().load(Ordering::Relaxed)
    }

    #[test]
    fn a_blob_comes_back_at_its_address_with_what_was_stored_meanwhile_and_what_the_daemon_stored() {
        let (first, second) = (blob(), blob());
        let view = map(&first);
        view.write(0, &[1, 2, 3]).unwrap();
        let away = StandIn::take_over(view.clone(), &map(&first)).unwrap();
        view.write(1, &[7]).unwrap();
        view.write(BYTES - 1, &[9]).unwrap();
        let of = map(&first);
        assert_eq!((byte(&of, 1), byte(&view, 0), byte(&view, 1)), (2, 1, 7), "the blob is left alone");
        // What the daemon has, it has from the blob as it was.
        let again = map(&second);
        again.write(0, &[1, 2, 3, 4]).unwrap();
        away.give_back(&again, false, |view| show(view, &second)).unwrap();
        let bytes = [0, 1, 2, 3, BYTES - 1].map(|at| (byte(&view, at), byte(&again, at)));
        assert_eq!(bytes, [(1, 1), (7, 7), (3, 3), (4, 4), (9, 9)]);
        view.write(2, &[8]).unwrap();
        assert_eq!(byte(&again, 2), 8, "it is the blob");
    }

    #[test]
    fn only_whole_pages_of_a_view_are_replaced() {
        let (first, second) = (blob(), blob());
        let view = map(&first);
        (0..BYTES).for_each(|at| view.byte(at).unwrap().store(1, Ordering::Relaxed));
        let page = rustix::param::page_size() as u64;
        let part = |region_offset: usize, length: u64| {
            let region = Arc::new(MmapRegion::<()>::new(usize::try_from(2 * page).unwrap()).unwrap());
            SharedMemory::new(vec![Piece { region, region_offset, length }], None)
        };
        let refused = |view: &SharedMemory, offset: u64, length: u64| {
            let error = show_file(view, &second, offset, length).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
            error.to_string()
        };
        for (offset, length) in [(0, page - 1), (0, page + 1), (0, 0), (1, page), (page / 2, page)] {
            let text = refused(&view, offset, length);
            assert!(text.contains("not whole pages"), "{text}");
        }
        assert!(refused(&part(8, page), 0, page).contains("not whole pages"), "it begins within a page");
        refused(&part(0, page), 0, 2 * page);
        refused(&view, 0, BYTES + page);
        assert!((0..BYTES).all(|at| byte(&view, at) == 1), "nothing was replaced");
        show_file(&view, &second, page, page).unwrap();
        assert_eq!([0, page - 1, page].map(|at| byte(&view, at)), [0, 0, 1], "one page was");
    }

    #[test]
    fn nothing_that_a_thread_stores_while_pages_change_hands_is_lost() {
        for _ in 0..50 {
            let (first, second) = (blob(), blob());
            let view = map(&first);
            let (ends, alias) = (AtomicBool::new(false), map(&first));
            let stored = std::thread::scope(|scope| {
                let stores = scope.spawn(|| {
                    let mut counts = [0_u64; 64];
                    while !ends.load(Ordering::Relaxed) {
                        for (page, count) in (0..).zip(&mut counts) {
                            let word = view.word(page * 4096 + page * 8).unwrap();
                            assert_eq!(word.load(Ordering::Relaxed), *count, "page {page}");
                            *count += 1;
                            word.store(*count, Ordering::Relaxed);
                        }
                    }
                    counts
                });
                let away = StandIn::take_over(view.clone(), &alias).unwrap();
                let again = map(&second);
                let mut bytes = vec![0; usize::try_from(BYTES).unwrap()];
                alias.read(0, &mut bytes).unwrap();
                again.write(0, &bytes).unwrap();
                away.give_back(&again, false, |view| show(view, &second)).unwrap();
                ends.store(true, Ordering::Relaxed);
                stores.join().unwrap()
            });
            let again = map(&second);
            for (page, count) in (0..).zip(stored) {
                let word = again.word(page * 4096 + page * 8).unwrap().load(Ordering::Relaxed);
                assert_eq!(word, count, "page {page}");
            }
        }
    }
}

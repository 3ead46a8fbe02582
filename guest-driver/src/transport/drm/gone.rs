//! Memory of a device that is unplugged while a program has it mapped.
//!
//! The guest's kernel takes the pages away; a thread that touches them gets SIGBUS. A handler puts zeros where the
//! whole mapping was, so that the program goes on and finds in its device page, in which no device is active, that the
//! device is gone. A device that is taken away in order never comes to that (`transport/away.rs`).
//!
//! JUSTIFICATION: mmap over a mapping that others hold pointers into.
#![allow(unsafe_code, reason = "mmap with MAP_FIXED: no safe wrapper exists")]

use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use crate::transport::fault;
use crate::transport::fault::FaultSignal;

/// What says that pages are gone.
static SIGNAL: FaultSignal = FaultSignal::new(libc::SIGBUS);
/// All mappings of render nodes in this process.
static PLACES: Places = Places::new();
/// Who adds one.
static ADDS: Mutex<()> = Mutex::new(());

/// Places of one part.
const PART: usize = 128;

/// Ranges of addresses. The handler reads them, so nothing of it is ever freed.
struct Places {
    /// Where each starts, and where it ends; an end of zero is a free slot.
    slots: [(AtomicUsize, AtomicUsize); PART],
    /// Where these are too few.
    more: OnceLock<Box<Places>>,
}

impl Places {
    const fn new() -> Self {
        Self { slots: [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; PART], more: OnceLock::new() }
    }

    fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |part| part.more.get().map(|more| &**more))
    }

    fn slots(&self) -> impl Iterator<Item = &(AtomicUsize, AtomicUsize)> {
        self.parts().flat_map(|part| &part.slots)
    }

    /// One thread at a time.
    fn add(&self, range: &Range<usize>) {
        let mut part = self;
        loop {
            let free = part.slots.iter().find(|(_, end)| end.load(Ordering::Relaxed) == 0);
            if let Some((start, end)) = free {
                // PAIRS WITH the acquires of `find`: a thread that sees this start sees the slot free before it.
                start.store(range.start, Ordering::Release);
                return end.store(range.end, Ordering::Release);
            }
            part = part.more.get_or_init(|| Box::new(Self::new()));
        }
    }

    fn remove(&self, range: &Range<usize>) {
        let is_it = |(start, end): &&(AtomicUsize, AtomicUsize)| {
            end.load(Ordering::Relaxed) == range.end && start.load(Ordering::Relaxed) == range.start
        };
        self.slots().find(is_it).into_iter().for_each(|(_, end)| end.store(0, Ordering::Release));
    }

    fn find(&self, address: usize) -> Option<Range<usize>> {
        // A slot that changes meanwhile is none: its two words would be of two ranges.
        let range = |(start, end): &(AtomicUsize, AtomicUsize)| {
            let before = end.load(Ordering::Acquire);
            let start = start.load(Ordering::Acquire);
            (end.load(Ordering::Acquire) == before).then_some(start..before)
        };
        self.slots().filter_map(range).find(|range| range.contains(&address))
    }
}

/// Zeros where a mapping was.
fn put_zeros(range: &Range<usize>) -> bool {
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    let at = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: mmap is a bare system call. The range is one whole mapping of `mapping.rs`, of which pages are gone; it is
    // reached through volatile slices, atomics and raw pointers alone, which promise nothing of its contents.
    let placed = unsafe { libc::mmap(at, range.len(), rights, flags, -1, 0) };
    placed != libc::MAP_FAILED
}

extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // Not a page that broke.
    let is_gone = fault::code(info) == libc::BUS_ADRERR;
    let place = PLACES.find(fault::address(info)).filter(|_| is_gone);
    if !place.is_some_and(|range| fault::keeping_errno(|| put_zeros(&range))) {
        SIGNAL.hand_on(info, context);
    }
}

/// A mapping whose pages may go, for as long as this is kept.
#[derive(Debug)]
pub(super) struct Watched {
    range: Range<usize>,
}

impl Watched {
    /// The mapping at these addresses.
    pub(super) fn over(range: Range<usize>) -> io::Result<Self> {
        let _alone = ADDS.lock().unwrap_or_else(PoisonError::into_inner);
        SIGNAL.install(on_fault)?;
        PLACES.add(&range);
        Ok(Self { range })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        PLACES.remove(&self.range);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::PART;
    use super::Places;
    use crate::transport::drm::mapping;

    #[test]
    fn places_are_found_until_they_are_given_up_however_many_there_are() {
        let places = Places::new();
        let all: Vec<_> = (1..=3 * PART).map(|at| at << 12..(at + 1) << 12).collect();
        all.iter().for_each(|range| places.add(range));
        assert!(all.iter().all(|range| places.find(range.start + 0xfff).as_ref() == Some(range)));
        places.remove(&all[200]);
        assert_eq!((places.find(all[200].start), places.find(0xfff)), (None, None));
        places.add(&(0..8));
        assert_eq!((places.find(7), places.parts().count()), (Some(0..8), 3));
    }

    #[test]
    fn who_reads_what_is_gone_reads_zeros() {
        let file = File::from(rustix::fs::memfd_create("node", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(0x2000).unwrap();
        let memory = mapping::map(file.as_fd(), 0, 0x2000).unwrap();
        memory.write(0x1000, &[7; 8]).unwrap();
        // The pages go, as those of a device do that is unplugged.
        file.set_len(0).unwrap();
        let mut bytes = [1; 8];
        memory.read(0x1000, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
        memory.write(0, &[9; 8]).unwrap();
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [9; 8], "and what is stored stays");
    }
}

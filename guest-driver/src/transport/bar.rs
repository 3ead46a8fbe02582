//! A bar before memory that changes hands: a thread that touches it waits a moment, and goes on where it was.
//!
//! ```text
//!   mover:  range noted ─▶ no access to it ─▶ pages change hands ─▶ access ─▶ bar lifted
//!   others: load or store ─▶ fault ─▶ handler: in the range? sleep until it is lifted ─▶ the same instruction again
//! ```
//!
//! The handler of SIGSEGV is set with the first bar, and hands on what is not its own. One range at a time is barred in a
//! process; but a thread that has faulted may not reach the handler before that bar and others after it are lifted, as
//! its CPU may be a virtual one that stands still. So ranges are remembered for long. A system call that is given a
//! pointer into one that is barred fails with EFAULT.
//!
//! JUSTIFICATION: sleeping in a signal handler, and access rights of memory that others hold pointers into.
#![allow(unsafe_code, reason = "nanosleep in a handler, and mprotect: no safe wrapper exists")]

use std::io;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use rustix::mm::MprotectFlags;

use super::fault;
use super::fault::FaultSignal;
use super::shared_memory::SharedMemory;

/// Who has the bar.
static MOVER: Mutex<()> = Mutex::new(());
/// What is and was barred in this process.
static RANGES: Ranges = Ranges::new();
/// How many ranges are remembered: a thread that has faulted may stand still while so many others are barred.
const REMEMBERED: usize = 256;
/// More faults than this behind a lifted bar are the program's own.
const MOST_AGAIN: usize = 100_000;
/// Nanoseconds between two looks.
const NAP: i64 = 50_000;

/// What says that a thread waits before it.
static SIGNAL: FaultSignal = FaultSignal::new(libc::SIGSEGV);

/// Ranges of addresses: those of the last bars, of which one may stand. Only the holder of [`MOVER`] changes it.
#[derive(Debug)]
struct Ranges {
    /// Used one after the other and round again: where each starts, and where it ends.
    slots: [(AtomicUsize, AtomicUsize); REMEMBERED],
    /// The slot of the range that is barred now, counted from one.
    barred: AtomicUsize,
    /// Bars so far.
    bars: AtomicUsize,
    /// Faults behind lifted bars, since the last bar.
    again: AtomicUsize,
}

fn is_in(address: usize, (start, end): &(AtomicUsize, AtomicUsize)) -> bool {
    address < end.load(Ordering::Acquire) && address >= start.load(Ordering::Acquire)
}

impl Ranges {
    const fn new() -> Self {
        let slots = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; REMEMBERED];
        let (barred, bars, again) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Self { slots, barred, bars, again }
    }

    fn bar(&self, range: std::ops::Range<usize>) {
        let slot = self.bars.fetch_add(1, Ordering::Relaxed) % REMEMBERED;
        if let Some((start, end)) = self.slots.get(slot) {
            end.store(0, Ordering::Release);
            start.store(range.start, Ordering::Release);
            end.store(range.end, Ordering::Release);
        }
        self.again.store(0, Ordering::Relaxed);
        self.barred.store(slot + 1, Ordering::Release);
    }

    fn lift(&self) {
        self.barred.store(0, Ordering::Release);
    }

    /// Whether no thread may touch this address now.
    fn is_barred(&self, address: usize) -> bool {
        let slot = self.barred.load(Ordering::Acquire).checked_sub(1);
        slot.and_then(|slot| self.slots.get(slot)).is_some_and(|range| is_in(address, range))
    }

    /// Whether a fault there may come of a bar that has been lifted since.
    fn was_barred(&self, address: usize) -> bool {
        self.slots.iter().any(|range| is_in(address, range))
            && self.again.fetch_add(1, Ordering::Relaxed) < MOST_AGAIN
    }
}

extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let address = fault::address(info);
    let mut has_waited = false;
    while RANGES.is_barred(address) {
        has_waited = true;
        let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP };
        // SAFETY: nanosleep is async-signal-safe, and takes a valid time.
        fault::keeping_errno(|| unsafe { libc::nanosleep(&raw const nap, std::ptr::null_mut()) });
    }
    if !has_waited && !RANGES.was_barred(address) {
        SIGNAL.hand_on(info, context);
    }
}

/// A bar. Dropping it lifts it: by then there is memory to read and write.
#[derive(Debug)]
pub(super) struct Bar<'a> {
    view: &'a SharedMemory,
    _mover: MutexGuard<'static, ()>,
}

fn protect(view: &SharedMemory, flags: MprotectFlags) -> io::Result<()> {
    let slice = view.slice(0, view.len()).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the range is whole pages of one mapping that `view` keeps, and its memory stays what it is. What touches it
    // while it has no access is stopped by the handler of this module.
    Ok(unsafe { rustix::mm::mprotect(slice.ptr_guard_mut().as_ptr().cast(), slice.len(), flags) }?)
}

impl<'a> Bar<'a> {
    /// Bars a view that is in one piece. From here on only the kernel touches it.
    pub(super) fn before(view: &'a SharedMemory) -> io::Result<Self> {
        let mover = MOVER.lock().unwrap_or_else(PoisonError::into_inner);
        SIGNAL.install(on_fault)?;
        let slice = view.slice(0, view.len()).ok_or(io::ErrorKind::InvalidInput)?;
        let start = slice.ptr_guard_mut().as_ptr().addr();
        RANGES.bar(start..start + slice.len());
        let bar = Self { view, _mover: mover };
        protect(view, MprotectFlags::empty())?;
        Ok(bar)
    }
}

impl Drop for Bar<'_> {
    fn drop(&mut self) {
        if let Err(error) = protect(self.view, MprotectFlags::READ | MprotectFlags::WRITE) {
            log::error!("memory that changed hands cannot be touched: {error}");
        }
        RANGES.lift();
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn a_fault_that_comes_many_bars_late_is_still_known_for_one() {
        let ranges = Ranges::new();
        ranges.bar(0x1000..0x3000);
        assert!([0x1000, 0x2fff].iter().all(|address| ranges.is_barred(*address)));
        assert!([0xfff, 0x3000].iter().all(|address| !ranges.is_barred(*address)));
        ranges.lift();
        for _ in 0..100 {
            ranges.bar(0x8000..0x9000);
            assert!(!ranges.is_barred(0x1000) && ranges.was_barred(0x1000));
            ranges.lift();
        }
        assert!(!ranges.was_barred(0x4000), "this was never barred");
    }
}

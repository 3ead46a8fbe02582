//! Ring against disconnect.
//!
//! ```text
//!   guest                              daemon                      engine
//!   write pointer = n                  status = RETRY
//!   cell = n, summary |= bit           ── full fence ──
//!   ── full fence ──                   slot off, sequence + 1 ───▶ ── full fence ──
//!   status?                                                        write pointer?  (final look)
//! ```
//!
//! The guest reads RETRY, or the final look finds n; both is fine, neither is impossible.
//!
//! In the global model many queues ring one cell, and a later ring hides an earlier one from the engine. It must find
//! the earlier one's write pointer all the same (UMS-10):
//!
//! ```text
//!   guest, queue a       guest, queue b       engine
//!   a's pointer = n      b's pointer = m      swap(cell, 0) = b
//!   swap(cell, a)        swap(cell, b)        every pointer of the process, a's and b's
//! ```
//!
//! The swaps make one chain: the side that takes b has synchronized with a too. With plain stores it would not have.
//! The side that swaps a ring away says so in the cell, so that the engine knows at once that it must look at more than
//! one queue.

use core::sync::atomic::Ordering;

use super::word::Word;
use crate::queue::doorbell::GLOBAL_HIDDEN;

/// The words of one doorbell, as the guest maps them.
#[derive(Debug, Clone, Copy)]
pub struct Doorbell<'a, W> {
    /// Write pointer in the ring control.
    pub write_pointer: &'a W,
    /// The doorbell cell.
    pub cell: &'a W,
    /// The summary word of the process.
    pub summary: &'a W,
    /// Its bit for this cell.
    pub summary_bit: u64,
    /// The status word.
    pub status: &'a W,
}

impl<W: Word> Doorbell<'_, W> {
    /// Guest: makes `value` entries visible, rings, and returns the status read after the ring (UMS-89, UMS-90).
    /// The entries themselves must have been stored before (UMS-92).
    #[must_use = "RETRY means that the ring may have reached nothing"]
    pub fn ring(&self, value: u64) -> u64 {
        // PAIRS WITH `final_look` and `take_rung`: entries before pointer, pointer before cell, cell before summary.
        self.write_pointer.store(value, Ordering::Release);
        self.cell.store(value, Ordering::Release);
        self.summary.fetch_or(self.summary_bit, Ordering::Release);
        // PAIRS WITH `disconnect`.
        W::full_fence();
        self.status.load(Ordering::Acquire)
    }
}

/// The words of one doorbell of the global model, as the guest maps them.
#[derive(Debug, Clone, Copy)]
pub struct GlobalDoorbell<'a, W> {
    /// Write pointer in the ring control.
    pub write_pointer: &'a W,
    /// The cell of the process and node.
    pub cell: &'a W,
    /// What names this queue there ([`crate::queue::doorbell::global_value`]).
    pub value: u64,
    /// The status word.
    pub status: &'a W,
}

impl<W: Word> GlobalDoorbell<'_, W> {
    /// Guest: as [`Doorbell::ring`], through the cell that all queues of the process share.
    #[must_use = "RETRY means that the ring may have reached nothing"]
    pub fn ring(&self, write_pointer: u64) -> u64 {
        self.write_pointer.store(write_pointer, Ordering::Release);
        // PAIRS WITH `take_global`: a swap, so that the next ring hands this ring on as well.
        if self.cell.swap(self.value, Ordering::AcqRel) != 0 {
            // Another queue's ring, or an earlier one of this, had not been taken: the engine sees no more than ours.
            self.cell.fetch_or(GLOBAL_HIDDEN, Ordering::AcqRel);
        }
        // PAIRS WITH `disconnect`.
        W::full_fence();
        self.status.load(Ordering::Acquire)
    }
}

/// Engine: the value of the last ring since the last call, or zero. The write pointers of all queues that rang since
/// then are visible after it. Costs one load of a cached line when none did.
#[must_use]
pub fn take_global<W: Word>(cell: &W) -> u64 {
    if cell.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // PAIRS WITH `GlobalDoorbell::ring`.
    cell.swap(0, Ordering::Acquire)
}

/// Engine: a write pointer after [`take_global`].
pub fn recheck<W: Word>(write_pointer: &W) -> u64 {
    // PAIRS WITH `GlobalDoorbell::ring`, through `take_global`.
    write_pointer.load(Ordering::Acquire)
}

/// Daemon: publishes a DISCONNECTED status, then lets `unwatch` take the slot away and raise the watch
/// sequence (UMS-67, UMS-70).
pub fn disconnect<W: Word>(status: &W, word: u64, unwatch: impl FnOnce()) {
    status.store(word, Ordering::Release);
    // PAIRS WITH `Doorbell::ring`.
    W::full_fence();
    unwatch();
}

/// Engine: the last look at a queue whose slot was taken away, after an acquire load of the watch sequence
/// (UMS-71, UMS-122). Also the first look after a connect (UMS-64).
pub fn final_look<W: Word>(write_pointer: &W) -> u64 {
    // PAIRS WITH `Doorbell::ring`, through `disconnect`.
    W::full_fence();
    write_pointer.load(Ordering::Acquire)
}

/// Engine: which groups of cells were rung since the last call. Costs one load of a cached line when none was.
#[must_use]
pub fn take_rung<W: Word>(summary: &W) -> u64 {
    if summary.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // PAIRS WITH `Doorbell::ring`: what the bits stand for is visible after this.
    summary.swap(0, Ordering::Acquire)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering;

    use super::Doorbell;
    use super::GLOBAL_HIDDEN;
    use super::GlobalDoorbell;
    use super::disconnect;
    use super::final_look;
    use super::recheck;
    use super::take_global;
    use super::take_rung;

    fn read(word: &AtomicU64) -> u64 {
        word.load(Ordering::Relaxed)
    }

    #[test]
    fn a_ring_stores_pointer_and_cell_marks_the_summary_and_returns_the_status() {
        let [write_pointer, cell, status] = [const { AtomicU64::new(0) }; 3];
        let summary = AtomicU64::new(0b100);
        status.store(7, Ordering::Relaxed);
        let doorbell = Doorbell {
            write_pointer: &write_pointer,
            cell: &cell,
            summary: &summary,
            summary_bit: 0b10,
            status: &status,
        };
        assert_eq!(doorbell.ring(42), 7);
        assert_eq!([read(&write_pointer), read(&cell), read(&summary)], [42, 42, 0b110]);
    }

    #[test]
    fn a_global_ring_names_its_queue_and_says_where_it_hides_another() {
        let [write_pointer, cell, status] = [const { AtomicU64::new(0) }; 3];
        status.store(7, Ordering::Relaxed);
        let doorbell =
            GlobalDoorbell { write_pointer: &write_pointer, cell: &cell, value: 3, status: &status };
        assert_eq!(doorbell.ring(42), 7);
        assert_eq!([read(&write_pointer), read(&cell)], [42, 3]);
        assert_eq!(doorbell.ring(43), 7);
        assert_eq!([read(&write_pointer), read(&cell)], [43, 3 | GLOBAL_HIDDEN]);
    }

    #[test]
    fn a_cell_and_a_summary_are_taken_once() {
        let takes: [fn(&AtomicU64) -> u64; 2] = [take_global, take_rung];
        for take in takes {
            let word = AtomicU64::new(0b1010);
            assert_eq!(take(&word), 0b1010);
            assert_eq!(read(&word), 0);
            assert_eq!(take(&word), 0);
        }
    }

    #[test]
    fn a_look_is_at_the_write_pointer() {
        let write_pointer = AtomicU64::new(42);
        assert_eq!(recheck(&write_pointer), 42);
        assert_eq!(final_look(&write_pointer), 42);
    }

    #[test]
    fn ums_67_the_status_says_disconnected_before_the_slot_is_taken_away() {
        let status = AtomicU64::new(0);
        let mut seen = None;
        disconnect(&status, 2, || seen = Some(read(&status)));
        assert_eq!(seen, Some(2));
    }
}

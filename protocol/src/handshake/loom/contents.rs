//! UMS-92: what a guest has put into its ring is there when the engine sees the ring, by whichever way it sees it;
//! and what the engine still reads is not written over.
//!
//! ```text
//!   guest                                   engine
//!   entry n ─▶ write pointer ─▶ cell        summary ⇐ 0 ─▶ cell ──┐
//!     ─▶ summary ─▶ status                  final look ─▶ pointer ┴▶ pending ─▶ entry n ─▶ read pointer
//!   read pointer ─▶ room ─▶ entry n + 2
//! ```
//!
//! Entries are stored and loaded relaxed, as the bytes of a ring are: only the words around them order them. A cell
//! beside each, which the checker watches, tells where a load and a store of it are not in order at all.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::words::Modelled;
use super::words::Relaxed;
use super::words::Strong;
use crate::handshake::doorbell;
use crate::queue::ring;
use crate::queue::ring::Pending;

/// Entries of the modelled ring.
const ENTRIES: u32 = 2;

/// One ring with its doorbell. `W`: the words of the doorbell. `R`: the read pointer.
struct Queue<W, R> {
    entries: [(UnsafeCell<()>, AtomicU64); ENTRIES as usize],
    write_pointer: W,
    read_pointer: R,
    cell: W,
    summary: W,
    status: W,
}

impl<W: Modelled, R: Modelled> Queue<W, R> {
    fn new() -> Self {
        Self {
            entries: std::array::from_fn(|_| (UnsafeCell::new(()), AtomicU64::new(0))),
            write_pointer: W::new(0),
            read_pointer: R::new(0),
            cell: W::new(0),
            summary: W::new(0),
            status: W::new(0),
        }
    }

    fn entry(&self, count: u64) -> &(UnsafeCell<()>, AtomicU64) {
        &self.entries[usize::try_from(count % u64::from(ENTRIES)).unwrap()]
    }

    /// Guest: the `count`-th entry, counted from zero, with something to know it by; then the ring.
    fn submit(&self, count: u64) {
        let (access, entry) = self.entry(count);
        access.with_mut(|_| ());
        entry.store(100 + count, Ordering::Relaxed);
        let bell = doorbell::Doorbell {
            write_pointer: &self.write_pointer,
            cell: &self.cell,
            summary: &self.summary,
            summary_bit: 1,
            status: &self.status,
        };
        let _connected = bell.ring(count + 1);
    }

    /// Guest: whether the `count`-th entry has room.
    fn has_room(&self, count: u64) -> bool {
        // PAIRS WITH the engine's release of the read pointer.
        count - self.read_pointer.load(Ordering::Acquire) < u64::from(ENTRIES)
    }

    /// Engine: runs what the write pointer covers; how many entries it has run now.
    fn run(&self, mut consumed: u64, write_pointer: u64) -> u64 {
        // An old cell, read again, says less than the ring control did.
        if write_pointer < consumed {
            return consumed;
        }
        let count = match ring::pending(consumed, write_pointer, ENTRIES) {
            Pending::Nothing => 0,
            Pending::Entries(count) => count,
            Pending::Invalid => panic!("a write pointer that cannot be: {write_pointer} after {consumed}"),
        };
        for _ in 0..count {
            let (access, entry) = self.entry(consumed);
            access.with(|_| ());
            assert_eq!(
                entry.load(Ordering::Relaxed),
                100 + consumed,
                "another entry was read than was rung for"
            );
            consumed += 1;
            self.read_pointer.store(consumed, Ordering::Release);
        }
        consumed
    }

    /// Engine: one look at the summary, as it polls.
    fn poll(&self, consumed: u64) -> u64 {
        if doorbell::take_rung(&self.summary) == 0 {
            return consumed;
        }
        self.run(consumed, self.cell.load(Ordering::Acquire))
    }

    /// Engine: one look at the ring control, as after a connect and before a disconnect is done.
    fn look(&self, consumed: u64) -> u64 {
        self.run(consumed, doorbell::final_look(&self.write_pointer))
    }
}

/// A guest that rings against an engine that looks, both ways; when all stand still, nothing is left.
fn contents_and_doorbell<W: Modelled, R: Modelled>(wraps: bool) {
    loom::model(move || {
        let queue = Arc::new(Queue::<W, R>::new());
        let guest = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                queue.submit(0);
                if !wraps {
                    return 1;
                }
                queue.submit(1);
                if !queue.has_room(2) {
                    return 2;
                }
                queue.submit(2);
                3
            })
        };
        let consumed = queue.poll(0);
        let consumed = queue.look(consumed);
        let written = guest.join().unwrap();
        let consumed = queue.poll(consumed);
        assert_eq!(consumed, written, "a ring was lost");
    });
}

#[test]
fn ums_92_an_entry_is_there_before_its_ring() {
    contents_and_doorbell::<Strong, Strong>(false);
}

#[test]
fn ums_92_an_entry_is_read_before_its_room_is_given_back() {
    contents_and_doorbell::<Strong, Strong>(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_twin_without_release_reads_an_entry_that_is_not_there() {
    contents_and_doorbell::<Relaxed, Strong>(false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_twin_with_a_relaxed_read_pointer_reads_an_entry_that_was_overwritten() {
    contents_and_doorbell::<Strong, Relaxed>(true);
}

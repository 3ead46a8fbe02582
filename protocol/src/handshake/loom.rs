//! The handshakes under the model checker, each with a twin whose fence is taken out.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::fence;
use loom::thread;

use super::doorbell;
use super::fence as native_fence;
use super::grant;
use super::power;
use super::word::Word;
use crate::queue::doorbell::GLOBAL_HIDDEN;

/// A modelled word whose full fence is real.
struct Strong(AtomicU64);
/// A modelled word whose full fence is missing.
struct Weak(AtomicU64);

trait Modelled: Word + Send + Sync + 'static {
    fn new(value: u64) -> Self;
}

macro_rules! modelled {
    ($name:ident, $fence:block) => {
        impl Word for $name {
            fn load(&self, order: Ordering) -> u64 {
                self.0.load(order)
            }
            fn store(&self, value: u64, order: Ordering) {
                self.0.store(value, order);
            }
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                self.0.swap(value, order)
            }
            fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
                self.0.fetch_or(bits, order)
            }
            fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
                self.0.compare_exchange(current, new, success, Ordering::Acquire)
            }
            fn full_fence() $fence
        }
        impl Modelled for $name {
            fn new(value: u64) -> Self {
                Self(AtomicU64::new(value))
            }
        }
    };
}

modelled!(Strong, { fence(Ordering::SeqCst) });
modelled!(Weak, {});

/// A modelled word that orders nothing but itself.
struct Loose(AtomicU64);

impl Word for Loose {
    fn load(&self, _: Ordering) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, value: u64, _: Ordering) {
        self.0.store(value, Ordering::Relaxed);
    }
    fn swap(&self, value: u64, _: Ordering) -> u64 {
        self.0.swap(value, Ordering::Relaxed)
    }
    fn fetch_or(&self, bits: u64, _: Ordering) -> u64 {
        self.0.fetch_or(bits, Ordering::Relaxed)
    }
    fn compare_exchange(&self, current: u64, new: u64, _: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
    }
    fn full_fence() {}
}

impl Modelled for Loose {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
}

/// A modelled word whose swaps order nothing: what a driver has that rings a global cell with plain stores.
struct Plain(AtomicU64);

impl Word for Plain {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        if value == 0 {
            return self.0.swap(value, order);
        }
        self.0.store(value, Ordering::Release);
        0
    }
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_or(bits, order)
    }
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, Ordering::Acquire)
    }
    fn full_fence() {}
}

impl Modelled for Plain {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
}

const CONNECTED: u64 = 0;
const RETRY: u64 = 2;

fn ring_against_disconnect<W: Modelled>() {
    loom::model(|| {
        let write_pointer = Arc::new(W::new(0));
        let cell = Arc::new(W::new(0));
        let summary = Arc::new(W::new(0));
        let status = Arc::new(W::new(CONNECTED));
        let sequence = Arc::new(AtomicU64::new(0));

        let guest = {
            let (write_pointer, cell) = (Arc::clone(&write_pointer), Arc::clone(&cell));
            let (summary, status) = (Arc::clone(&summary), Arc::clone(&status));
            thread::spawn(move || {
                let words = doorbell::Doorbell {
                    write_pointer: &*write_pointer,
                    cell: &*cell,
                    summary: &*summary,
                    summary_bit: 1,
                    status: &*status,
                };
                words.ring(1)
            })
        };
        let daemon = {
            let (status, sequence) = (Arc::clone(&status), Arc::clone(&sequence));
            thread::spawn(move || {
                doorbell::disconnect(&*status, RETRY, || sequence.store(1, Ordering::Release));
            })
        };
        // The engine, once it has seen the slot go.
        let found = if sequence.load(Ordering::Acquire) == 1 {
            Some(doorbell::final_look(&*write_pointer))
        } else {
            None
        };
        let read = guest.join().unwrap();
        daemon.join().unwrap();
        if let Some(found) = found {
            assert!(
                read == RETRY || found == 1,
                "a ring was lost: the guest read CONNECTED, the engine found nothing"
            );
        }
    });
}

/// A ring entry, and a ring in either model: whoever sees the ring, or the write pointer, sees the entry (UMS-92).
fn entry_before_ring<W: Modelled>(is_global: bool) {
    loom::model(move || {
        let entry = Arc::new(AtomicU64::new(0));
        let words = [0, 0, 0, CONNECTED].map(|value| Arc::new(W::new(value)));
        let guest = {
            let entry = Arc::clone(&entry);
            let [write_pointer, cell, summary, status] = words.each_ref().map(Arc::clone);
            thread::spawn(move || {
                entry.store(7, Ordering::Relaxed);
                let (write_pointer, cell, status) = (&*write_pointer, &*cell, &*status);
                if is_global {
                    doorbell::GlobalDoorbell { write_pointer, cell, value: 1, status }.ring(1)
                } else {
                    doorbell::Doorbell { write_pointer, cell, summary: &*summary, summary_bit: 1, status }
                        .ring(1)
                }
            })
        };
        let [write_pointer, cell, summary, _] = &words;
        let rung = if is_global {
            doorbell::take_global(&**cell) != 0 && doorbell::glance(&**write_pointer) == 1
        } else {
            doorbell::take_rung(&**summary) != 0 && cell.load(Ordering::Acquire) == 1
        };
        if rung || doorbell::final_look(&**write_pointer) == 1 {
            assert_eq!(write_pointer.load(Ordering::Relaxed), 1, "a ring came before its write pointer");
            assert_eq!(entry.load(Ordering::Relaxed), 7, "a ring came before its entry");
        }
        let _status = guest.join().unwrap();
    });
}

/// Two queues ring one cell. Once it is empty again, the engine has seen both.
fn two_rings_one_cell<W: Modelled>() {
    loom::model(|| {
        let cell = Arc::new(W::new(0));
        let status = Arc::new(W::new(CONNECTED));
        let pointers = [Arc::new(W::new(0)), Arc::new(W::new(0))];
        let rings = [0, 1].map(|index| {
            let (cell, status, pointer) =
                (Arc::clone(&cell), Arc::clone(&status), Arc::clone(&pointers[index]));
            thread::spawn(move || {
                let value = index as u64 + 1;
                let bell = doorbell::GlobalDoorbell {
                    write_pointer: &*pointer,
                    cell: &*cell,
                    value,
                    status: &*status,
                };
                assert_eq!(bell.ring(1), CONNECTED);
            })
        });
        let mut seen = [0, 0];
        if doorbell::take_global(&*cell) != 0 {
            seen = [0, 1].map(|index| doorbell::glance(&*pointers[index]));
        }
        for ring in rings {
            ring.join().unwrap();
        }
        // Of what is left, only those who are named; all of them where the cell says that a ring is hidden.
        let left = doorbell::take_global(&*cell);
        for index in 0..2 {
            let named = left & !GLOBAL_HIDDEN == index as u64 + 1;
            if named || left & GLOBAL_HIDDEN != 0 {
                seen[index] = doorbell::glance(&*pointers[index]);
            }
        }
        assert_eq!(seen, [1, 1], "a ring hid another");
    });
}

fn sleep_against_work<W: Modelled>() {
    loom::model(|| {
        let power_word = Arc::new(W::new(power::ACTIVE));
        let submitted = Arc::new(AtomicU64::new(0));
        let poked = Arc::new(AtomicBool::new(false));

        let daemon = {
            let (power_word, submitted, poked) =
                (Arc::clone(&power_word), Arc::clone(&submitted), Arc::clone(&poked));
            thread::spawn(move || {
                submitted.store(1, Ordering::Release);
                if power::needs_poke(&*power_word) {
                    poked.store(true, Ordering::Release);
                }
            })
        };
        let blocks = power::may_block(&*power_word, power::ASLEEP, || submitted.load(Ordering::Acquire) == 1);
        daemon.join().unwrap();
        assert!(
            !blocks || poked.load(Ordering::Acquire),
            "the engine sleeps on work that nobody will wake it for"
        );
    });
}

fn signal_against_wait<W: Modelled>() {
    loom::model(|| {
        let current = Arc::new(W::new(0));
        let monitored = Arc::new(W::new(native_fence::NOBODY));

        let engine = {
            let (current, monitored) = (Arc::clone(&current), Arc::clone(&monitored));
            thread::spawn(move || native_fence::signal(&*current, &*monitored, 1))
        };
        let read = native_fence::monitor(&*current, &*monitored, Some(1));
        let interrupted = engine.join().unwrap();
        assert!(interrupted || read == 1, "a waiter was missed: no interrupt, and the value was not seen");
    });
}

/// Two engines take turns; what they run on is one cell that must never be entered twice.
fn two_engines_one_node(wait_for_yield: bool) {
    loom::model(move || {
        let first = Arc::new(Strong::new(0));
        let second = Arc::new(Strong::new(0));
        let node = Arc::new(loom::cell::UnsafeCell::new(0u64));
        assert_eq!(grant::take_turn(&*first), grant::Turn::Ask);
        assert_eq!(grant::take_turn(&*second), grant::Turn::Ask);
        assert!(grant::give(&*first));

        let run = |word: Arc<Strong>, node: Arc<loom::cell::UnsafeCell<u64>>| {
            thread::spawn(move || {
                let turn = grant::take_turn(&*word);
                if matches!(turn, grant::Turn::Run | grant::Turn::Stop) {
                    node.with_mut(|_| ());
                    let _ = grant::release(&*word);
                }
            })
        };
        let one = run(Arc::clone(&first), Arc::clone(&node));
        let revoked = grant::revoke(&*first);
        let phase = grant::Grant::from_word(first.load(Ordering::Acquire));
        if !wait_for_yield || (!revoked && !phase.holds()) || !phase.holds() {
            assert!(grant::give(&*second));
        }
        let two = run(Arc::clone(&second), Arc::clone(&node));
        one.join().unwrap();
        two.join().unwrap();
    });
}

#[test]
fn loom_a_ring_is_never_lost() {
    ring_against_disconnect::<Strong>();
}

#[test]
#[should_panic(expected = "a ring was lost")]
fn loom_twin_without_fence_loses_a_ring() {
    ring_against_disconnect::<Weak>();
}

#[test]
fn ums_92_loom_entries_are_there_before_their_ring() {
    entry_before_ring::<Strong>(false);
    entry_before_ring::<Strong>(true);
}

#[test]
#[should_panic(expected = "a ring came before its")]
fn loom_twin_without_release_rings_before_its_entry() {
    entry_before_ring::<Loose>(false);
}

#[test]
#[should_panic(expected = "a ring came before its")]
fn loom_twin_without_release_rings_a_global_cell_before_its_entry() {
    entry_before_ring::<Loose>(true);
}

#[test]
fn loom_no_ring_of_a_global_cell_hides_another() {
    two_rings_one_cell::<Strong>();
}

#[test]
#[should_panic(expected = "a ring hid another")]
fn loom_twin_that_stores_hides_a_ring() {
    two_rings_one_cell::<Plain>();
}

#[test]
fn loom_an_engine_never_sleeps_on_work() {
    sleep_against_work::<Strong>();
}

#[test]
#[should_panic(expected = "the engine sleeps on work")]
fn loom_twin_without_fence_sleeps_on_work() {
    sleep_against_work::<Weak>();
}

#[test]
fn loom_a_waiter_is_never_missed() {
    signal_against_wait::<Strong>();
}

#[test]
#[should_panic(expected = "a waiter was missed")]
fn loom_twin_without_fence_misses_a_waiter() {
    signal_against_wait::<Weak>();
}

#[test]
fn loom_one_engine_at_a_time_runs_on_a_node() {
    two_engines_one_node(true);
}

#[test]
#[should_panic]
fn loom_twin_that_grants_before_the_yield_runs_two() {
    two_engines_one_node(false);
}

//! The two words between a virtual CPU and the thread that stops it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use rustix::thread::futex;

/// What [`Slot::acknowledged`] holds when the thread is no virtual CPU any more. Even, so no pause has that number.
pub(super) const ENDED: u32 = u32::MAX - 1;

/// The two words between a virtual CPU and the thread that stops it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Odd: stand still. A number of its own for each pause.
    pub(super) wanted: AtomicU32,
    /// The pause for which the thread stands, or stood last, or [`ENDED`].
    pub(super) acknowledged: AtomicU32,
}

thread_local! {
    static SLOT: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
}

/// Gives the calling thread the slot. `false` where it has one.
pub(super) fn take(slot: &Arc<Slot>) -> bool {
    SLOT.with(|own| {
        let mut own = own.borrow_mut();
        let is_free = own.is_none();
        if is_free {
            *own = Some(Arc::clone(slot));
        }
        is_free
    })
}

/// The calling thread has no slot any more.
pub(super) fn give_back() {
    SLOT.with(|own| *own.borrow_mut() = None);
}

/// Whether the calling thread is a virtual CPU.
pub(crate) fn is_one() -> bool {
    SLOT.try_with(|own| own.try_borrow().is_ok_and(|own| own.is_some())).unwrap_or(false)
}

/// Sleeps while the calling thread's slot says so. Async-signal-safe: it allocates nothing and takes no lock. A thread
/// that is just becoming a virtual CPU, or ceasing to be one, is let through: it looks again, or is waited for no more.
pub(super) fn stand() {
    let _no_slot_any_more = SLOT.try_with(|own| {
        if let Ok(own) = own.try_borrow()
            && let Some(slot) = &*own
        {
            slot.stand();
        }
    });
}

impl Slot {
    fn stand(&self) {
        loop {
            let pause = self.wanted.load(Ordering::SeqCst);
            if pause.is_multiple_of(2) {
                return;
            }
            self.acknowledged.store(pause, Ordering::SeqCst);
            wake(&self.acknowledged);
            // Any reason to wake up is a reason to look again.
            let _looked_again = futex::wait(&self.wanted, futex::Flags::PRIVATE, pause, None);
        }
    }
}

/// Wakes the threads that sleep on the word. It fails for no word that exists.
pub(super) fn wake(word: &AtomicU32) {
    let _woken = futex::wake(word, futex::Flags::PRIVATE, i32::MAX.cast_unsigned());
}

//! Code in which a virtual CPU is not stopped.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::sync::atomic::compiler_fence;

use super::slot;

thread_local! {
    /// Sections that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// A stop that came meanwhile.
    static MISSED: Cell<bool> = const { Cell::new(false) };
}

/// A stretch of code in which this thread, if it is a virtual CPU, does not stand still: it holds a lock that threads
/// which go on need. Sections nest. Keep them short: pausing the VM waits for them.
#[must_use]
#[derive(Debug)]
pub struct Section {
    /// It belongs to the thread.
    _here: PhantomData<*const ()>,
}

impl Section {
    /// Begins one. It ends when the value is dropped; a stop that came meanwhile takes place there.
    pub fn enter() -> Self {
        enter();
        Self { _here: PhantomData }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        leave();
    }
}

pub(super) fn enter() {
    DEPTH.with(|depth| depth.set(depth.get() + 1));
    // The handler runs on this thread: the compiler alone could move the locking out.
    compiler_fence(Ordering::SeqCst);
}

pub(super) fn leave() {
    compiler_fence(Ordering::SeqCst);
    let left = DEPTH.with(|depth| {
        depth.set(depth.get() - 1);
        depth.get()
    });
    compiler_fence(Ordering::SeqCst);
    if left == 0 && MISSED.with(|missed| missed.replace(false)) {
        slot::stand();
    }
}

/// What the signal's handler does: async-signal-safe.
pub(super) fn stop_here_or_later() {
    if DEPTH.with(Cell::get) > 0 {
        MISSED.with(|missed| missed.set(true));
    } else {
        slot::stand();
    }
}

//! Words as the checker sees them: right, without full fences, and without any order.

use core::sync::atomic::Ordering;

use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::fence;

use crate::handshake::word::Word;

/// A modelled word whose full fence is real.
pub(super) struct Strong(AtomicU64);
/// A modelled word whose full fence is missing.
pub(super) struct Weak(AtomicU64);

/// A word that a model can make.
pub(super) trait Modelled: Word + Send + Sync + 'static {
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

/// A modelled word that forgets release and acquire: all of its accesses are relaxed.
pub(super) struct Relaxed(AtomicU64);

impl Word for Relaxed {
    fn load(&self, _order: Ordering) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, value: u64, _order: Ordering) {
        self.0.store(value, Ordering::Relaxed);
    }
    fn swap(&self, value: u64, _order: Ordering) -> u64 {
        self.0.swap(value, Ordering::Relaxed)
    }
    fn fetch_or(&self, bits: u64, _order: Ordering) -> u64 {
        self.0.fetch_or(bits, Ordering::Relaxed)
    }
    fn compare_exchange(&self, current: u64, new: u64, _success: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
    }
    fn full_fence() {}
}

impl Modelled for Relaxed {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
}

/// A modelled word whose swaps order nothing: what a driver has that rings a global cell with plain stores.
pub(super) struct Plain(AtomicU64);

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

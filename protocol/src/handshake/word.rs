//! A shared 64-bit word, real or modelled.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

/// A 64-bit word that several processes load and store. Never torn (UMS-132).
pub trait Word {
    /// Loads.
    fn load(&self, order: Ordering) -> u64;
    /// Stores.
    fn store(&self, value: u64, order: Ordering);
    /// Exchanges.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Sets bits, and returns what was there.
    fn fetch_or(&self, bits: u64, order: Ordering) -> u64;
    /// Replaces `current` by `new`, or returns what is there instead.
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> Result<u64, u64>;
    /// A sequentially consistent fence, by which every handshake here stands.
    fn full_fence();
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        Self::swap(self, value, order)
    }

    fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        Self::fetch_or(self, bits, order)
    }

    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        Self::compare_exchange(self, current, new, success, Ordering::Acquire)
    }

    fn full_fence() {
        core::sync::atomic::fence(Ordering::SeqCst);
    }
}

//! Numbers that a VM counts up: of its boots, and of what its driver names.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

/// The counts.
pub(super) struct Numbers {
    /// Boots of the device; a context of an earlier one is gone.
    generation: AtomicU64,
    next_id: AtomicU32,
    next_fence: AtomicU64,
}

impl Numbers {
    /// Of the first boot.
    pub(super) fn new() -> Self {
        Self { generation: AtomicU64::new(0), next_id: AtomicU32::new(1), next_fence: AtomicU64::new(1) }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Contexts of before are gone.
    pub(super) fn begin_generation(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that no other context or resource of this device has had.
    pub(super) fn fresh_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The next device's driver begins to count anew.
    pub(super) fn restart_ids(&self) {
        self.next_id.store(1, Ordering::Relaxed);
    }

    pub(super) fn fresh_fence(&self) -> u64 {
        self.next_fence.fetch_add(1, Ordering::Relaxed)
    }
}

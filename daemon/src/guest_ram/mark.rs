//! Who is told of writes to guest RAM that go through no ring.

use std::fmt::Debug;

/// A log of guest RAM that was written, for a migration of the VM (DIRTY-55).
pub trait MarkGuestRam: Send + Sync + Debug {
    /// `length` bytes at this guest-physical address were written. Called after the write; what lies outside of guest RAM
    /// is ignored.
    fn mark(&self, guest_physical: u64, length: u64);
}

//! What the guest's kernel keeps of a blob.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use super::guest_ram::RamBlock;
use super::window::WindowRange;
use campanile_guest_driver::transport::shared_memory::SharedMemory;

/// A blob of one context.
#[derive(Debug)]
pub(super) struct BlobRecord {
    /// The device's number for it.
    pub(super) number: AtomicU32,
    /// Bytes, whole pages.
    pub(super) size: u64,
    /// Pages of a GuestRam blob; a Vram blob has none.
    pub(super) pages: Option<Arc<RamBlock>>,
    /// Set by the first map. Held over the command, so that a blob is mapped once.
    pub(super) mapped: Mutex<Option<SharedMemory>>,
    /// Where the window shows it.
    pub(super) place: Mutex<Option<Arc<WindowRange>>>,
}

impl BlobRecord {
    pub(super) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    pub(super) fn place(&self) -> MutexGuard<'_, Option<Arc<WindowRange>>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn mapped(&self) -> MutexGuard<'_, Option<SharedMemory>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What the guest's kernel keeps of a blob.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use super::guest_ram::RamBlock;
use crate::transport::shared_memory::SharedMemory;

/// A blob of one context.
#[derive(Debug)]
pub(super) struct BlobRecord {
    /// Bytes, whole pages.
    pub(super) size: u64,
    /// Pages of a GuestRam blob; a Vram blob has none.
    pub(super) pages: Option<Arc<RamBlock>>,
    /// Set by the first map. Held over the command, so that a blob is mapped once.
    pub(super) mapped: Mutex<Option<SharedMemory>>,
}

impl BlobRecord {
    pub(super) fn mapped(&self) -> MutexGuard<'_, Option<SharedMemory>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

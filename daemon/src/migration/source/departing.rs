//! A session, as something that can move.

use std::fs::File;
use std::sync::Arc;

use crate::migration::memory::MovingMemory;
use crate::vgpu::engines::kept_code::KeptFile;
use crate::vgpu::memory::vidmm::local_reader::LocalReader;
use crate::vgpu::objects::kernel_board::KernelBoard;

/// What of a session moves with the pages.
pub struct Departing {
    /// Immutable data (LM-18), encoded.
    pub immutable: Vec<u8>,
    /// The memories, by index.
    pub memories: [Arc<dyn MovingMemory>; 2],
    /// The files that they lie in, by index; none where they lie in none.
    pub files: Option<[File; 2]>,
    /// What drivers have compiled for it: goes to another daemon of this host alone.
    pub code: Vec<KeptFile>,
    /// Its kernels, as they come and go.
    pub kernels: Arc<KernelBoard>,
    /// What reads local memory, where that is a device's own.
    pub local: Option<Arc<LocalReader>>,
}

impl Departing {
    /// The memories, for their readers.
    pub fn memories(&self) -> [&dyn MovingMemory; 2] {
        [&*self.memories[0], &*self.memories[1]]
    }

    /// Whether they are tracked, and at a cost (DIRTY-03): what was written before a migration is not known.
    pub fn is_costly(&self) -> bool {
        self.memories.iter().any(|memory| memory.is_tracked() && !memory.is_performant())
    }

    /// Nothing is told of them any more.
    pub fn end(&self) {
        self.memories.iter().for_each(|memory| memory.end());
        if let Some(local) = &self.local {
            local.rest();
        }
    }
}

impl std::fmt::Debug for Departing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Departing").finish_non_exhaustive()
    }
}

//! Names of kernels within a vGPU.

use serde::Deserialize;
use serde::Serialize;

/// A kernel of one address space: no process can name another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelName {
    /// Page index of the root page table.
    pub root: u64,
    /// The guest's handle.
    pub handle: u64,
}

//! Names of kernels within a vGPU.

/// A kernel of one address space: no process can name another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelName {
    /// Page index of the root page table.
    pub root: u64,
    /// The guest's handle.
    pub handle: u64,
}

//! Numbers by which rooms name what another room owns.

/// Number of an allocation within a vGPU; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(pub u64);

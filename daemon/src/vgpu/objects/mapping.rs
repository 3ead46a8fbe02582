//! Mappings of allocations in the address space of a guest process.

use std::ops::Deref;

use super::budget::Charge;
use super::ids::AllocationId;

/// A range of an allocation in an address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuMapping {
    /// Bytes.
    pub size: u64,
    /// What is mapped; the mapping holds one reference.
    pub allocation: AllocationId,
    /// Bytes into it.
    pub offset: u64,
    /// Whether stores are allowed.
    pub writable: bool,
}

/// A mapping, and what was charged for it: held until engines have let go of it.
#[derive(Debug)]
pub struct Mapped {
    /// The mapping.
    pub mapping: GpuMapping,
    /// What was charged.
    pub charge: Charge,
}

impl Deref for Mapped {
    type Target = GpuMapping;

    fn deref(&self) -> &GpuMapping {
        &self.mapping
    }
}

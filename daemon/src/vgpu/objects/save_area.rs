//! A save area of a guest process: what its contexts keep of buffers that are put aside.

use campanile_protocol::engine::save_area::AreaKind;

use super::ids::AllocationId;
use super::mapping::GpuMapping;

/// A save area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveArea {
    /// The memory; this holds its one reference.
    pub allocation: AllocationId,
    /// Where the address space of areas shows it.
    pub va: u64,
    /// Which kind, and so how many bytes.
    pub kind: AreaKind,
}

impl SaveArea {
    /// What the address space of areas shows of it.
    pub const fn mapping(&self) -> GpuMapping {
        GpuMapping { size: self.kind.bytes(), allocation: self.allocation, offset: 0, writable: true }
    }
}

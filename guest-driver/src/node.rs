//! The nodes of the GPU.

use campanile_protocol::capset;

/// A node: an independently scheduled part of the GPU (TDR-05).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Node {
    /// Runs kernels, and everything else.
    Compute,
    /// Copies, fills, signals and waits.
    Copy,
}

impl Node {
    /// Its number.
    pub const fn ordinal(self) -> u32 {
        match self {
            Self::Compute => capset::NODE_COMPUTE,
            Self::Copy => capset::NODE_COPY,
        }
    }
}

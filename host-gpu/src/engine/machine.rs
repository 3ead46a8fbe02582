//! What every queue of an engine works with.

use std::sync::Arc;

use super::signals::Signals;
use crate::memory::mapping::Mapping;
use crate::memory::segment::Segments;
use crate::node::buffer::Node;

/// The engine's memory and its node. Owned by the execution thread.
#[derive(Debug)]
pub struct Machine {
    /// The shared block.
    pub shared: Arc<Mapping>,
    /// The page tables of the vGPU, read-only.
    pub tables: Mapping,
    /// The segments that they lead to.
    pub segments: Segments,
    /// What runs.
    pub node: Node,
    /// How fences are signalled.
    pub signals: Signals,
}

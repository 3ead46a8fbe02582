//! What the operator chose for the doorbells of each node.

use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::engine::address::node_ordinal;
use campanile_protocol::device_page;
use campanile_protocol::queue::doorbell::DoorbellModel;

/// The doorbells of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeMode {
    /// How its queues share what the engine watches (UMS-07).
    pub model: DoorbellModel,
    /// Whether every connect answers CONNECTED_NOTIFY (UMS-51).
    pub notify: bool,
}

/// The doorbells of a vGPU, by node ordinal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DoorbellModes(pub [NodeMode; 2]);

impl DoorbellModes {
    /// Offset in the device page of the cell that processes ring for all their doorbells of an engine; none in the dedicated
    /// model.
    pub fn global_cell(&self, at: EngineAddress) -> Option<u64> {
        (self.0[node_index(at.node)].model == DoorbellModel::Global)
            .then(|| device_page::global_cell(u32::from(at.engine), node_ordinal(at.node)))
    }
}

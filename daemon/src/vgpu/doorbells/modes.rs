//! What the operator chose for the doorbells of each node.

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

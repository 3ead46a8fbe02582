//! What a test has a fake do, and what it is told of that.

use campanile_protocol::engine::hw_queue::HwSubmission;

use crate::engine::message::NodeKind;

/// How a fake goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conduct {
    /// As an engine should.
    #[default]
    Works,
    /// It does nothing more, as an engine whose work never ends.
    Hangs,
    /// It answers for as many kernels, and is at those behind them for ever.
    Compiles(u32),
    /// It has ended: its end of the channel is closed.
    Dies,
}

/// A buffer that a fake has run to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ran {
    /// The node.
    pub node: NodeKind,
    /// What was submitted.
    pub submission: HwSubmission,
}

//! What a supervisor sees of an engine, and where it writes that.

use std::fmt;
use std::time::Duration;

/// Times of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// It had the node, as it was charged for it.
    pub held: Duration,
    /// What its weight and cap came to, beside the others that wanted the node at the same time; bands do not count.
    pub due: Duration,
    /// It had the node or wanted it.
    pub wanted: Duration,
}

/// Where a supervisor writes what it sees of an engine.
pub trait Measures: fmt::Debug + Send + Sync {
    /// It has had so much more of its node.
    fn add(&self, times: Times);

    /// It has yielded its node so long after it was asked to, or its process has ended.
    fn note_yield(&self, took: Duration);

    /// Whether it was asked to yield its node, and has it still.
    fn set_keeps(&self, _keeps: bool) {}

    /// It takes part no more.
    fn end(&self) {}
}

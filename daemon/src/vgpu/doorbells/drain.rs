//! What is kept of a doorbell whose end waits for what was rung.

use std::time::Duration;
use std::time::Instant;

use super::slots::Holder;
use crate::vgpu::objects::message::Origin;

/// A doorbell that is about to end, and the message that waits for it.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    pub(in crate::vgpu) holder: Holder,
    pub(in crate::vgpu) origin: Origin,
    pub(in crate::vgpu) last_queued: u64,
    pub(in crate::vgpu) completed: u64,
    /// When `completed` was last seen to move.
    pub(in crate::vgpu) since: Instant,
    /// How long it may stand still: that of its node.
    pub(in crate::vgpu) timeout: Duration,
}

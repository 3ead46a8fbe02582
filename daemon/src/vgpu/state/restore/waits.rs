//! What waits in a state, besides what waits in a process or for an engine.

use std::collections::BTreeMap;

use crate::vgpu::doorbells::drain::Drain;
use crate::vgpu::memory::residency_faults::Waiter;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::objects::timeline::Token;

/// Everything that waits for the session.
#[derive(Debug, Default)]
pub(super) struct RestoredWaits {
    pub(super) drains: Vec<Drain>,
    /// What is to be made resident.
    pub(super) residents: Vec<Waiter>,
    /// MAP_BLOB commands: resource, offset, token.
    pub(super) maps: Vec<(u32, u64, Token)>,
    /// What the front is to be told.
    pub(super) due: Vec<(Token, Result<(), Refusal>)>,
    /// Ends of segments of guest RAM.
    pub(super) retired: BTreeMap<u16, Token>,
}

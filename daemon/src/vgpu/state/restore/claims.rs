//! What a state may say once only: names of things that wait, work that a wait ends, openers of native fences.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::invalid::Invalid;
use super::invalid::ensure;
use crate::ids::GuestProcess;
use crate::vgpu::objects::timeline::Item;
use crate::vgpu::objects::timeline::Token;

/// Highest ring index of a virtio-gpu context.
pub(super) const MAX_RING: u8 = 63;

/// What was claimed so far.
#[derive(Debug, Default)]
pub(super) struct Claims {
    tokens: BTreeSet<u64>,
    /// Open work on timelines that no wait has claimed yet: guest process, timeline, place.
    pub(super) unclaimed: BTreeSet<(GuestProcess, u8, u64)>,
    /// Work that was paid for with what it ends.
    pub(super) ends: BTreeSet<(GuestProcess, u8, u64)>,
    /// Openers of each native fence.
    pub(super) openers: BTreeMap<u32, u32>,
}

impl Claims {
    /// A front's name for something that waits: each stands for one thing.
    pub(super) fn token(&mut self, token: u64) -> Result<Token, Invalid> {
        ensure(self.tokens.insert(token), || format!("command {token} waits for two things"))?;
        Ok(Token(token))
    }

    /// Claims a piece of open work, for the wait that ends it.
    pub(super) fn claim(
        &mut self,
        of: GuestProcess,
        ring: u8,
        item: Option<u64>,
    ) -> Result<Option<Item>, Invalid> {
        ensure(ring <= MAX_RING, || format!("process {of}: timeline {ring}"))?;
        let Some(item) = item else { return Ok(None) };
        let was_open = self.unclaimed.remove(&(of, ring, item));
        ensure(was_open, || format!("process {of}: work {item} of timeline {ring}, which is not open"))?;
        Ok(Some(Item(item)))
    }
}

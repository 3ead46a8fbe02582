//! What descriptors name.

use std::sync::Arc;

use super::inline::Block;
use crate::image::sampler::Sampler;
use crate::image::view::View;

/// A range that a kernel may be bound to, and what it is told of an image or a sampler.
#[derive(Debug, Clone, Default)]
pub(crate) struct Range {
    /// GPU virtual address.
    pub(crate) va: u64,
    /// Bytes; none of a sampler.
    pub(crate) length: u64,
    /// The format of a texel buffer or an image; 0 for any other.
    pub(crate) format: u16,
    /// The view of an image.
    pub(crate) view: Option<Arc<View>>,
    /// A sampler, alone or beside an image.
    pub(crate) sampler: Option<Arc<Sampler>>,
    /// The inline uniform block that the range is.
    pub(crate) block: Option<Arc<Block>>,
}

/// What the slots of a set hold.
pub(crate) type Slots = Vec<Option<Range>>;

/// Stores at a slot, if there is such a slot.
pub(crate) fn put(slots: &mut Slots, slot: usize, range: Option<Range>) {
    if let Some(place) = slots.get_mut(slot) {
        *place = range;
    }
}

//! What is bound as a descriptor set.

use std::sync::Arc;

use crate::descriptor::layout::Layout;
use crate::descriptor::pool::Set;
use crate::descriptor::slots::Range;
use crate::descriptor::slots::Slots;

/// What is bound as one set.
#[derive(Debug, Default)]
pub(crate) enum Bound {
    /// Nothing.
    #[default]
    Nothing,
    /// A set, and the dynamic offsets that it was bound with.
    Set(Arc<Set>, Vec<u32>),
    /// Descriptors in the command buffer itself.
    Pushed(Arc<Layout>, Slots),
}

impl Bound {
    /// What an element of a binding names.
    pub(crate) fn range(&self, binding: u32, element: u32) -> Option<Range> {
        match self {
            Self::Nothing => None,
            Self::Set(set, offsets) => {
                let range = set.slots().get(set.layout.slot(binding, element)).cloned().flatten()?;
                let dynamic = set.layout.binding(binding)?.dynamic;
                let offset = dynamic.and_then(|first| offsets.get(first + element as usize)).copied();
                Some(Range { va: range.va + u64::from(offset.unwrap_or(0)), ..range })
            }
            Self::Pushed(layout, slots) => slots.get(layout.slot(binding, element)).cloned().flatten(),
        }
    }
}

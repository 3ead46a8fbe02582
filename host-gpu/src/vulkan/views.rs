//! Views of an import as texels, kept from dispatch to dispatch.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use campanile_protocol::texels::Format;

use crate::vulkan::error::VulkanError;
use crate::vulkan::raw::memory::Buffer;
use crate::vulkan::raw::view::View;

/// How many views of an import are kept; a dispatch may bind more.
const MOST: usize = 64;

/// What a view shows: the address of its buffer, which the view keeps, first byte and bytes there, code of the format.
type Key = (usize, u64, u64, u16);

/// The views of an import that were bound last, that of the last dispatch at the end. They go with it, but for those in flight.
#[derive(Default)]
pub(super) struct Views {
    kept: Mutex<Vec<(Key, Arc<View>)>>,
}

impl Views {
    /// That of a range of `buffer` in a format. What is asked of a new one is what [`View::new`] says.
    pub(super) fn view(
        &self,
        buffer: &Arc<Buffer>,
        offset: u64,
        length: u64,
        format: &Format,
    ) -> Result<Arc<View>, VulkanError> {
        let key = (Arc::as_ptr(buffer).addr(), offset, length, format.code);
        // A panic under the lock cannot leave the list half changed.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let view = match kept.iter().position(|(of, _)| *of == key) {
            Some(at) => kept.remove(at).1,
            None => Arc::new(View::new(buffer, offset, length, format)?),
        };
        if kept.len() >= MOST {
            kept.remove(0);
        }
        kept.push((key, Arc::clone(&view)));
        Ok(view)
    }

    /// How many are kept.
    pub(super) fn len(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

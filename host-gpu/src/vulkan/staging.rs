//! Host memory of a device that can import none: memory of the device's own that the host sees, too, and copies between the two.
//!
//! ```text
//!   host memory ──bring, what a dispatch binds──▶ device's memory ◀── kernels
//!        ▲                                              │
//!        └────────settle, what kernels have changed─────┘
//! ```
//!
//! | when | what is copied |
//! |---|---|
//! | a dispatch binds a range | those of its pages that were not brought since the last [`Driver::settle`] |
//! | `settle`, with nothing in flight | bytes of ranges that kernels may write, where they are not what was brought |
//!
//! Between the two, dispatches see what those before them wrote, and nothing that the host writes. Bytes that no kernel has changed are not
//! copied back: guests write beside what a kernel writes, at the same time. What is in flight uses pages that were brought, and only others are
//! brought, so no copy meets a kernel.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use crate::kernel::program::BufferAccess;
use crate::memory::bits::masks;
use crate::vulkan::driver::Driver;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::HostRange;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::memory::Memory;
use crate::vulkan::request::Bound;

/// What is brought at once, bytes.
const PAGE: u64 = 4096;

/// A range of host memory with its twin.
pub(super) struct Staging {
    host: HostRange,
    memory: Arc<Memory>,
    held: Mutex<Held>,
}

/// What of the range the device has now.
#[derive(Debug, Default)]
struct Held {
    /// A bit for each page that was brought.
    pages: Vec<u64>,
    /// First page and count of what was asked for: where bits are set.
    runs: Vec<(u64, u64)>,
    /// Pages that kernels may write, as they were brought.
    before: BTreeMap<u64, Box<[u8]>>,
}

impl Staging {
    /// The twin of a range, with nothing in it.
    pub(super) fn new(gpu: &Arc<Gpu>, host: &HostRange) -> Result<Self, VulkanError> {
        let HostRange { mapping, offset, length, .. } = host;
        let refused = |reason: String| VulkanError::Import { length: *length, offset: *offset, reason };
        if *length == 0 || mapping.slice(*offset, *length).is_none() {
            return Err(refused(format!("the mapping has {} bytes", mapping.len())));
        }
        if !length.is_multiple_of(PAGE) {
            return Err(refused(format!("the length must be a multiple of {PAGE}")));
        }
        let memory = Arc::new(Memory::allocate_shared(gpu, *length)?);
        let words = usize::try_from((length / PAGE).div_ceil(64)).unwrap_or_default();
        let held = Mutex::new(Held { pages: vec![0; words], ..Held::default() });
        Ok(Self { host: host.clone(), memory, held })
    }

    /// What kernels bind.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A panic under the lock leaves at worst a page that is brought once more.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outside(&self, offset: u64, length: u64) -> VulkanError {
        let reason = format!("its memory has {} bytes", self.host.length);
        VulkanError::Import { length, offset, reason }
    }

    /// Copies these bytes to the device, whether or not they were before. Nothing in flight uses them.
    pub(super) fn refresh(&self, offset: u64, length: u64) -> Result<(), VulkanError> {
        let host = self.host.offset.checked_add(offset).and_then(|at| self.host.mapping.slice(at, length));
        let places = host.zip(self.memory.slice(offset, length));
        let (host, device) = places.ok_or_else(|| self.outside(offset, length))?;
        host.copy_to_volatile_slice(device);
        Ok(())
    }

    /// Copies what of a range the device has not; `writes` where a kernel may change it.
    pub(super) fn bring(&self, offset: u64, length: u64, writes: bool) -> Result<(), VulkanError> {
        let end = offset.checked_add(length).filter(|end| *end <= self.host.length);
        let end = end.ok_or_else(|| self.outside(offset, length))?.div_ceil(PAGE);
        let (first, held) = (offset / PAGE, &mut *self.held());
        let mut is_new = false;
        for (index, mask) in masks(first, end - first) {
            let word = usize::try_from(index).ok().and_then(|index| held.pages.get_mut(index));
            let word = word.ok_or_else(|| self.outside(offset, length))?;
            let mut missing = mask & !*word;
            is_new |= missing != 0;
            while missing != 0 {
                self.refresh((index * 64 + u64::from(missing.trailing_zeros())) * PAGE, PAGE)?;
                missing &= missing - 1;
            }
            *word |= mask;
        }
        if is_new {
            held.runs.push((first, end - first));
        }
        if writes {
            for page in first..end {
                if let Entry::Vacant(place) = held.before.entry(page) {
                    place.insert(self.page(page)?);
                }
            }
        }
        Ok(())
    }

    /// What the device has of a page.
    fn page(&self, page: u64) -> Result<Box<[u8]>, VulkanError> {
        let device = self.memory.slice(page * PAGE, PAGE);
        let device = device.ok_or_else(|| self.outside(page * PAGE, PAGE))?;
        let mut bytes = vec![0; device.len()];
        device.copy_to(&mut bytes);
        Ok(bytes.into())
    }

    /// Copies back what kernels have changed, and has all be brought again. Nothing is in flight.
    pub(super) fn settle(&self) -> Result<(), VulkanError> {
        let held = &mut *self.held();
        for (first, count) in held.runs.drain(..) {
            for (index, mask) in masks(first, count) {
                if let Some(word) = usize::try_from(index).ok().and_then(|index| held.pages.get_mut(index)) {
                    *word &= !mask;
                }
            }
        }
        for (page, before) in std::mem::take(&mut held.before) {
            let now = self.page(page)?;
            let start = self.host.offset + page * PAGE;
            let host = self.host.mapping.slice(start, PAGE).ok_or_else(|| self.outside(start, PAGE))?;
            for Range { start, end } in changed(&before, &now) {
                if let Ok(part) = host.subslice(start, end - start) {
                    part.copy_from(&now[start..end]);
                }
            }
        }
        Ok(())
    }
}

/// Where two pages are not the same.
fn changed(before: &[u8], now: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    if before == now {
        return runs;
    }
    for at in before.iter().zip(now).enumerate().filter(|(_, (before, now))| before != now).map(|(at, _)| at) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

impl Driver {
    /// Has the device have what a dispatch of `pipeline` binds.
    pub(super) fn bring(&mut self, pipeline: &Pipeline, bounds: &[Bound<'_>]) -> Result<(), VulkanError> {
        for bound in bounds {
            let Some(staging) = bound.memory.staging() else { continue };
            let declared = bound.binding.find(pipeline.bindings());
            let writes = declared.is_some_and(|declared| declared.access == BufferAccess::ReadWrite);
            staging.bring(bound.offset, bound.length, writes)?;
            if !self.staged.iter().any(|known| Arc::ptr_eq(known, staging)) {
                self.staged.push(Arc::clone(staging));
            }
        }
        Ok(())
    }

    /// Whether host memory is copied, and what dispatches wrote is there after [`Self::settle`] only.
    pub fn copies_memory(&self) -> bool {
        self.grids.is_copied()
    }

    /// Waits for all that was started, and has the host see what it wrote: where memory is imported it does anyway.
    pub fn settle(&mut self) -> Result<(), VulkanError> {
        if self.staged.is_empty() {
            return Ok(());
        }
        self.sleep_for_all()?;
        self.staged.drain(..).try_for_each(|staging| staging.settle())
    }
}

#[cfg(test)]
mod tests {
    use super::changed;

    #[test]
    fn what_changed_is_told_in_runs_of_bytes() {
        let before = [0; 8];
        assert!(changed(&before, &before).is_empty());
        assert_eq!(changed(&before, &[1, 0, 0, 2, 3, 0, 0, 4]), [0..1, 3..5, 7..8]);
        assert_eq!(changed(&before, &[9; 8]), vec![0..8]);
    }
}

//! Host memory made bindable.
//!
//! A device takes a whole mapping at once but binds ranges of buffers, and a buffer has a largest size. So each
//! import is covered by buffers that overlap by the longest binding: any range that may be bound lies in one.
//!
//! ```text
//!   import    0 ────────── 1 GiB ────────── 2 GiB ─────── end
//!   window 0  ├───────────────┼──overlap──┤
//!   window 1                  ├───────────────┼──overlap──┤
//! ```

use std::sync::Arc;

use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::vram::create_memfd;
use crate::vulkan::error::VulkanError;
use crate::vulkan::info::ImportMethod;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::memory::Buffer;
use crate::vulkan::raw::memory::Memory;
use crate::vulkan::staging::Staging;
use crate::vulkan::views::Views;

/// From the start of one window to the start of the next, bytes.
const STRIDE: u64 = 1 << 30;

/// A range of a mapping, to be imported.
#[derive(Debug, Clone)]
pub struct HostRange {
    /// The mapping; it is kept as long as the import or work on it.
    pub mapping: Arc<Mapping>,
    /// First byte, so that the address is a multiple of `Limits::import_alignment`.
    pub offset: u64,
    /// Bytes, a multiple of `Limits::import_alignment`.
    pub length: u64,
    /// How it is mapped. A kernel that may write is refused on a read-only range, where a store would fault.
    pub access: Access,
}

impl HostRange {
    /// All of `mapping`, which is mapped for `access`.
    pub fn whole(mapping: &Arc<Mapping>, access: Access) -> Self {
        Self { mapping: Arc::clone(mapping), offset: 0, length: mapping.len(), access }
    }
}

/// Imports a page of a file, as video memory and guest memory are pages of files. Inside: whether the device takes none, as one that copies.
pub(super) fn try_import(gpu: &Arc<Gpu>) -> Result<Result<(), VulkanError>, VulkanError> {
    if gpu.import() == ImportMethod::Copy {
        return Ok(Ok(()));
    }
    let length = gpu.limits.import_alignment;
    let failed = |error: &dyn std::error::Error| VulkanError::SelfTest { reason: error.to_string() };
    let file = create_memfd("campanile-import", length).map_err(|error| failed(&error))?;
    let page = Mapping::new(file, 0, length, Access::ReadWrite).map_err(|error| failed(&error))?;
    match Memory::import_host_pointer(gpu, &Arc::new(page), 0, length) {
        Ok(_) => Ok(Ok(())),
        Err(refused @ VulkanError::NotTaken { .. }) => Ok(Err(refused)),
        Err(error) => Err(error),
    }
}

/// Memory that a dispatch can bind: the host's, or the device's own (see [`super::local`]). Work in flight keeps what it uses, so it may be dropped at any time.
pub struct Import {
    gpu: Arc<Gpu>,
    memory: Arc<Memory>,
    /// Where it is a copy of host memory.
    staging: Option<Arc<Staging>>,
    windows: Vec<Arc<Buffer>>,
    views: Views,
    length: u64,
    access: Access,
}

impl Import {
    pub(super) fn new(gpu: &Arc<Gpu>, range: &HostRange) -> Result<Self, VulkanError> {
        let HostRange { mapping, offset, length, access } = range;
        match gpu.import() {
            ImportMethod::HostPointer => {
                let memory = Memory::import_host_pointer(gpu, mapping, *offset, *length)?;
                Self::over(gpu, memory.into(), *length, *access)
            }
            ImportMethod::Copy => {
                let staging = Arc::new(Staging::new(gpu, mapping, *offset, *length)?);
                let import = Self::over(gpu, Arc::clone(staging.memory()), *length, *access)?;
                Ok(Self { staging: Some(staging), ..import })
            }
        }
    }

    /// The first `length` bytes of `memory`.
    pub(super) fn over(
        gpu: &Arc<Gpu>,
        memory: Arc<Memory>,
        length: u64,
        access: Access,
    ) -> Result<Self, VulkanError> {
        let windows = spans(length, gpu.limits.binding_length)
            .map(|(start, span)| Buffer::new(&memory, start, span).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let (gpu, staging, views) = (Arc::clone(gpu), None, Views::default());
        Ok(Self { gpu, memory, staging, windows, views, length, access })
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether nothing is imported. Never true: an import of no bytes is refused.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether kernels may write it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// What it is over.
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where it is a copy of host memory.
    pub(super) fn staging(&self) -> Option<&Arc<Staging>> {
        self.staging.as_ref()
    }

    /// Before a copy by the device: has it have these bytes, which it changes where `writes`. Nothing but copies uses this memory then.
    pub(super) fn bring(&self, offset: u64, length: u64, writes: bool) -> Result<(), VulkanError> {
        self.staging().map_or(Ok(()), |staging| staging.bring(offset, length, writes))
    }

    /// Behind a copy by the device: has the host have what it changed.
    pub(super) fn settle(&self) -> Result<(), VulkanError> {
        self.staging().map_or(Ok(()), |staging| staging.settle())
    }

    pub(super) fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    /// Views of it as texels, of its windows.
    pub(super) fn views(&self) -> &Views {
        &self.views
    }

    /// How many views of it as texels are kept.
    pub fn kept_views(&self) -> usize {
        self.views.len()
    }

    /// The buffer that holds `offset .. offset + length`, and where in it that starts.
    pub(super) fn window(&self, offset: u64, length: u64) -> Option<(&Arc<Buffer>, u64)> {
        let last = self.windows.len().checked_sub(1)?;
        let index = usize::try_from(offset / STRIDE).map_or(last, |index| index.min(last));
        let window = self.windows.get(index)?;
        let start = offset.checked_sub(index as u64 * STRIDE)?;
        (start.checked_add(length)? <= window.len()).then_some((window, start))
    }
}

impl std::fmt::Debug for Import {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Import")
            .field("length", &self.length)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// Start and length of each window over `length` bytes, for bindings of up to `overlap`.
fn spans(length: u64, overlap: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = (0..).map(|index: u64| index * STRIDE);
    // The first window is always there; another one only where the one before it does not reach the end.
    let needed = starts.take_while(move |start| *start == 0 || start + overlap < length);
    needed.map(move |start| (start, (length - start).min(STRIDE + overlap)))
}

#[cfg(test)]
mod tests {
    use super::STRIDE;
    use super::spans;

    const MIB: u64 = 1 << 20;

    #[test]
    fn every_range_up_to_the_overlap_lies_in_the_window_of_its_start() {
        let overlap = 128 * MIB;
        for length in
            [4096, overlap, STRIDE, STRIDE + 64 * MIB, STRIDE + overlap, 4 * STRIDE, 9 * STRIDE - 4096]
        {
            let windows: Vec<_> = spans(length, overlap).collect();
            for offset in (0..length).step_by(61 * 4096 * 101) {
                let wanted = overlap.min(length - offset);
                let index = usize::try_from(offset / STRIDE).unwrap().min(windows.len() - 1);
                let (start, span) = windows[index];
                assert!(start <= offset && offset + wanted <= start + span, "{offset} of {length}");
            }
            assert!(windows.iter().all(|(start, span)| start + span <= length && *span > 0));
        }
    }
}

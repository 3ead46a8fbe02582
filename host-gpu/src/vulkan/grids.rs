//! The grids that kernels which ask for the number of workgroups are told.

use std::sync::Arc;

use crate::kernel::program::BindingPoint;
use crate::kernel::program::BufferKind;
use crate::kernel::program::GRID_BINDING;
use crate::kernel::program::GRID_BYTES;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::vulkan::error::VulkanError;
use crate::vulkan::gates::CHAIN;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::info::Limits;
use crate::vulkan::pipeline::anonymous;
use crate::vulkan::raw::commands::Place;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::request::IN_FLIGHT;

/// Memory that tells kernels the grid: a record for each dispatch of each slot, which is written while nothing runs in it.
pub(super) struct Grids {
    mapping: Arc<Mapping>,
    memory: Import,
    stride: u64,
}

impl Grids {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, VulkanError> {
        let Limits { binding_alignment, import_alignment, .. } = gpu.limits;
        let stride = GRID_BYTES.next_multiple_of(binding_alignment.max(4));
        let length = (stride * (IN_FLIGHT * CHAIN) as u64).next_multiple_of(import_alignment.max(4096));
        let mapping = anonymous(length)?;
        let memory = Import::new(gpu, &HostRange::whole(&mapping, Access::ReadWrite))?;
        Ok(Self { mapping, memory, stride })
    }

    /// Has the kernel that runs next in slot `slot`, as number `index` of its submission, told this grid.
    pub(super) fn tell(&self, slot: usize, index: usize, grid: [u32; 3]) -> Result<Place, VulkanError> {
        let offset = (slot * CHAIN + index) as u64 * self.stride;
        let record = self.mapping.slice(offset, GRID_BYTES);
        let place = record.and_then(|record| {
            let [x, y, z] = grid.map(u32::to_ne_bytes);
            record.copy_from(&[x, y, z].concat());
            if let Some(staging) = self.memory.staging() {
                staging.refresh(offset, GRID_BYTES).ok()?;
            }
            let (buffer, offset) = self.memory.window(offset, GRID_BYTES)?;
            let (point, kind) = (BindingPoint::plain(GRID_BINDING), BufferKind::Storage);
            let buffer = Arc::clone(buffer);
            Some(Place { point, kind, buffer, offset, length: GRID_BYTES, view: None })
        });
        place.ok_or_else(|| VulkanError::Import {
            length: GRID_BYTES,
            offset,
            reason: "it has no record for this dispatch".to_owned(),
        })
    }

    /// Whether the device has a copy of it.
    pub(super) fn is_copied(&self) -> bool {
        self.memory.staging().is_some()
    }
}

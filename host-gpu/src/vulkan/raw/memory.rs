//! Device memory and buffers over it.
#![allow(unsafe_code)]

use std::sync::Arc;

use ash::vk;

use crate::memory::mapping::Mapping;
use crate::vulkan::error::VulkanError;
use crate::vulkan::error::failed;
use crate::vulkan::raw::device::Gpu;

const HOST_POINTER: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
const SHARED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw() | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

/// Host memory as the device sees it.
pub(in crate::vulkan) struct Memory {
    gpu: Arc<Gpu>,
    raw: vk::DeviceMemory,
    type_index: u32,
    length: u64,
    /// The pages that an import works on.
    _pages: Arc<Mapping>,
}

impl Memory {
    /// Imports `length` bytes of `mapping` from `offset` with `VK_EXT_external_memory_host`.
    pub(in crate::vulkan) fn import_host_pointer(
        gpu: &Arc<Gpu>,
        mapping: &Arc<Mapping>,
        offset: u64,
        length: u64,
    ) -> Result<Self, VulkanError> {
        let refused = |reason: String| VulkanError::Import { length, offset, reason };
        let inside = length > 0 && mapping.slice(offset, length).is_some();
        let start = usize::try_from(offset).ok().filter(|_| inside);
        let start = start.ok_or_else(|| refused(format!("the mapping has {} bytes", mapping.len())))?;
        let pointer = mapping.host_pointer().wrapping_add(start);
        let alignment = gpu.limits.import_alignment;
        if !(pointer.addr() as u64).is_multiple_of(alignment) || !length.is_multiple_of(alignment) {
            return Err(refused(format!("address and length must be multiples of {alignment}")));
        }
        let pointer = pointer.cast::<std::ffi::c_void>();

        let mut offered = vk::MemoryHostPointerPropertiesEXT::default();
        let query = gpu.host_memory.fp().get_memory_host_pointer_properties_ext;
        // SAFETY: the device is alive, the pointer is to mapped memory, and `offered` outlives the call.
        unsafe { query(gpu.device.handle(), HOST_POINTER, pointer, &raw mut offered) }
            .result()
            .map_err(|result| refused(format!("vkGetMemoryHostPointerPropertiesEXT says {result}")))?;
        let type_index = shared_type(gpu, offered.memory_type_bits)
            .ok_or_else(|| refused("the device would not see it coherently".to_owned()))?;

        let mut import =
            vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HOST_POINTER).host_pointer(pointer);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(length)
            .memory_type_index(type_index)
            .push_next(&mut import);
        // SAFETY: the range is mapped, aligned as demanded, and stays so as long as `_pages` is held.
        let raw = unsafe { gpu.device.allocate_memory(&info, None) }
            .map_err(|result| refused(format!("vkAllocateMemory says {result}")))?;
        Ok(Self { gpu: Arc::clone(gpu), raw, type_index, length, _pages: Arc::clone(mapping) })
    }
}

/// The first memory type among `bits` that host and device see alike.
fn shared_type(gpu: &Gpu, bits: u32) -> Option<u32> {
    let types = gpu.memory_types.memory_types_as_slice();
    (0..)
        .zip(types)
        .find(|(index, t)| bits & (1 << index) != 0 && t.property_flags.contains(SHARED))
        .map(|(i, _)| i)
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: every buffer bound to this holds an `Arc` of it, so none is left.
        unsafe { self.gpu.device.free_memory(self.raw, None) };
    }
}

/// A buffer over part of a [`Memory`].
pub(in crate::vulkan) struct Buffer {
    memory: Arc<Memory>,
    pub(super) raw: vk::Buffer,
    length: u64,
}

impl Buffer {
    /// A buffer that kernels bind as storage or uniform buffer, over the bytes `offset .. offset + length` of `memory`.
    pub(in crate::vulkan) fn new(
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
    ) -> Result<Self, VulkanError> {
        let bound = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::UNIFORM_BUFFER;
        Self::create(memory, offset, length, bound)
    }

    /// A buffer over all of `memory`, to copy words in it, and have dispatches skipped by them.
    pub(in crate::vulkan) fn of_conditions(memory: &Arc<Memory>) -> Result<Self, VulkanError> {
        let copies = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        Self::create(memory, 0, memory.length, copies | vk::BufferUsageFlags::CONDITIONAL_RENDERING_EXT)
    }

    fn create(
        memory: &Arc<Memory>,
        offset: u64,
        length: u64,
        usage: vk::BufferUsageFlags,
    ) -> Result<Self, VulkanError> {
        let device = &memory.gpu.device;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HOST_POINTER);
        let info = vk::BufferCreateInfo::default()
            .size(length)
            .usage(usage)
            .sharing_mode(vk::SharingMode::EXCLUSIVE)
            .push_next(&mut external);
        // SAFETY: `info` outlives the call.
        let raw = unsafe { device.create_buffer(&info, None) }.map_err(failed("vkCreateBuffer"))?;
        // From here on, `Drop` destroys it, bound or not.
        let buffer = Self { memory: Arc::clone(memory), raw, length };
        // SAFETY: the buffer was just created.
        let needs = unsafe { device.get_buffer_memory_requirements(raw) };
        let fits = offset.checked_add(needs.size).is_some_and(|end| end <= memory.length);
        let usable = needs.memory_type_bits & (1 << memory.type_index) != 0;
        if !fits || !usable || !offset.is_multiple_of(needs.alignment.max(1)) {
            let reason = format!("the device wants a buffer there to have {needs:?}");
            return Err(VulkanError::Import { length, offset, reason });
        }
        // SAFETY: checked just now: size, type and alignment are as required; the buffer is not bound yet.
        unsafe { device.bind_buffer_memory(raw, memory.raw, offset) }
            .map_err(failed("vkBindBufferMemory"))?;
        Ok(buffer)
    }

    /// Bytes in the buffer.
    pub(in crate::vulkan) fn len(&self) -> u64 {
        self.length
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: a slot holds an `Arc` of every buffer that its pending work uses.
        unsafe { self.memory.gpu.device.destroy_buffer(self.raw, None) };
    }
}

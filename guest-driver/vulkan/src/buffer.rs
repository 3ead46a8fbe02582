//! Buffers: ranges of memory.

use std::sync::OnceLock;

use ash::vk;
use campanile_protocol::packet::BINDING_ALIGNMENT;

use crate::abi;
use crate::abi::handle;
use crate::memory::Memory;
use crate::physical::ALL_TYPES;

/// A buffer. Bound once; its memory outlives its use.
#[derive(Debug)]
pub(crate) struct Buffer {
    size: u64,
    va: OnceLock<u64>,
}

handle!(Buffer, vk::Buffer);

impl Buffer {
    /// GPU virtual address of byte `offset`; 0 where no memory is bound.
    pub(crate) fn va(&self, offset: u64) -> u64 {
        self.va.get().map_or(0, |va| va + offset)
    }

    /// The bytes from `offset` on, as many as `range` says.
    pub(crate) fn range(&self, offset: u64, range: u64) -> u64 {
        if range == vk::WHOLE_SIZE { self.size.saturating_sub(offset) } else { range }
    }

    fn bind(&self, memory: vk::DeviceMemory, offset: u64) {
        // Bound twice is invalid usage; the first stays.
        let _first = self.va.set(abi::get::<Memory>(memory).va() + offset);
    }
}

fn requirements(size: u64) -> vk::MemoryRequirements {
    vk::MemoryRequirements {
        // As large as can be said, where a program asks about a size that no memory has.
        size: size.checked_next_multiple_of(BINDING_ALIGNMENT).unwrap_or(u64::MAX - (BINDING_ALIGNMENT - 1)),
        alignment: BINDING_ALIGNMENT,
        memory_type_bits: ALL_TYPES,
    }
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    info: *const vk::BufferCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Buffer,
) -> vk::Result {
    abi::command("vkCreateBuffer", || {
        let info = abi::read(info);
        abi::give(Buffer { size: info.size, va: OnceLock::new() }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    buffer: vk::Buffer,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyBuffer", || drop(abi::take::<Buffer>(buffer)));
}

pub(crate) extern "system" fn memory_requirements(
    _device: vk::Device,
    buffer: vk::Buffer,
    out: *mut vk::MemoryRequirements,
) {
    abi::quiet("vkGetBufferMemoryRequirements", || {
        let buffer = abi::get::<Buffer>(buffer);
        abi::write(out, requirements(buffer.size));
    });
}

pub(crate) extern "system" fn memory_requirements2(
    _device: vk::Device,
    info: *const vk::BufferMemoryRequirementsInfo2<'_>,
    out: *mut vk::MemoryRequirements2<'_>,
) {
    abi::quiet("vkGetBufferMemoryRequirements2", || {
        let buffer = abi::get::<Buffer>(abi::read(info).buffer);
        fill(abi::filled(out), requirements(buffer.size));
    });
}

pub(crate) extern "system" fn memory_requirements_of(
    _device: vk::Device,
    info: *const vk::DeviceBufferMemoryRequirements<'_>,
    out: *mut vk::MemoryRequirements2<'_>,
) {
    abi::quiet("vkGetDeviceBufferMemoryRequirements", || {
        let info = abi::read(abi::read(info).p_create_info);
        fill(abi::filled(out), requirements(info.size));
    });
}

/// Fills requirements, and says that nothing needs an allocation of its own.
pub(crate) fn fill(out: &mut vk::MemoryRequirements2<'_>, requirements: vk::MemoryRequirements) {
    out.memory_requirements = requirements;
    for structure in abi::chain(out.p_next) {
        if let Some(dedicated) = abi::as_type::<vk::MemoryDedicatedRequirements<'_>>(structure) {
            dedicated.prefers_dedicated_allocation = vk::FALSE;
            dedicated.requires_dedicated_allocation = vk::FALSE;
        }
    }
}

pub(crate) extern "system" fn bind(
    _device: vk::Device,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    offset: vk::DeviceSize,
) -> vk::Result {
    abi::command("vkBindBufferMemory", || {
        abi::get::<Buffer>(buffer).bind(memory, offset);
        Ok(())
    })
}

pub(crate) extern "system" fn bind2(
    _device: vk::Device,
    count: u32,
    infos: *const vk::BindBufferMemoryInfo<'_>,
) -> vk::Result {
    abi::command("vkBindBufferMemory2", || {
        for info in abi::items(infos, count) {
            abi::get::<Buffer>(info.buffer).bind(info.memory, info.memory_offset);
        }
        Ok(())
    })
}

/// The GPU's; kernels that use one are refused.
pub(crate) extern "system" fn address(
    _device: vk::Device,
    info: *const vk::BufferDeviceAddressInfo<'_>,
) -> vk::DeviceAddress {
    let mut address = 0;
    abi::quiet("vkGetBufferDeviceAddress", || address = abi::get::<Buffer>(abi::read(info).buffer).va(0));
    address
}

/// None is captured, to be given again.
pub(crate) extern "system" fn capture_address(
    _device: vk::Device,
    _info: *const vk::BufferDeviceAddressInfo<'_>,
) -> u64 {
    0
}

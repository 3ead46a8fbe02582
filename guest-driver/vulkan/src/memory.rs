//! Device memory: each allocation one resource, mapped into the device's address space whole.

use std::ffi::c_void;

use ash::vk;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::transport::error::TransportError;

use crate::abi;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::device::Core;
use crate::external;
use crate::failure::failed;
use crate::physical;

/// An allocation.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Local(LocalBuffer),
    Visible(Buffer),
}

handle!(Memory, vk::DeviceMemory);

impl Memory {
    fn allocate(core: &Core, kind: u32, size: u64) -> Outcome<Self> {
        let failed = failed("vkAllocateMemory");
        let bytes = match kind {
            physical::LOCAL => match core.gpu.create_local_buffer(size) {
                // With virtio-gpu a VM without a window has no video memory at all.
                Err(DriverError::Transport(TransportError::NoWindow)) => {
                    core.gpu.create_guest_buffer(size).map(Bytes::Visible)
                }
                made => made.map(Bytes::Local),
            },
            physical::WINDOW => match core.gpu.create_buffer(size) {
                // There is room in video memory, but none for the CPU to see it: guest RAM, which it sees as well.
                Err(DriverError::Transport(TransportError::OutOfWindow { .. })) => {
                    core.gpu.create_guest_buffer(size)
                }
                made => made,
            }
            .map(Bytes::Visible),
            physical::GUEST_RAM => core.gpu.create_guest_buffer(size).map(Bytes::Visible),
            _ => return Err(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY),
        };
        Ok(Self { bytes: bytes.map_err(failed)? })
    }

    /// GPU virtual address.
    pub(crate) fn va(&self) -> u64 {
        match &self.bytes {
            Bytes::Local(buffer) => buffer.va(),
            Bytes::Visible(buffer) => buffer.va(),
        }
    }

    /// Where the CPU sees byte `offset`; the whole lies in one run there.
    fn place(&self, offset: u64) -> Outcome<*mut c_void> {
        let Bytes::Visible(buffer) = &self.bytes else { return Err(vk::Result::ERROR_MEMORY_MAP_FAILED) };
        let whole = buffer.memory().slice(0, buffer.size()).ok_or(vk::Result::ERROR_MEMORY_MAP_FAILED)?;
        let offset = usize::try_from(offset).map_err(|_| vk::Result::ERROR_MEMORY_MAP_FAILED)?;
        Ok(whole.ptr_guard_mut().as_ptr().wrapping_add(offset).cast())
    }
}

pub(crate) extern "system" fn allocate(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::DeviceMemory,
) -> vk::Result {
    abi::command("vkAllocateMemory", || {
        let info = abi::read(info);
        external::check(info)?;
        abi::give(Memory::allocate(Core::of(device), info.memory_type_index, info.allocation_size)?, out);
        Ok(())
    })
}

pub(crate) extern "system" fn free(
    _device: vk::Device,
    memory: vk::DeviceMemory,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkFreeMemory", || drop(abi::take::<Memory>(memory)));
}

pub(crate) extern "system" fn map(
    _device: vk::Device,
    memory: vk::DeviceMemory,
    offset: vk::DeviceSize,
    _size: vk::DeviceSize,
    _flags: vk::MemoryMapFlags,
    out: *mut *mut c_void,
) -> vk::Result {
    abi::command("vkMapMemory", || {
        abi::write(out, abi::get::<Memory>(memory).place(offset)?);
        Ok(())
    })
}

pub(crate) extern "system" fn map2(
    _device: vk::Device,
    info: *const vk::MemoryMapInfoKHR<'_>,
    out: *mut *mut c_void,
) -> vk::Result {
    abi::command("vkMapMemory2KHR", || {
        let info = abi::read(info);
        abi::write(out, abi::get::<Memory>(info.memory).place(info.offset)?);
        Ok(())
    })
}

pub(crate) extern "system" fn unmap2(
    _device: vk::Device,
    _info: *const vk::MemoryUnmapInfoKHR<'_>,
) -> vk::Result {
    vk::Result::SUCCESS
}

/// What is mapped stays so until it is freed.
pub(crate) extern "system" fn unmap(_device: vk::Device, _memory: vk::DeviceMemory) {}

/// All memory that is mapped is coherent.
pub(crate) extern "system" fn synchronise(
    _device: vk::Device,
    _count: u32,
    _ranges: *const vk::MappedMemoryRange<'_>,
) -> vk::Result {
    vk::Result::SUCCESS
}

pub(crate) extern "system" fn commitment(
    _device: vk::Device,
    _memory: vk::DeviceMemory,
    out: *mut vk::DeviceSize,
) {
    abi::quiet("vkGetDeviceMemoryCommitment", || {
        abi::write(out, 0);
    });
}

/// None is captured, to be given again.
pub(crate) extern "system" fn address(
    _device: vk::Device,
    _info: *const vk::DeviceMemoryOpaqueCaptureAddressInfo<'_>,
) -> u64 {
    0
}
